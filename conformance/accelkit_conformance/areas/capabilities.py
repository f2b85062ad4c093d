"""A capability that is declared ``native`` or ``emulated`` works. A capability that is declared ``none`` does not work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelkit_conformance.checks import check
from accelkit_conformance.late_errors import raises
from accelkit_conformance.profiles.operators import DTYPES
from accelkit_conformance.results import Absent

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_ALL_DTYPES = (*DTYPES, "uint16", "uint32", "uint64")


@check("smoke", over=_ALL_DTYPES, probes="dtype.{0}")
def dtype(subject: Subject, name: str) -> None:
    """A tensor of the tested dtype keeps its values when it is copied to the device and back. On the device, adding two tensors (for bool:
    combining them with bitwise or) and multiplying them give the exact results, and the sum has the tested dtype. If the device supports
    the dtype bool, a tensor also equals its clone when compared with ``==``.
    """
    import torch

    wanted = getattr(torch, name)
    here = torch.tensor([1, 0, 1, 1], dtype=torch.int64).to(wanted)
    there = here.to(subject.device)
    subject.assert_on_device(there)
    assert there.dtype == wanted
    assert torch.equal(there.cpu(), here), "a copy to the device and back changed the values"
    total = there | there if wanted is torch.bool else there + there
    assert total.dtype == wanted
    assert total.cpu().to(torch.float64 if not wanted.is_complex else torch.complex128).real.tolist() == (
        [1, 0, 1, 1] if wanted is torch.bool else [2, 0, 2, 2]
    )
    assert (there * there).cpu().tolist() == here.tolist()
    if not subject.lacks("bool"):
        assert (there == there.clone()).cpu().all().item()


@check("smoke", over=["float16", "bfloat16"], probes="autocast.{0}")
def autocast(subject: Subject, name: str) -> None:
    """Under ``torch.autocast`` to float16 or bfloat16, the result of a matmul of float32 tensors has this dtype and the right values."""
    import torch

    x = torch.ones(4, 4, device=subject.device)
    with torch.autocast(subject.accelerator.autocast_device_type, dtype=getattr(torch, name)):
        result = x @ x
    if result.dtype == torch.float32:
        raise Absent(f"autocast to {name} gave {result.dtype}")
    assert result.dtype == getattr(torch, name), f"autocast to {name} gave {result.dtype}"
    assert result.float().tolist() == [[4.0] * 4] * 4


@check("smoke", probes="streams")
def streams(subject: Subject) -> None:
    """A stream can be created, entered and synchronized, and work that is queued on the stream gives the right result."""
    import torch

    from accelkit_conformance.oracle.device_streams import make_stream, on_stream

    stream = make_stream(subject)
    with on_stream(subject, stream):
        x = torch.ones(4, device=subject.device) + 1
    stream.synchronize()
    assert x.tolist() == [2.0] * 4


@check("smoke", probes="events")
def events(subject: Subject) -> None:
    """An event can be recorded and synchronized, and its ``query()`` then returns True."""
    from accelkit_conformance.oracle.device_streams import make_event

    event = make_event(subject)
    event.record()
    event.synchronize()
    assert event.query()


@check("smoke", probes="memory_statistics")
def memory_statistics(subject: Subject) -> None:
    """Creating a tensor increases the number of allocated bytes by at least the size of the tensor."""
    import torch

    before = subject.allocated_before()
    x = torch.ones(1 << 20, device=subject.device)
    assert subject.allocated() - before >= x.numel() * 4


@check("smoke", probes="memory_limit")
def memory_limit(subject: Subject) -> None:
    """Allocating a petabyte raises ``torch.OutOfMemoryError``."""
    import torch

    with raises(subject, torch.OutOfMemoryError, doing="allocating a petabyte", may_be_absent=True):
        torch.empty(1 << 48, dtype=torch.float32, device=subject.device)


@check("smoke", probes="pinned_memory")
def pinned_memory(subject: Subject) -> None:
    """``Tensor.pin_memory`` returns a pinned tensor with the same values. Copying this tensor to the device with
    ``non_blocking=True`` preserves the values."""
    import torch

    x = torch.arange(8.0).pin_memory()
    assert x.is_pinned()
    assert x.tolist() == list(range(8))
    assert x.to(subject.device, non_blocking=True).cpu().tolist() == list(range(8))


@check("smoke", probes="random_state")
def random_state(subject: Subject) -> None:
    """The random state of the device can be read and set. If the state is read before numbers are drawn, and is set again afterwards, the
    device draws the same numbers again."""
    import torch

    state = subject.accelerator.get_rng_state(subject.device)
    if state is None:
        raise Absent("there is no random state")
    first = torch.rand(4, device=subject.device)
    subject.accelerator.set_rng_state(state, subject.device)
    again = torch.rand(4, device=subject.device)
    assert torch.equal(again.cpu(), first.cpu()), "draws after setting the state differ from those before"


@check("smoke", probes="numbered_devices")
def numbered_devices(subject: Subject) -> None:
    """A tensor that is created on device 0 has the device index 0. If a tensor is created on device 99, which
    does not exist, and is copied to the CPU, RuntimeError or AssertionError is raised."""
    import torch

    if torch.empty(1, device=torch.device(subject.device_type, 0)).device.index != 0:
        raise Absent("the device of a tensor on device 0 has another index")
    with raises(subject, RuntimeError, AssertionError, doing=f"torch.ones on {subject.device_type}:99"):
        torch.ones(1, device=torch.device(subject.device_type, 99)).cpu()  # a lazy device creates the tensor when it is read


@check("smoke", probes="subnormals")
def subnormals(subject: Subject) -> None:
    """A float32 number below the smallest normal number is not flushed to zero when it is multiplied by 1."""
    import torch

    x = torch.tensor([1e-40], device=subject.device)
    if (x * 1.0).item() == 0.0:
        raise Absent("they are flushed to zero")


@check("smoke", probes="deterministic")
def deterministic(subject: Subject) -> None:
    """With ``torch.use_deterministic_algorithms(True)``, two runs of ``index_add`` on the same tensors give equal results."""
    import torch

    subject.needs("int64")
    torch.use_deterministic_algorithms(True)
    index = (torch.arange(4096) % 7).to(subject.device)
    values = torch.randn(4096, device=subject.device)
    first, second = (torch.zeros(7, device=subject.device).index_add(0, index, values) for _ in range(2))
    assert torch.equal(first.cpu(), second.cpu()), "two runs differ"


@check("training", probes="profiler")
def profiler(subject: Subject) -> None:
    """When a matmul runs on the device, ``torch.profiler`` records at least one kernel or copy on the device."""
    import torch

    from accelkit_conformance.oracle.recordings import device_work, record

    x = torch.ones(64, 64, device=subject.device)
    if not device_work(record(subject, lambda: x @ x)):
        raise Absent("torch.profiler records no work of the device")


@check("training", probes="profiler_memory")
def profiler_memory(subject: Subject) -> None:
    """With ``profile_memory=True``, ``torch.profiler`` records an allocation or a deallocation on the device while a tensor is created and
    freed."""
    import torch

    from accelkit_conformance.oracle.recordings import allocations, record

    recorded = record(subject, lambda: torch.empty(1 << 20, device=subject.device), profile_memory=True)
    if not any(size > 0 for size in allocations(subject, recorded)):
        raise Absent("torch.profiler records no allocation on the device")


@check("training", probes="compile", seconds=120)
def compile(subject: Subject) -> None:  # named after the capability
    """A function that ``torch.compile`` compiled with the accelerator's backend gives the right values."""
    import torch

    compiled = torch.compile(lambda x: (x * 2).relu(), backend=subject.accelerator.compile_backend or "inductor")
    assert compiled(torch.ones(3, device=subject.device)).tolist() == [2.0] * 3


