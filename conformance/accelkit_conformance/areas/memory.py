"""Device memory is counted, is released and does not leak, and a program can continue after an out-of-memory error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from accelkit_conformance.checks import Case, check
from accelkit_conformance.profiles.operators import SMOKE

if TYPE_CHECKING:
    import torch

    from accelkit_conformance.subject import Subject

_BYTES = 8 << 20


def _block(subject: Subject, num_bytes: int = _BYTES) -> torch.Tensor:
    """Return an uninitialised tensor of ``num_bytes`` bytes on the device. Its dtype is float32, which every device supports."""
    import torch

    return torch.empty(num_bytes // 4, dtype=torch.float32, device=subject.device)


@check("smoke", requires=["memory_statistics"])
def allocating_is_counted(subject: Subject) -> None:
    """Creating a tensor of 8 MiB increases the number of allocated bytes by at least 8 MiB and at most 16 MiB, and freeing the tensor
    restores the previous number."""
    before = subject.allocated_before()
    block = _block(subject)
    during = subject.allocated()
    assert during - before >= _BYTES, f"{_BYTES} bytes were allocated, but {during - before:.0f} are counted"
    assert during - before <= 2 * _BYTES, f"{_BYTES} bytes were allocated, but {during - before:.0f} are counted"
    del block
    after = subject.allocated()
    assert after == before, f"{after - before:.0f} bytes stay allocated after the tensor was freed"


@check("smoke", requires=["memory_statistics"])
def views_cost_nothing(subject: Subject) -> None:
    """Views allocate no memory. The memory of their base is freed with the last view, not earlier."""
    import torch

    before = subject.allocated_before()
    base = torch.arange(float(_BYTES // 4), device=subject.device)
    held = subject.allocated()
    view = base[10:20].view(2, 5).t()
    assert subject.allocated() == held, "a view allocated memory"
    del base
    assert subject.allocated() == held, "the memory of the base was freed while a view of it was alive"
    assert view.tolist() == [[10, 15], [11, 16], [12, 17], [13, 18], [14, 19]]
    del view
    assert subject.allocated() == before, "the memory of the base stays allocated after its last view was freed"


@check("smoke", requires=["memory_statistics"])
def peak_is_kept_and_reset(subject: Subject) -> None:
    """Resetting the peak sets it to the number of bytes that are currently allocated. If a tensor of 8 MiB is then created and freed, the
    peak is at least the number of bytes that were allocated while the tensor existed, and at most 16 MiB above the value after the
    reset.
    """

    def peak() -> float:
        return subject.accelerator.memory_stats(subject.device)["memory.peak.bytes"]

    held = _block(subject)
    before = subject.allocated_before()
    subject.accelerator.reset_peak_memory_stats(subject.device)
    assert before >= _BYTES, f"after a reset {before:.0f} bytes are counted as allocated, but a tensor has {_BYTES}"
    assert peak() == before, f"after a reset the peak is {peak():.0f} bytes, but {before:.0f} are allocated"
    block = _block(subject)
    during = subject.allocated()
    del block
    assert peak() >= during, f"the peak is {peak():.0f} bytes, but {during:.0f} were allocated"
    assert peak() - before <= 2 * _BYTES, f"the peak is {peak() - before:.0f} bytes above the start, but {_BYTES} were allocated"
    subject.accelerator.reset_peak_memory_stats(subject.device)
    assert peak() == subject.allocated(), f"after a reset the peak is {peak():.0f} bytes, but {subject.allocated():.0f} are allocated"
    del held


@check("training", requires=["memory_statistics"])
def training_does_not_leak(subject: Subject) -> None:
    """The number of bytes that are allocated after a training step does not grow from the 21st step to the 200th."""
    from accelkit_conformance.oracle.leaking_calls import check_training

    check_training(subject)


@check("smoke", requires=["memory_statistics"])
def memory_is_per_device(subject: Subject) -> None:
    """Creating a tensor on one device does not change the number of allocated bytes of another device."""
    other = subject.second_device()
    subject.allocated_before()
    before = subject.accelerator.memory_stats(other)["memory.allocated.bytes"]
    block = _block(subject)
    after = subject.accelerator.memory_stats(other)["memory.allocated.bytes"]
    assert after == before, f"{block.numel() * 4} bytes on {subject.device} are counted on {other}"


@check("smoke", requires=["memory_statistics"])
def peaks_are_per_device(subject: Subject) -> None:
    """Creating a tensor on a device that is not current increases the peak memory of that device by at least the size of the tensor, and
    does not change the peak memory of the current device. Resetting the peak memory of one device does not change the peak memory of
    another device. After the tensor is freed, a reset restores the peak memory of its device to the value before the tensor was created."""
    import torch

    other = subject.second_device()

    def peaks() -> tuple[float, float]:
        stats = [subject.accelerator.memory_stats(device) for device in (subject.device, other)]
        return stats[0]["memory.peak.bytes"], stats[1]["memory.peak.bytes"]

    subject.allocated_before()  # frees garbage: if it were freed later, the peak would rise from a lower level
    for device in (subject.device, other):
        subject.accelerator.reset_peak_memory_stats(device)
    before = peaks()
    torch.empty(_BYTES // 4, dtype=torch.float32, device=other)
    assert peaks()[1] >= before[1] + _BYTES, (
        f"{_BYTES} bytes were allocated on {other}, but its peak rose from {before[1]:.0f} to {peaks()[1]:.0f}"
    )
    assert peaks()[0] == before[0], f"a tensor on {other} changed the peak of {subject.device} from {before[0]:.0f} to {peaks()[0]:.0f}"
    subject.accelerator.reset_peak_memory_stats(subject.device)
    assert peaks()[1] >= before[1] + _BYTES, f"resetting the peak of {subject.device} changed that of {other}"
    _block(subject)
    subject.accelerator.reset_peak_memory_stats(other)
    assert peaks()[1] == before[1], f"after a reset the peak of {other} is {peaks()[1]:.0f} bytes, not {before[1]:.0f}"
    assert peaks()[0] >= before[0] + _BYTES, f"resetting the peak of {other} changed that of {subject.device}"


@check("smoke", requires=["memory_limit"])
def out_of_memory_is_recoverable(subject: Subject) -> None:
    """Allocating a petabyte raises ``torch.OutOfMemoryError``. Existing tensors keep their values, and the next allocation works. If the
    capability ``memory_statistics`` is declared, two such attempts do not increase the number of allocated bytes or its peak."""
    from accelkit_conformance.oracle.freed_memory import check_failed_allocations

    check_failed_allocations(subject)


@check("smoke", requires=["memory_limit"])
def out_of_memory_in_an_operator(subject: Subject) -> None:
    """An operator whose result does not fit into memory raises ``torch.OutOfMemoryError`` and leaves its inputs unchanged. So does a
    backward pass in which a custom function runs out of memory; it sets no gradient. If the capability ``memory_statistics`` is declared,
    two such calls, whose inputs are then freed, leave no additional bytes allocated."""
    from accelkit_conformance.oracle.freed_memory import check_operators_without_memory

    check_operators_without_memory(subject)


@check("training", requires=["memory_statistics"])
def threads_free_memory(subject: Subject) -> None:
    """In a thread other than the main thread, tensors are created and freed in three rounds. While the thread still runs, the number of
    allocated bytes is not larger after the third round than after the first. The thread then creates one more tensor, and ends. When the
    main thread frees this tensor, the number of allocated bytes decreases by at least the size of the tensor.
    """
    from accelkit_conformance.oracle.freed_memory import check_threads

    check_threads(subject)


@check("training", requires=["memory_statistics"])
def resized_storages(subject: Subject) -> None:
    """``untyped_storage().resize_(0)`` frees the memory of a tensor that still exists. Resizing the storage to its former size of n bytes
    allocates at least n and at most 2n bytes, and the tensor can then be filled and read. If there is a second device, this is also tested
    on this device while the first is current.
    """
    from accelkit_conformance.oracle.freed_memory import check_resized_storages
    from accelkit_conformance.oracle.places import on_each_device

    for one in on_each_device(subject):
        check_resized_storages(one)


@check("training", requires=["memory_statistics"], seconds=240.0)
def varying_shapes_do_not_leak(subject: Subject) -> None:
    """A small model (a convolution, a linear layer and attention) runs forward and backward on sequences of 24 different lengths. The
    number of allocated bytes, counted after ``empty_cache``, grows by less than 1 MiB from the 8th length to the 24th."""
    from accelkit_conformance.oracle.freed_memory import check_varying_shapes

    check_varying_shapes(subject)


@check("smoke")
def free_memory_is_reported(subject: Subject) -> None:
    """``torch.accelerator.get_memory_info`` (since torch 2.10) and ``torch.<device_type>.mem_get_info`` return the free and the total
    memory of the device in bytes. The total does not change, and the free memory is between 0 and the total. Creating a tensor of 32 MiB
    reduces the free memory by at least 32 MiB. One success in five attempts is enough, because other programs may use the device at the
    same time."""
    from accelkit_conformance.oracle.free_memory import check_free_memory

    check_free_memory(subject)


def _operators() -> Iterator[Case]:
    from accelkit_conformance.oracle import opdb

    for name, op in opdb.operators().items():
        if opdb.supports(op, "float32") and not name.startswith("sparse."):
            yield "training" if name in SMOKE else "full", (name,)


def _modules() -> Iterator[Case]:
    from accelkit_conformance.oracle import opdb

    yield from (("full", (name,)) for name in opdb.modules())


@check("training", requires=["memory_statistics", "dtype.float32"], over=_operators)
def operators_leave_nothing(subject: Subject, name: str) -> None:
    """An operator runs forward and backward three times, and the results of each run are freed before the next run. The number of allocated
    bytes is not larger after the third run than after the first run. If an operator outside torch's Core ATen IR raises an error, the check
    passes, because the tests of operators report it."""
    from accelkit_conformance.oracle.freed_memory import check_operator

    check_operator(subject, name)


@check("full", requires=["memory_statistics", "dtype.float32"], over=_modules)
def modules_leave_nothing(subject: Subject, name: str) -> None:
    """A module runs forward and backward four times in training mode, with one of the inputs in torch's ``module_db``, and the results of
    each run are freed before the next run. The number of allocated bytes is not larger after the fourth run than after the second run. If
    the first run raises an error, the check passes, because the tests of modules report it."""
    from accelkit_conformance.oracle.freed_memory import check_module

    check_module(subject, name)


@check("training", requires=["memory_statistics"], over=["matmul", "cat", "view", "add", "select", "layer_norm", "hook"])
def errors_leave_nothing(subject: Subject, name: str) -> None:
    """A call that must fail raises an error. After such a call on large tensors, the number of allocated bytes is at most 64 KiB larger
    than before. The same call is made on small tensors first. The cause of the error is a mismatched shape, an index that is out of range,
    or a tensor's gradient hook that fails."""
    from accelkit_conformance.oracle.freed_memory import check_failed_calls

    check_failed_calls(subject, name)


