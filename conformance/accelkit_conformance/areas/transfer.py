"""Copies between host and device, and between devices, preserve every bit in every layout. A copy is complete when the call returns or,
with ``non_blocking=True``, after a synchronization."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from accelkit_conformance.areas.operators import names_of
from accelkit_conformance.checks import check
from accelkit_conformance.profiles.operators import DTYPES
from accelkit_conformance.results import NotSupported

if TYPE_CHECKING:
    import torch

    from accelkit_conformance.subject import Subject


def _bits(dtype: str, count: int = 4096) -> torch.Tensor:
    """Return a CPU tensor of ``count`` elements with random bits. Floats include subnormals, and NaNs with payloads.

    If the dtype is bool, the tensor has a fixed pattern instead.
    """
    import torch

    wanted = getattr(torch, dtype)
    if wanted is torch.bool:
        return torch.arange(count) % 3 == 0
    size = torch.empty(0, dtype=wanted).element_size()
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count * size,), dtype=torch.uint8, generator=generator).view(wanted)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    import torch

    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


@check("smoke", requires=["dtype.{0}"], over=DTYPES)
def round_trip(subject: Subject, dtype: str) -> None:
    """A copy from the host to the device and back keeps the dtype and every bit."""
    here = _bits(dtype)
    back = here.to(subject.device).cpu()
    assert back.dtype == here.dtype
    assert _same_bits(here, back), "bits changed on the way"


@check("smoke", requires=["dtype.{0}"], over=["float32", "bfloat16", "int64", "bool"])
def within_the_device(subject: Subject, dtype: str) -> None:
    """``clone`` and ``copy_`` on the device keep every bit. The copies share no memory with the source."""
    here = _bits(dtype)
    there = here.to(subject.device, copy=True)
    clone, target = there.clone(), there.new_empty(there.shape)
    target.copy_(there)
    there.zero_()
    assert _same_bits(clone.cpu(), here), "clone changed bits, or shares memory with its source"
    assert _same_bits(target.cpu(), here), "copy_ changed bits, or shares memory with its source"


@check("smoke")
def strided_copies(subject: Subject) -> None:
    """Each value of a transposed, strided, offset, expanded or permuted tensor keeps its place in each of four copies. ``to`` copies the
    tensor from the CPU to the device. ``copy_`` copies it from the CPU to a contiguous tensor on the device, from the CPU to a strided
    tensor on the device, and from this strided tensor back to a strided tensor on the CPU.
    """
    import torch

    base = torch.arange(60.0).view(5, 12)
    sources = {
        "transposed": base.t(),
        "strided": base[::2, 1::3],
        "offset": base.view(-1)[7:43],
        "expanded": base[0].expand(4, 12),
        "permuted": base.view(3, 4, 5).permute(2, 0, 1),
    }
    for name, source in sources.items():
        assert torch.equal(source.to(subject.device).cpu(), source), f"a copy of a {name} tensor to the device"
        there = torch.zeros(source.shape, device=subject.device)
        there.copy_(source)
        assert torch.equal(there.cpu(), source), f"copy_ of a {name} tensor to the device"
        wide = torch.zeros(source.numel() * 2, device=subject.device)[::2].view(source.shape)
        wide.copy_(source)
        assert torch.equal(wide.cpu(), source), f"copy_ of a {name} tensor into a strided one"
        back = torch.zeros(source.numel() * 2)[::2].view(source.shape)
        back.copy_(wide)
        assert torch.equal(back, source), f"copy_ back of a {name} tensor into a strided one"


def _ways_to_convert(values: torch.Tensor, device: torch.device, dtype: torch.dtype) -> dict[str, Callable[[], torch.Tensor]]:
    """Return a dict from descriptions to functions that copy ``values`` to the device and back, and convert them to ``dtype``.

    The functions differ in where they convert the values: in the copy to the device, on the device, or in the copy back.
    """
    import torch

    name = str(dtype).removeprefix("torch.")
    return {
        f"to(device, {name})": lambda: values.to(device, dtype).cpu(),
        f"to(device).to({name})": lambda: values.to(device).to(dtype).cpu(),
        f"copy_ from the device to {name} on the CPU": lambda: torch.empty(5, dtype=dtype).copy_(values.to(device)),
    }


@check("smoke")
def copies_convert(subject: Subject) -> None:
    """A copy of a float32 tensor to another dtype gives the same values as a conversion on the CPU. This holds whether the values are
    converted in the copy to the device, on the device, or in the copy back. If the accelerator declares nothing about a dtype, a copy to
    this dtype may raise an error instead.
    """
    import torch

    values, names = torch.tensor([0.0, 1.5, -2.5, 127.0, 3.999]), ("float64", "float16", "bfloat16", "int32", "int64", "bool")
    num_compared = 0
    for name in (name for name in names if not subject.lacks(name)):
        expected = values.to(getattr(torch, name))
        for way, copy in _ways_to_convert(values, subject.device, expected.dtype).items():
            try:
                found = copy()
            except Exception:
                if subject.capabilities.can(f"dtype.{name}"):
                    raise
                continue
            num_compared += 1
            assert torch.equal(found, expected), f"{way} gave {found.tolist()}"
    if not num_compared:
        raise NotSupported(f"the device converts float32 to none of {', '.join(names)}")


@check("smoke", over=["to_device", "to_host", "within_a_device"])
def copies_broadcast(subject: Subject, direction: str) -> None:
    """``copy_`` broadcasts its source to a target of up to three dimensions. The source is a 0-d tensor, a row, a column, a matrix, a
    batch of rows or a batch of columns. Every pair of the dtypes float32, float16 and int64 is tested, except pairs with a dtype that is
    declared ``none``. Targets with 1,120 rows or 70,001 elements are also strided or transposed, or have gaps between their rows. Nothing
    outside a target is written.
    """
    from accelkit_conformance.oracle.copy_cases import check_broadcasts

    check_broadcasts(subject, direction)


@check("smoke")
def pageable_sources_may_change(subject: Subject) -> None:
    """After ``to(device, non_blocking=True)`` from unpinned memory, overwriting and freeing the source does not change the copy."""
    import torch

    for _ in range(20):
        source = torch.ones(1 << 18)
        there = source.to(subject.device, non_blocking=True, copy=True)
        source.fill_(9)
        del source
        torch.full((1 << 18,), 5.0)
        assert there.cpu().sum().item() == 1 << 18, "the copy has values that were written to its source afterwards"


@check("smoke")
def reading_back_waits(subject: Subject) -> None:
    """``cpu()`` does not return until the values have arrived. Neither does ``copy_`` with ``non_blocking=False`` to memory that is not
    pinned."""
    import torch

    for _ in range(20):
        there = torch.rand(400, 400, device=subject.device)
        there = (there @ there).fill_(3)
        back = torch.zeros(400, 400)
        back.copy_(there, non_blocking=False)
        assert bool((back == 3).all())
        assert bool((there.cpu() == 3).all())


@check("smoke", requires=["pinned_memory"])
def pinned_copies(subject: Subject) -> None:
    """A copy with ``non_blocking=True`` from pinned memory to the device, or from the device to pinned memory, has the right values after a
    synchronization."""
    import torch

    source = torch.arange(1 << 18, dtype=torch.float32).pin_memory()
    assert source.is_pinned()
    there = source.to(subject.device, non_blocking=True, copy=True)
    subject.synchronize()
    assert torch.equal(there.cpu(), source)
    back = torch.empty(1 << 18).pin_memory()
    back.copy_(there * 2, non_blocking=True)
    subject.synchronize()
    assert torch.equal(back, source * 2)


@check("training", requires=["pinned_memory"], over=["float32", "float64", "bfloat16", "int64"])
def pinned_copies_keep_their_order(subject: Subject, dtype: str) -> None:
    """Two copies with ``non_blocking=True`` are queued on a busy stream: from a tensor on the device to a pinned tensor, and from the
    pinned tensor back to the device. The second copy reads what the first copy wrote. The source, the pinned tensor and the target may be
    strided and may have different dtypes."""
    from accelkit_conformance.oracle.queued_copies import check_order_of_copies

    check_order_of_copies(subject, dtype)


@check("smoke", requires=["pinned_memory"])
def pinned_memory_is_reused_safely(subject: Subject) -> None:
    """Pinned tensors, and results of ``to("cpu", non_blocking=True)``, keep their values when other tensors of these two kinds are freed in
    an arbitrary order. The tensors have several sizes, and some have no elements."""
    import torch

    sizes = (0, 3, 0, 1 << 16, 0, 5)
    blocks = [torch.full((size,), 7.0).pin_memory() for size in sizes]
    blocks += [torch.empty(size, device=subject.device).fill_(7).to("cpu", non_blocking=True) for size in sizes]
    subject.synchronize()
    for index in (0, 4, 2, 9, 6, 1, 8):
        blocks[index] = torch.zeros(1)
    assert all(bool((block == 7).all()) or block.tolist() == [0.0] for block in blocks), "a pinned tensor changed"


@check("full", requires=["pinned_memory"], over=names_of("reused_memory", "WRITERS"))
def reused_memory(subject: Subject, writer: str) -> None:
    """A tensor that is created right after other memory was freed keeps its values, even if queued work still writes to the freed memory.
    The freed memory is that of a result on the device, of the target of a copy from pinned memory to the device, or of a pinned tensor that
    is, as a whole or in part, the target of a queued copy from the device. The new tensors are in pinned memory or on the device. Their
    memory comes from ``pin_memory``, ``empty(pin_memory=True)``, ``full`` with and without ``empty_cache`` before it, ``to`` in both
    directions, ``resize_`` and ``UntypedStorage``. If the device has streams and there is a second device, memory is also freed on the
    second device. A tensor is then copied to the second device on a new stream of the first.
    """
    from accelkit_conformance.oracle.reused_memory import check_reused_memory

    check_reused_memory(subject, writer)


@check("smoke", requires=["pinned_memory"])
def is_pinned(subject: Subject) -> None:
    """``is_pinned`` returns True for pinned tensors and their slices, and False for other tensors on the CPU and for tensors on the
    device."""
    import torch

    assert not torch.ones(3).is_pinned()
    pinned = torch.ones(8).pin_memory()
    assert pinned.is_pinned()
    assert pinned[2:5].is_pinned()
    assert not torch.ones(3, device=subject.device).is_pinned()


@check("smoke", requires=["numbered_devices"])
def between_devices(subject: Subject) -> None:
    """Copies from one device to another and back keep the values of contiguous, transposed and strided tensors; ``to`` with the same device
    returns the tensor itself."""
    import torch

    other = subject.second_device()
    mine = torch.arange(24.0, device=subject.device).view(4, 6)
    for name, source in {"contiguous": mine, "transposed": mine.t(), "strided": mine[:, ::2]}.items():
        theirs = source.to(other)
        assert theirs.device == other
        assert torch.equal(theirs.cpu(), source.cpu()), f"a {name} tensor changed on the way to {other}"
        assert torch.equal(theirs.to(subject.device).cpu(), source.cpu())
    assert mine.to(subject.device) is mine


@check("smoke")
def host_scalars_are_operands(subject: Subject) -> None:
    """If the first or the second operand of an operator is a CPU tensor of shape () and the other operand is on the device, the operator
    uses the value of the CPU tensor. The result is on the device. Both operands and the result are float32.
    """
    import torch

    values = [1.5, -2.0, 4.0]
    x, scalar = torch.tensor(values, device=subject.device), torch.tensor(3.0)
    for name, call, expected in (
        ("scalar - x", lambda: scalar - x, [3.0 - value for value in values]),
        ("x - scalar", lambda: x - scalar, [value - 3.0 for value in values]),
        ("scalar / x", lambda: scalar / x, [3.0 / value for value in values]),
        ("x * scalar", lambda: x * scalar, [3.0 * value for value in values]),
        ("maximum(scalar, x)", lambda: torch.maximum(scalar, x), [max(3.0, value) for value in values]),
        ("where(x > scalar, x, scalar)", lambda: torch.where(x > scalar, x, scalar), [max(3.0, value) for value in values]),
        ("x.clone().sub_(scalar)", lambda: x.clone().sub_(scalar), [value - 3.0 for value in values]),
    ):
        if name.startswith("where") and subject.lacks("bool"):
            continue
        with subject.sample(name, {"name": name}):
            result = call()
            assert result.device == x.device, f"{name} is on {result.device}"
            assert result.dtype == torch.float32, f"{name} has the dtype {result.dtype}"
            assert result.tolist() == expected, f"{name} is {result.tolist()}, not {expected}"


@check("smoke")
def numpy_goes_both_ways(subject: Subject) -> None:
    """A NumPy array can be converted to a tensor on the device. A copy of this tensor on the CPU can be converted back to an equal array.
    Unless the device is the CPU, ``numpy()`` of the tensor on the device raises TypeError or RuntimeError."""
    import numpy as np
    import torch

    from accelkit_conformance.late_errors import raises

    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    there = torch.as_tensor(array, device=subject.device)
    subject.assert_on_device(there)
    assert (there.cpu().numpy() == array).all()
    if subject.device_type != "cpu":
        with raises(subject, TypeError, RuntimeError, doing="numpy() of a device tensor"):
            there.numpy()


@check("training", over=["to_device", "to_host", "within_a_device", "between_devices"])
def every_kind_of_copy(subject: Subject, direction: str) -> None:
    """``copy_`` (also with ``non_blocking=True``) and ``to`` give the same values as on the CPU, write nothing outside their target, and do
    not change their source. The copies differ in source dtype, target dtype, source layout, shape and, for ``copy_``, target layout. For
    any two of these properties, the cases cover every pair of choices: for example, every source dtype with every shape. Only dtypes
    that the device has are used. The copied values include fractions, and large integers that both dtypes represent exactly. Tensors of
    each layout are also copied to tensors with the same dtype, shape and strides. In some layouts, there are gaps between elements or rows;
    the gaps of the source and of the target hold different values. In additional cases, the source or the target is ``conj()`` or
    ``conj().imag`` of a complex64 tensor. In these cases, only the values are checked.
    """
    from accelkit_conformance.oracle.copy_cases import check_every_copy

    check_every_copy(subject, direction)


@check("training")
def large_copies(subject: Subject) -> None:
    """A tensor of 64 MiB, and a tensor of 4 MiB and 52 bytes, keep all values on the way to the device and back."""
    import torch

    for count in (16 << 20, (1 << 20) + 13):
        here = torch.arange(float(count))
        assert torch.equal(here.to(subject.device).cpu(), here), f"{count} float32"
