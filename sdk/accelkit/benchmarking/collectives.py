"""Measurements of collectives between processes with one device each. The processes are started once, for all measurements."""

from __future__ import annotations

import contextlib
import functools
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from accelkit.benchmarking.case import Case, NotSupportedError, Target, reason_of, size_as_text
from accelkit.benchmarking.timing import FULL, QUICK, Plan
from accelkit.errors import AccelkitError

if TYPE_CHECKING:
    import torch

    from accelkit import Runtime

_KIB, _MIB = 1 << 10, 1 << 20
_QUICK, _FULL = (4 * _KIB, _MIB), (4 * _KIB, 64 * _KIB, _MIB, 16 * _MIB)
_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
_TIMEOUT = 120.0
_Outcomes = Mapping[tuple[str, int], Sequence[float] | str]


def cases(is_quick: bool, accelerator: str, ranks: int, seconds: float) -> list[Case]:
    """Return a case for each collective and size. The first case to run starts the processes, which make the measurements of all cases.

    The cases must run in the main thread, because the time limit uses SIGALRM.

    Args:
        is_quick: Whether to measure only small sizes, and for a short time.
        accelerator: The accelerator, as in ``Runtime``.
        ranks: The number of processes.
        seconds: The time limit for all measurements together. If it is exceeded, the processes are ended and every case raises
            NotSupportedError.
    """
    sizes, plan = (_QUICK, QUICK) if is_quick else (_FULL, FULL)
    outcomes = functools.cache(functools.partial(_outcomes, accelerator, ranks, sizes, plan, seconds))
    return [
        Case(
            f"collective.{kind}.{ranks}_ranks.{size_as_text(size)}",
            "GB/s",
            needs=("process_group",),
            measure=functools.partial(_look_up, outcomes, kind, size),
            runs_on_cpu=False,
        )
        for kind in _KINDS
        for size in sizes
    ]


def _look_up(outcomes: Callable[[], _Outcomes], kind: str, size: int, target: Target, plan: Plan) -> list[float]:
    found = outcomes()[kind, size]
    if isinstance(found, str):
        raise NotSupportedError(found)
    return list(found)


def _outcomes(accelerator: str, ranks: int, sizes: Sequence[int], plan: Plan, seconds: float) -> _Outcomes:
    """Return, for each collective and size, the samples in GB/s, or the reason why there are no samples."""
    from accelkit.launching import spawn_launcher
    from accelkit.specs.process_group import ProcessGroupOptions

    options = {"process_group": ProcessGroupOptions(timeout=_TIMEOUT)}
    try:
        with _time_limit(seconds):
            found: _Outcomes = spawn_launcher.launch(_measure, sizes, plan, accelerator=accelerator, devices=ranks, runtime=options)
    except (AccelkitError, TimeoutError) as error:  # there is only one device, or the processes cannot share it or reach each other
        text = f"{error.what}: {error.why}" if isinstance(error, AccelkitError) else str(error)
        reason = " ".join(f"{ranks} processes: {text}".split())[:300]
        found = dict.fromkeys([(kind, size) for kind in _KINDS for size in sizes], reason)
    return found


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise a TimeoutError inside the block if the block takes longer than ``seconds``. Call this only in the main thread."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"they took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _measure(runtime: Runtime, sizes: Sequence[int], plan: Plan) -> _Outcomes:
    """Measure the collectives. Every process runs this function, so that all processes make the same calls."""
    outcomes: dict[tuple[str, int], Sequence[float] | str] = {}
    for size in sizes:
        num_bytes, calls = _calls(runtime.device, runtime.num_processes, size)
        for kind, call in calls.items():
            try:
                outcomes[kind, size] = [num_bytes / seconds / 1e9 for seconds in _seconds(call, runtime.synchronize, plan)]
            except Exception as error:  # a backend may lack a collective
                outcomes[kind, size] = reason_of(error)
    return outcomes


def _calls(device: torch.device, ranks: int, size: int) -> tuple[int, dict[str, Callable[[], object]]]:
    """Return the size of the tensor in bytes, and a dictionary from the name of each collective to a function that calls it.

    The tensor consists of equal parts of float32 elements, one part for each process. Its size is therefore ``size``, rounded down to a
    multiple of ``4 * ranks`` bytes. If the result would be 0, each part has one element. In all_gather and reduce_scatter, this
    tensor contains the parts of all processes.
    """
    import torch
    import torch.distributed as dist

    part = torch.zeros(max(1, size // 4 // ranks), device=device)
    whole = torch.zeros(len(part) * ranks, device=device)
    return whole.nbytes, {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
    }


def _seconds(call: Callable[[], object], synchronize: Callable[[], None], plan: Plan) -> list[float]:
    """Measure a collective several times. Return the results of the measurements, in seconds per call.

    Each call is a collective, so all processes must make the same number of calls. This number is computed from the results of
    ``_sample``, which are the same in every process.
    """
    call()
    once = _sample(call, synchronize, 1)
    repeat = max(1, min(1000, round(plan.round_seconds / once)))
    once = _sample(call, synchronize, repeat)
    rounds = max(3, min(plan.rounds, int(plan.most_seconds / 10 / (once * repeat))))
    return [_sample(call, synchronize, repeat) for _ in range(rounds)]


def _sample(call: Callable[[], object], synchronize: Callable[[], None], repeat: int) -> float:
    """Make ``repeat`` calls, and return the mean time per call on the slowest process, in seconds.

    Each sample ends with an all_reduce, so all processes begin the next sample at about the same time.
    """
    import torch
    import torch.distributed as dist

    synchronize()
    begin = time.perf_counter()
    for _ in range(repeat):
        call()
    synchronize()
    slowest = torch.tensor((time.perf_counter() - begin) / repeat, dtype=torch.float64, device=torch.empty(0).device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.item()