@check("smoke")
def zero_bytes(subject: Subject) -> None:
    """Tensors without elements can be created, copied to the CPU, summed (the sum is 0) and concatenated with other tensors, and a number
    can be added to them. The results have the right shapes and values."""
    import torch

    empty = torch.empty(0, 3, device=subject.device)
    assert empty.sum().item() == 0
    assert empty.cpu().shape == (0, 3)
    assert torch.cat([empty, torch.ones(1, 3, device=subject.device)]).tolist() == [[1.0] * 3]
    assert (empty + 1).shape == (0, 3)


@check("smoke")
def empty_cache_keeps_tensors(subject: Subject) -> None:
    """After ``empty_cache``, existing tensors keep their values, and new tensors can be created. If the capability ``memory_statistics`` is
    declared, ``empty_cache`` changes neither the number of allocated bytes nor its peak."""
    import torch

    def statistics() -> list[float]:
        stats = subject.accelerator.memory_stats(subject.device) if subject.capabilities.can("memory_statistics") else {}
        return [stats.get(f"memory.{name}.bytes", 0.0) for name in ("allocated", "peak")]

    kept = torch.arange(1000.0, device=subject.device)
    for _ in range(3):
        _block(subject)
        subject.synchronize()
        before = statistics()
        subject.accelerator.empty_cache()
        assert statistics() == before, f"empty_cache changed the allocated bytes and their peak from {before} to {statistics()}"
        _block(subject).fill_(7)  # reuses the memory that empty_cache released
    assert torch.equal(kept.cpu(), torch.arange(1000.0)), "empty_cache changed a tensor"


