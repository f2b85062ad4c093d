"""Every collective of the accelerator's process-group backend gives the right result: on two and on three processes, for each reduction and
dtype, for strided, empty and uneven tensors, in groups, and asynchronously. The values in the tests are chosen so that their
sums and products are exact."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from accelkit_conformance.checks import SIZES, Case, check
from accelkit_conformance.oracle.rank_values import check_equal, reduced_number, tensor_of

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_COLLECTIVES = (
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single",
    "all_to_all_uneven", "all_to_all", "gather", "scatter", "send", "batch_isend_irecv",
)  # fmt: skip
_KINDS = [f"{size},{name}" for size in SIZES for name in _COLLECTIVES]
_DTYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "uint8")


def _reductions() -> Iterator[Case]:
    for size in SIZES:
        for op in ("SUM", "AVG", "MAX", "MIN", "PRODUCT"):
            for dtype in _DTYPES:
                if op != "AVG" or dtype not in ("int64", "int32", "uint8"):
                    yield "distributed", (size, op, dtype)


@check("distributed", requires=["process_group", "dtype.{2}"], over=_reductions, is_distributed=True)
def all_reduce(subject: Subject, size: str, op: str, dtype: str) -> None:
    """Every rank receives the reduction of all ranks' tensors."""
    import torch.distributed as dist

    x = tensor_of(subject, subject.rank + 1, subject.rank + 2, dtype=dtype)
    dist.all_reduce(x, getattr(dist.ReduceOp, op))
    expected = [reduced_number(op, int(size), start) for start in (1, 2)]
    check_equal(subject, x, *expected)


@check("distributed", requires=["process_group"], over=SIZES, is_distributed=True)
def strided_and_empty(subject: Subject, size: str) -> None:
    """``all_reduce`` of a transposed or a 0-d tensor gives the sum, and ``all_reduce`` of an empty tensor raises no error. For a slice,
    ``all_reduce`` and ``broadcast`` either give the right values and change only the elements of the slice, or raise RuntimeError or
    ValueError. If the backend is gloo, slices are not tested."""
    from accelkit_conformance.oracle.collective_programs import check_strided_and_empty

    check_strided_and_empty(subject)


@check("distributed", requires=["process_group"], over=SIZES, is_distributed=True)
def broadcast(subject: Subject, size: str) -> None:
    """For each rank as the source, every rank receives the source's tensor."""
    import torch.distributed as dist

    for source in range(int(size)):
        x = tensor_of(subject, subject.rank, 10 + subject.rank)
        dist.broadcast(x, source)
        check_equal(subject, x, source, 10 + source)


@check("distributed", requires=["process_group"], over=SIZES, is_distributed=True)
def reduce(subject: Subject, size: str) -> None:
    """Each rank in turn is the destination. It receives the sum of all ranks' tensors with SUM, and their average with AVG."""
    import torch.distributed as dist

    for destination in range(int(size)):
        for op in ("SUM", "AVG"):
            x = tensor_of(subject, subject.rank + 1)
            dist.reduce(x, destination, getattr(dist.ReduceOp, op))
            if subject.rank == destination:
                check_equal(subject, x, reduced_number(op, int(size), 1))


