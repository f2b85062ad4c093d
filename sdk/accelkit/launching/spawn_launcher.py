"""Start the processes of a job from Python: from a script, an interactive session or a notebook."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Literal

from accelkit import child_processes, job_secret
from accelkit.discovery import device_table
from accelkit.errors import AccelkitError, ContradictionError, RankFailedError, UnsupportedError
from accelkit.launching import device_allocation, failures, process_tree, spawn_worker
from accelkit.launching.failures import Ending
from accelkit.launching.spawn_worker import Place, Task
from accelkit.selection import Devices
from accelkit.specs.accelerator import Accelerator

StartMethod = Literal["spawn", "fork"]

_POLL_SECONDS = 0.1
_GRACE_SECONDS = 10.0


def launch(
    function: Callable[..., Any],
    *arguments: Any,
    accelerator: str | Accelerator | None = None,
    devices: Devices | None = None,
    runtime: Mapping[str, Any] | None = None,
    start_method: StartMethod | None = None,
) -> Any:
    """Run ``function(runtime, *arguments)`` in new processes on this machine, one for each device, and wait for them.

    Each process has its own Runtime and copies of the arguments. When ``launch`` returns, the modules and optimizers among the arguments
    have rank 0's weights and state.

    Args:
        function: The function that is called in every process, with the process's Runtime as the first argument.
        arguments: The other arguments of the function.
        accelerator, devices: The accelerator and devices, as in ``Runtime``. If neither ``devices`` nor the environment variable
            ACCELKIT_DEVICES specifies devices, all devices are used.
        runtime: Further arguments for each process's ``Runtime``.
        start_method: The method that starts the processes. ``spawn`` starts new interpreters, and uses pickle to send the function and its
            arguments to them. ``fork`` copies this process, and is the default for functions that exist only in a notebook or an
            interactive session.

    Returns:
        The function's return value on rank 0, with tensors on the CPU. The value must be picklable.

    Raises:
        RankFailedError: If a process failed. The error has the traceback of the process that failed first. No process is left running.
        UnsupportedError: If the function or its arguments cannot be sent to another process, or this process cannot be forked.
        ContradictionError: If a launcher started this process, or if a new process calls ``launch`` while it imports the program, because
            ``if __name__ == "__main__":`` is missing.
        AccelkitError: If the accelerator or its devices cannot be used.
    """
    _refuse_nesting()
    choice = device_allocation.choose(accelerator, devices)
    method = start_method or _start_method(function)
    told = choice.name if isinstance(accelerator, str | None) else accelerator
    task = Task(function, arguments, {**(runtime or {}), "accelerator": told, "devices": choice.spelled})
    if method == "fork":
        _refuse_fork(choice.accelerator)
    given = task if method == "fork" else _pickled(task)
    with tempfile.TemporaryDirectory(prefix="accelkit-launch-") as folder:
        _run(given, len(choice.device_indices), method, Path(folder))
        result = pickle.loads((Path(folder) / spawn_worker.RESULT_FILE).read_bytes())  # noqa: S301 # only this user has access to the folder
    spawn_worker.load_states(spawn_worker.modules_and_optimizers(arguments), result["states"])
    return result["returned"]


def _run(task: Task | bytes, count: int, method: StartMethod, folder: Path) -> None:
    from accelkit.launching.rendezvous import local_store

    context: Any = multiprocessing.get_context(method)
    threads = device_allocation.threads_each(count)
    if threads and method == "fork":
        threads = 1  # the threads of GNU OpenMP do not survive a fork; with more than one, the child would wait for them
    endings: list[Ending] = []
    processes: list[Any] = []
    ends: list[Any] = []
    number = signal.SIGTERM
    try:
        for index in range(count):
            receiving, sending = context.Pipe(duplex=False)
            place = Place(index, count, folder / f"rank-{index}", threads, os.environ.get(spawn_worker.SAFE_PATH))
            place.folder.mkdir()
            process = context.Process(target=spawn_worker.main, args=(task, place, receiving))
            child_processes.guard.ready()
            _start(process)
            child_processes.guard.add(process.pid)
            receiving.close()
            endings.append(Ending(index, place.folder))
            processes.append(process)
            ends.append(sending)
        store = local_store()  # created after the forks, because the store has a thread
        told = (store.port, uuid.uuid4().hex, os.environ.get(job_secret.VARIABLE) or job_secret.new())
        for sending in ends:
            with contextlib.suppress(BrokenPipeError):  # the process has already ended; handled below
                sending.send(told)
        _watch(processes, endings)
    except KeyboardInterrupt:
        number = signal.SIGINT
        raise
    finally:
        _end(processes, endings, number)
        for sending in ends:
            sending.close()
    cause = failures.first(endings)
    if cause is not None:
        raise _failure(cause, endings, method)


def _start(process: Any) -> None:
    """Start a process with PYTHONSAFEPATH set.

    If the process is not forked, it runs in a new Python interpreter. multiprocessing then also starts an interpreter for its resource
    tracker, unless the tracker is already running. PYTHONSAFEPATH keeps both interpreters from importing modules from the current
    directory. The process can import such modules only after it has received the ``sys.path`` of this process.
    """
    before = os.environ.get(spawn_worker.SAFE_PATH)
    spawn_worker.set_safe_path("1")
    try:
        process.start()
    finally:
        spawn_worker.set_safe_path(before)


def _watch(processes: list[Any], endings: list[Ending]) -> None:
    """Wait until every process has ended or one process has failed, and record in ``endings`` which processes ended, and how.

    After a failure, wait up to ``failures.PEER_SECONDS`` longer while ``failures.is_waiting_for_lost_peer(endings)`` returns True: the
    process that caused the failure may not have ended yet.
    """
    deadline = math.inf
    while any(ending.exit_code is None for ending in endings) and time.monotonic() < deadline:
        wait([p.sentinel for p, ending in zip(processes, endings, strict=True) if ending.exit_code is None], timeout=_POLL_SECONDS)
        for process, ending in zip(processes, endings, strict=True):
            if ending.exit_code is None and process.exitcode is not None:
                ending.exit_code, ending.at = process.exitcode, time.time()
        if any(ending.exit_code for ending in endings):
            if not failures.is_waiting_for_lost_peer(endings):
                return
            deadline = min(deadline, time.monotonic() + failures.PEER_SECONDS)


def _end(processes: list[Any], endings: list[Ending], number: signal.Signals) -> None:
    began = time.time()
    started = [child for process in processes for child in process_tree.descendants(process.pid)]
    for process, ending in zip(processes, endings, strict=False):
        if process.exitcode is None:
            ending.sent = number
            os.kill(process.pid, number)
    deadline = time.monotonic() + _GRACE_SECONDS
    for process, ending in zip(processes, endings, strict=False):
        process.join(max(0.0, deadline - time.monotonic()))
        if process.exitcode is None:
            ending.sent = signal.SIGKILL
            process.kill()
            process.join(_GRACE_SECONDS)
        child_processes.end_group(process.pid)
    process_tree.end(started)
    for process, ending in zip(processes, endings, strict=False):
        if ending.exit_code is None:
            ending.exit_code, ending.at = process.exitcode, time.time()
        ending.read(began)


def _failure(cause: Ending, endings: list[Ending], method: StartMethod) -> AccelkitError:
    is_unguarded = cause.record is None and cause.exit_code == 1 and method == "spawn"
    hint = "if the program's file starts work at import, put that code under `if __name__ == '__main__':`" if is_unguarded else ""
    return RankFailedError(f"rank {cause.rank} failed first: {cause}", why=failures.describe(endings, cause).strip(), hint=hint)


# -- checks before starting -----------------------------------------------------------------------------------------------


def _refuse_nesting() -> None:
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ContradictionError(
            "processes cannot be started while this process is still starting",
            why="each new process imports the program's file first, and the file starts processes again",
            hint="put the program's main code under `if __name__ == '__main__':`",
        )
    size = os.environ.get("WORLD_SIZE", "1")
    if size != "1":
        raise ContradictionError(
            f"this process is already one of several (WORLD_SIZE={size})",
            why="a launcher started it, and each of the processes would start the whole job again",
            hint="call the function directly, or start the program with python",
        )


def _start_method(function: Callable[..., Any]) -> StartMethod:
    main = sys.modules["__main__"]
    is_interactive = getattr(main, "__spec__", None) is None and not os.path.exists(getattr(main, "__file__", ""))
    return "fork" if is_interactive and getattr(function, "__module__", "") == "__main__" else "spawn"


def _refuse_fork(accelerator: Accelerator) -> None:
    if "fork" not in multiprocessing.get_all_start_methods():
        raise UnsupportedError(f"fork is not supported on {sys.platform}", hint="define the function in a module and import it")
    if accelerator.device_type == device_table.host_name():
        return
    is_initialized = getattr(accelerator.device_module, "is_initialized", bool)
    if is_initialized():
        raise UnsupportedError(
            f"this process has already used {accelerator.name} and can no longer be forked",
            plugin=accelerator.plugin,
            why="the state of a driver does not survive a fork",
            hint="restart the kernel and launch before the device is used, or define the function in a module and import it",
        )


def _pickled(task: Task) -> bytes:
    try:
        return pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        name = getattr(task.function, "__qualname__", repr(task.function))
        raise UnsupportedError(
            f"{name} or its arguments cannot be sent to other processes",
            why=str(error),
            hint="define the function at the top level of a module, and pass only arguments that pickle supports",
        ) from error
