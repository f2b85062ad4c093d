"""Device memory is counted, given back, and does not leak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelkit_conformance.checks import check
from accelkit_conformance.subject import raises

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_BYTES = 8 << 20


@check("smoke", requires=["memory_statistics"])
def allocating_is_counted(subject: Subject) -> None:
    """Allocating n bytes raises the allocated bytes by at least n, and freeing gives them back."""
    import torch

    before = subject.allocated_before()
    block = torch.empty(_BYTES, dtype=torch.uint8, device=subject.device)
    during = subject.allocated()
    assert during - before >= _BYTES, f"{_BYTES} bytes were allocated, and {during - before:.0f} are counted"
    assert during - before <= 2 * _BYTES, f"{_BYTES} bytes were allocated, and {during - before:.0f} are counted"
    del block
    after = subject.allocated()
    assert after == before, f"{after - before:.0f} bytes stay allocated after the tensor is gone"


@check("smoke", requires=["memory_statistics"])
def views_cost_nothing(subject: Subject) -> None:
    """Views allocate nothing, and keep their base's memory alive."""
    import torch

    before = subject.allocated_before()
    base = torch.arange(_BYTES // 8, device=subject.device)
    held = subject.allocated()
    view = base[10:20].view(2, 5).t()
    assert subject.allocated() == held, "a view allocated memory"
    del base
    assert subject.allocated() == held, "the base's memory was given back while a view of it was alive"
    assert view.tolist()[0] == [10, 15]
    del view
    assert subject.allocated() == before


@check("smoke", requires=["memory_statistics"])
def peak_is_kept_and_reset(subject: Subject) -> None:
    """The peak is what was allocated at most since it was reset, and resetting brings it to what is allocated now."""
    import torch

    def peak() -> float:
        return subject.accelerator.memory_stats(subject.device)["memory.peak.bytes"]

    subject.accelerator.reset_peak_memory_stats(subject.device)
    before = subject.allocated_before()
    assert peak() == before, f"after a reset the peak is {peak():.0f} bytes, and {before:.0f} are allocated"
    block = torch.empty(_BYTES, dtype=torch.uint8, device=subject.device)
    del block
    assert peak() - before >= _BYTES, "the peak does not hold what was given back"
    subject.accelerator.reset_peak_memory_stats(subject.device)
    assert peak() - subject.allocated() < _BYTES, "the peak was not reset"


@check("training", requires=["memory_statistics"])
def training_does_not_leak(subject: Subject) -> None:
    """Over 200 training steps the memory after a step stays flat."""
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4)).to(
        subject.device
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    levels = []
    for step in range(200):
        loss = model(torch.randn(8, 16, device=subject.device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        del loss
        if step >= 20:
            levels.append(subject.allocated())
    assert levels[-1] <= levels[0], f"{levels[-1] - levels[0]:.0f} bytes more are allocated after {len(levels)} steps"


@check("smoke", requires=["memory_statistics"])
def memory_is_per_device(subject: Subject) -> None:
    """Allocating on one device is not counted on another."""
    import torch

    other = subject.second_device()
    before = subject.accelerator.memory_stats(other)["memory.allocated.bytes"]
    block = torch.empty(_BYTES, dtype=torch.uint8, device=subject.device)
    after = subject.accelerator.memory_stats(other)["memory.allocated.bytes"]
    assert after == before, f"{block.numel()} bytes on {subject.device} are counted on {other}"


@check("smoke", requires=["memory_limit"])
def out_of_memory_is_recoverable(subject: Subject) -> None:
    """Too much is torch.OutOfMemoryError; afterwards what was there is intact, and the next allocation works."""
    import torch

    kept = torch.arange(100, device=subject.device)
    for _ in range(2):
        with raises(torch.OutOfMemoryError, doing="allocating a petabyte"):
            torch.empty(1 << 50, dtype=torch.uint8, device=subject.device)
    assert kept.tolist() == list(range(100)), "what was on the device before is something else now"
    assert torch.ones(1000, device=subject.device).sum().item() == 1000


@check("smoke", requires=["memory_limit"])
def out_of_memory_in_an_operator(subject: Subject) -> None:
    """An operator whose result does not fit raises torch.OutOfMemoryError, and leaves nothing allocated."""
    import torch

    x = torch.ones(1 << 20, device=subject.device)
    with raises(torch.OutOfMemoryError, doing="an outer product of 4 TiB"):
        torch.outer(x, x)
    assert x.sum().item() == 1 << 20


@check("smoke")
def zero_bytes(subject: Subject) -> None:
    """Tensors without elements are made, copied, reduced and concatenated."""
    import torch

    empty = torch.empty(0, 3, device=subject.device)
    assert empty.sum().item() == 0
    assert empty.cpu().shape == (0, 3)
    assert torch.cat([empty, torch.ones(1, 3, device=subject.device)]).tolist() == [[1.0] * 3]
    assert (empty + 1).shape == (0, 3)


@check("smoke")
def empty_cache_keeps_tensors(subject: Subject) -> None:
    """``empty_cache`` may be called at any time, and what is alive stays as it is."""
    import torch

    kept = torch.arange(1000, device=subject.device)
    for _ in range(3):
        torch.empty(_BYTES, dtype=torch.uint8, device=subject.device)
        subject.accelerator.empty_cache()
    assert torch.equal(kept.cpu(), torch.arange(1000))


@check("training")
def fragmentation(subject: Subject) -> None:
    """Many blocks of many sizes, freed in another order, keep their values apart."""
    import torch

    blocks = {size: torch.full((size,), float(size), device=subject.device) for size in range(1, 2000, 7)}
    for size in list(blocks)[::3]:
        del blocks[size]
    blocks |= {size: torch.full((size,), float(size), device=subject.device) for size in range(2, 900, 11)}
    for size, block in blocks.items():
        assert bool((block == size).all()), f"a block of {size} elements holds something else"