@check("distributed", requires=["process_group"], over=SIZES, is_distributed=True)
def all_gather(subject: Subject, size: str) -> None:
    """Every rank receives every rank's tensor, in the order of ranks, both as a list and as one tensor."""
    import torch
    import torch.distributed as dist

    n = int(size)
    expected = [value for rank in range(n) for value in (rank, rank + 100)]
    mine = tensor_of(subject, subject.rank, subject.rank + 100)
    parts = [torch.empty_like(mine) for _ in range(n)]
    dist.all_gather(parts, mine)
    check_equal(subject, torch.stack(parts), *expected)
    whole = torch.empty(2 * n, device=subject.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        dist.all_gather_into_tensor(whole, mine)
    check_equal(subject, whole, *expected)


@check("distributed", requires=["process_group"], over=SIZES, is_distributed=True)
def reduce_scatter(subject: Subject, size: str) -> None:
    """Each rank receives its part of the result of ``reduce_scatter`` with SUM, and of ``reduce_scatter_tensor`` with SUM and with AVG."""
    import torch
    import torch.distributed as dist

    n, rank = int(size), subject.rank
    mine = torch.empty(2, device=subject.device)
    dist.reduce_scatter(mine, [tensor_of(subject, part + rank, part) for part in range(n)])
    check_equal(subject, mine, n * rank + sum(range(n)), n * rank)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        dist.reduce_scatter_tensor(mine, torch.arange(2.0 * n, device=subject.device))
        check_equal(subject, mine, n * 2 * rank, n * (2 * rank + 1))
        dist.reduce_scatter_tensor(mine, torch.arange(2.0 * n, device=subject.device), dist.ReduceOp.AVG)
        check_equal(subject, mine, 2 * rank, 2 * rank + 1)


@check("distributed", requires=["process_group"], over=SIZES, is_distributed=True)
def all_to_all(subject: Subject, size: str) -> None:
    """Part i of rank j's input becomes part j of rank i's output. The inputs are a tensor with equal parts, a tensor with uneven parts, and
    a list of tensors."""
    from accelkit_conformance.oracle.all_to_all import check_all_to_all

    check_all_to_all(subject)


@check("distributed", requires=["process_group"], over=SIZES, is_distributed=True)
def gather_and_scatter(subject: Subject, size: str) -> None:
    """For every root, ``gather`` sends all ranks' tensors to the root, and ``scatter`` sends a different tensor from the root to each
    rank."""
    import torch
    import torch.distributed as dist

    n, rank = int(size), subject.rank
    for root in range(n):
        parts = [torch.empty(1, device=subject.device) for _ in range(n)] if rank == root else None
        dist.gather(tensor_of(subject, rank + 1), parts, dst=root)
        if parts is not None:
            check_equal(subject, torch.cat(parts), *range(1, n + 1))
        mine = torch.empty(1, device=subject.device)
        dist.scatter(mine, [tensor_of(subject, part * 7) for part in range(n)] if rank == root else None, src=root)
        check_equal(subject, mine, rank * 7)


@check("distributed", requires=["process_group"], over=SIZES, is_distributed=True)
def uneven_gather(subject: Subject, size: str) -> None:
    """``all_gather`` of tensors of different lengths gives every rank the values of all tensors, or raises RuntimeError or ValueError."""
    import torch
    import torch.distributed as dist

    n, rank = int(size), subject.rank
    mine = torch.full((rank + 1,), float(rank), device=subject.device)
    parts = [torch.full((source + 1,), -1.0, device=subject.device) for source in range(n)]
    try:
        dist.all_gather(parts, mine)
    except (RuntimeError, ValueError):
        return
    for source, part in enumerate(parts):
        check_equal(subject, part, *[source] * (source + 1))


@check("distributed", requires=["process_group"], over=SIZES, is_distributed=True)
def send_and_receive(subject: Subject, size: str) -> None:
    """In a ring, ``batch_isend_irecv`` sends a tensor from each rank to the next rank. ``send`` and ``recv`` transfer a tensor from rank 0
    to rank 1."""
    import torch
    import torch.distributed as dist

    n, rank = int(size), subject.rank
    mine = torch.empty(2, device=subject.device)
    sent = dist.P2POp(dist.isend, tensor_of(subject, rank, rank + 0.5), (rank + 1) % n)
    for work in dist.batch_isend_irecv([sent, dist.P2POp(dist.irecv, mine, (rank - 1) % n)]):
        work.wait()
    check_equal(subject, mine, (rank - 1) % n, (rank - 1) % n + 0.5)
    if rank == 0:
        dist.send(tensor_of(subject, 42), 1)
    elif rank == 1:
        x = tensor_of(subject, 0)
        dist.recv(x, 0)
        check_equal(subject, x, 42)


@check("distributed", requires=["process_group"], over=SIZES, is_distributed=True)
def asynchronous(subject: Subject, size: str) -> None:
    """After ``wait`` on an asynchronous ``all_reduce``, operators see the result. After the device has been synchronized, the method
    ``is_completed`` of the Work object returns True."""
    import torch.distributed as dist

    n = int(size)
    x = tensor_of(subject, *[subject.rank + 1] * 1000)
    work: Any = dist.all_reduce(x, async_op=True)
    work.wait()
    y = x * 2
    check_equal(subject, y, *[n * (n + 1)] * 1000)
    subject.synchronize()
    assert work.is_completed()


@check("distributed", requires=["process_group"], over=SIZES, is_distributed=True)
def subgroups(subject: Subject, size: str) -> None:
    """``all_reduce`` in a group of two ranks, or of a single rank, sums only the tensors of the ranks in the group."""
    import torch.distributed as dist

    rank = subject.rank
    group = dist.new_group([0, 1])
    alone = [dist.new_group([one]) for one in range(int(size))]
    x = tensor_of(subject, rank + 1)
    if rank < 2:
        dist.all_reduce(x, group=group)
    check_equal(subject, x, 3 if rank < 2 else rank + 1)
    dist.all_reduce(x, group=alone[rank])
    check_equal(subject, x, 3 if rank < 2 else rank + 1)


@check("distributed", requires=["process_group"], over=SIZES, is_distributed=True)
def objects(subject: Subject, size: str) -> None:
    """Every rank gets the objects of all ranks from ``all_gather_object``, and the last rank's object from ``broadcast_object_list``."""
    import torch.distributed as dist

    n, rank = int(size), subject.rank
    found: list[Any] = [None] * n
    dist.all_gather_object(found, {"rank": rank, "text": "x" * (rank + 1)})
    assert found == [{"rank": one, "text": "x" * (one + 1)} for one in range(n)], f"gathered {found}"
    thing: list[Any] = [("from", n - 1)] if rank == n - 1 else [None]
    dist.broadcast_object_list(thing, src=n - 1, device=subject.device)
    assert thing == [("from", n - 1)]


@check("distributed", requires=["process_group"], over=SIZES, is_distributed=True)
def waits_for_queued_work(subject: Subject, size: str) -> None:
    """A collective sees the results of work that was queued on the device earlier, without a synchronization in between."""
    import torch
    import torch.distributed as dist

    x = torch.zeros(256, 256, device=subject.device)
    for _ in range(10):
        x = (x + 1) @ torch.eye(256, device=subject.device)
    dist.all_reduce(x)
    assert bool((x.cpu() == 10 * int(size)).all()), f"the sum is {x[0, 0].item()}, not {10 * int(size)}"


@check("distributed", requires=["process_group"], over=_KINDS, is_distributed=True)
def every_kind_of_tensor(subject: Subject, size: str, collective: str) -> None:
    """A call with contiguous tensors gives the right result if the collective does not reduce and the dtype is not complex64, or if the
    dtype is float32 and the reduction is SUM. Any other call gives the right result or raises an error. Tensors that are only inputs stay
    unchanged, and nothing outside the tensors is written. The calls combine these settings: dtype, length of the first dimension (up to
    65,537), number of dimensions, layout of the tensors that are only inputs, layout of the other tensors, reduction, root, group, and
    whether the call is asynchronous. For any two settings, every valid pair of values occurs in at least one call. The layouts are
    contiguous, with an offset, every second element of a storage, and dimensions in the opposite order in memory. The numbers are negative,
    zero and positive. Averages may have an error of 1 % plus 0.01, and all other results are exact. Except with PRODUCT, the values of
    int64, int32, float64 and float32 tensors have more digits than a dtype of half the size can hold. A sum of bool tensors is true where
    any of them is true. ``all_to_all_uneven`` is ``all_to_all_single`` with parts of different lengths. In some calls, one part of each
    rank is empty. In the others, the first rank sends only empty parts, and the last rank receives only empty parts. The parts in
    ``all_to_all`` have the same lengths as in ``all_to_all_uneven``, unless the backend is gloo. With gloo, all parts have the same length.
    The case ``send`` calls ``send`` and ``recv``, or ``isend`` and ``irecv`` if the call is asynchronous, to transfer a tensor from the
    root to the next rank of the group. If one of these functions rejects a tensor that is not contiguous, the rank calls it again with a
    contiguous tensor. In the case ``batch_isend_irecv``, each rank sends a contiguous tensor to the next rank. Both cases skip groups of
    one rank. With gloo, all tensors are contiguous. Dtypes that the device lacks are left out."""
    from accelkit_conformance.oracle.collective_cases import check_every_case

    check_every_case(subject, collective)


def _programs() -> Iterator[Case]:
    from accelkit_conformance.oracle.collective_programs import CASES

    yield from (("distributed", (size, name)) for size in SIZES for name in CASES)


@check("distributed", requires=["process_group", "dtype.float32"], over=_programs, is_distributed=True)
def programs(subject: Subject, size: str, name: str) -> None:
    """Collectives that only move data keep every bit of infinities, negative zero and the smallest numbers, and NaN stays NaN. Sums of
    infinities and NaN follow IEEE 754. Results are also right when the input of a gathering collective is a part of its output, when
    tensors have several dimensions, when asynchronous calls are awaited in reverse order, and when consecutive calls differ in size, dtype
    or reduction. Several ``all_reduce``, ``all_gather_into_tensor`` or ``reduce_scatter_tensor`` calls that are coalesced into one give the
    right results, in the group of all ranks and in groups of one rank, or raise an error. ``PREMUL_SUM`` gives the sum times its factor, or
    raises an error. Python objects can be gathered, scattered, broadcast and sent. ``group_src`` and ``group_dst`` are ranks within a
    group. Wrong arguments raise an error, and the next ``all_reduce`` is right. ``torch.distributed.nn`` computes the right gradients."""
    from accelkit_conformance.oracle.collective_programs import CASES

    CASES[name](subject)


@check("distributed", requires=["process_group"], over=SIZES, is_distributed=True)
def barrier(subject: Subject, size: str) -> None:
    """No rank leaves a barrier before the last rank has entered it."""
    from accelkit_conformance.oracle.collective_groups import check_barrier

    check_barrier(subject)


def _first_calls() -> Iterator[Case]:
    from accelkit_conformance.oracle.collective_groups import CASES

    yield from (("full", (size, name)) for size in SIZES for name in CASES)


@check("full", requires=["process_group", "numbered_devices"], over=_first_calls, is_distributed=True)
def group_of_a_device(subject: Subject, size: str, name: str) -> None:
    """If ``init_process_group`` is called with ``device_id``, ``all_reduce`` and ``all_gather_object`` give the right results after other
    calls. In the three cases, these calls are a barrier; ``send`` and ``recv`` in a new group of the first and the last rank; and a barrier
    and ``broadcast`` on ranks that use the devices in the opposite order. The results of these calls are right, too. If the device is the
    CPU, nothing is tested."""
    from accelkit_conformance.oracle.collective_groups import check_group_of_device

    check_group_of_device(subject, name)


@check("full", requires=["process_group"], over=SIZES, is_distributed=True)
def groups_are_freed(subject: Subject, size: str) -> None:
    """Creating, using and destroying 30 groups of all ranks, one after another, adds fewer than 20 open files, fewer than 20 threads, less
    than 32 MiB of memory and less than 1 MiB of device memory to the process. Afterwards, collectives in the default group give the right
    results."""
    from accelkit_conformance.oracle.collective_groups import check_groups_are_freed

    check_groups_are_freed(subject)


@check("full", requires=["process_group"], over=SIZES[:1], is_distributed=True, seconds=120)
def timeout(subject: Subject, size: str) -> None:
    """If the other rank does not take part in an ``all_reduce`` in a group with a timeout of two seconds, the rank that waits raises an
    error within 60 seconds, or its process ends. It is a failure if the ``all_reduce`` returns. Each rank tests this in a new process."""
    from accelkit_conformance.oracle.collective_timeout import check_timeout

    check_timeout(subject)


@check("full", requires=["process_group", "dtype.float32"], over=SIZES, is_distributed=True)
def memory_of_inputs(subject: Subject, size: str) -> None:
    """If the input of an asynchronous collective is freed right after the call, or right after ``wait``, and another tensor of the same
    size is then created, the other tensor keeps its values. The results of collectives with a separate output are right. The collectives
    are ``all_reduce``, ``all_gather_into_tensor`` and ``all_to_all_single``. They are called on the current stream and, if the device has
    streams, on another stream. The device of the last rank is busy when the call is made."""
    from accelkit_conformance.oracle.collective_memory import check_memory

    check_memory(subject)