@check("full", requires=["streams", "pinned_memory"])
def empty_cache_during_work(subject: Subject) -> None:
    """If a tensor is freed while queued work uses it, ``empty_cache`` does not change the results of this work, even if new tensors are
    filled afterwards. This is tested on up to two devices, with work on the current stream and on a new stream of each device.
    ``empty_cache`` is called while each of the devices is current."""
    from accelkit_conformance.oracle.queued_copies import check_empty_cache_during_work

    check_empty_cache_during_work(subject)


@check("training")
def fragmentation(subject: Subject) -> None:
    """Hundreds of tensors of different sizes are created, every third tensor is freed, and more tensors are created. All tensors that then
    exist have the right values."""
    import torch

    blocks = {size: torch.full((size,), float(size), device=subject.device) for size in range(1, 2000, 7)}
    for size in list(blocks)[::3]:
        del blocks[size]
    blocks |= {size: torch.full((size,), float(size), device=subject.device) for size in range(2, 900, 11)}
    for size, block in blocks.items():
        assert bool((block.cpu() == size).all()), f"a tensor of {size} elements changed"


@check("full")
def storages(subject: Subject) -> None:
    """Tensors and storages that grow or shrink keep their first elements. The methods ``fill_``, ``copy_``, ``clone`` and ``cpu`` of a
    storage, ``Tensor.set_``, and the constructor ``torch.UntypedStorage`` read and write the right elements. Storages stay on their device.
    ``copy_`` between two storages with ``non_blocking=True`` gives the right values after the device has been synchronized. If the device
    has pinned memory, this is also true of storages in pinned memory and of ``to(device=..., non_blocking=True)`` of a storage.
    If there is a second device, all this is also true of tensors on this device while the first is current. A function that raises
    NotImplementedError is skipped."""
    from accelkit_conformance.oracle.places import on_each_device
    from accelkit_conformance.oracle.storages import check_storages

    for one in on_each_device(subject):
        check_storages(one)