@check("smoke", probes="graphs")
def graphs(subject: Subject) -> None:
    """A multiplication can be captured in a graph. If its input is then overwritten, replaying the graph gives the result for the new
    input."""
    import torch

    make = getattr(subject.module, "Graph", None) or getattr(subject.module, f"{subject.device_type.upper()}Graph", None)
    if make is None:
        raise NotImplementedError(f"torch.{subject.device_type} has no graphs")
    x = torch.ones(4, device=subject.device)
    graph = make()
    with subject.function("graph")(graph):
        y = x * 2
    x.fill_(5)
    graph.replay()
    assert y.tolist() == [10.0] * 4


@check("smoke", probes="fp8")
def fp8(subject: Subject) -> None:
    """A scaled matmul of float8 operands gives their product."""
    import torch

    a = torch.ones(16, 32, device=subject.device).to(torch.float8_e4m3fn)
    b = torch.ones(16, 32, device=subject.device).to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=subject.device)
    product = torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.float32 if subject.lacks("bfloat16") else torch.bfloat16)
    assert bool((product.cpu() == 32).all())


@check("distributed", probes="process_group", over=["2"], is_distributed=True)
def process_group(subject: Subject, size: str) -> None:
    """In a process group that uses the accelerator's backend, ``all_reduce`` computes the sum of the tensors of all ranks. The tensors are
    on the device."""
    import torch
    import torch.distributed as dist

    x = torch.ones(4, device=subject.device)
    dist.all_reduce(x)
    assert x.tolist() == [float(size)] * 4