@check("full", seconds=240.0, over=["numbers", "shapes", "same_calls", "strided_calls"])
def host_memory_does_not_grow(subject: Subject, name: str) -> None:
    """Operators are called in rounds. In each round, either Python numbers that are passed to functions such as ``clip``, ``pow`` and
    ``full`` are new, or the lengths of the tensors that a linear layer, a convolution, attention and a few other operators get (forward and
    backward) are new, or nothing is new. In the last case, about 25 calls take turns, four in each round: ``unique``, ``nonzero``,
    ``sort``, ``multinomial`` and other operators, recurrent and other modules (forward and backward), copies, ``empty_cache``, events,
    streams and pinned memory. After 500 rounds, 1,000 more rounds increase the resident memory of the process by less than 48 MiB. The same
    is true of the device's used memory, if torch reports it. Because other programs may also use this memory, it is enough if it grows by
    less than this in one of six series of 1,000 rounds.

    In the case ``strided_calls``, 60,000 sums and products of transposed and strided views of tiny tensors, or as many as take about five
    seconds, increase the resident memory of the process by less than 1 MiB plus 48 bytes per call. It is enough if this is true of one of
    six such series."""
    from accelkit_conformance.oracle.growing_memory import check_growing_memory

    check_growing_memory(subject, name)


@check("full", requires=["memory_statistics"])
def functions_agree(subject: Subject) -> None:
    """``memory_allocated`` and ``max_memory_allocated`` of the device's module and of ``torch.accelerator`` return what the accelerator's
    ``memory_stats`` counts. The peak includes a tensor of 8 MiB that has been freed. ``memory_reserved`` is at least the allocated memory,
    ``reset_peak_memory_stats`` sets the peak to the allocated memory, and ``empty_cache`` does not change the number of allocated bytes."""
    from accelkit_conformance.oracle.free_memory import check_functions_agree

    check_functions_agree(subject)


@check("full", requires=["memory_statistics"])
def calls_leave_nothing(subject: Subject) -> None:
    """Repeating a call does not increase the amount of allocated memory: each of about 25 calls is made four times, and the number of
    allocated bytes is not larger after the fourth time than after the first. Among the calls are copies between the host and the device,
    assignments, printing, saving and loading, deep copies, generators, hooks, and work on another stream or in another thread. If there is
    a second device, the calls are repeated with tensors on this device while the first is current."""
    from accelkit_conformance.oracle.leaking_calls import check_calls
    from accelkit_conformance.oracle.places import on_each_device

    for one in on_each_device(subject):
        check_calls(one)
