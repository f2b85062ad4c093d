"""Entry point of the processes that ``spawn_launcher`` starts. Each process runs the task, and writes its error if it fails. Rank 0 writes
the result."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import accelkit
from accelkit import job_secret
from accelkit.errors import UnsupportedError
from accelkit.launching import failures, worker_main
from accelkit.launching.job import HERE, torchrun_variables
from accelkit.pytree import tree_leaves, tree_map

RESULT_FILE = "result"
SAFE_PATH = "PYTHONSAFEPATH"


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """The function that every process runs, with its arguments.

    Attributes:
        function: The function, which is called with the process's Runtime as the first argument.
        arguments: The other arguments of the function.
        runtime: The arguments of the Runtime.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    runtime: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """The rank of a process, and the settings that the process receives from its parent.

    Attributes:
        index, count: The rank of the process, and the number of processes.
        folder: The folder to which the process writes its error. Rank 0 writes the result to ``folder.parent``.
        threads: The number of threads for torch. None leaves torch's default.
        safe_path: The user's PYTHONSAFEPATH, or None if it was not set. The process is started with PYTHONSAFEPATH=1 and then sets
            the variable to this value, so that its own child processes inherit the user's value.
    """

    index: int
    count: int
    folder: Path
    threads: int | None
    safe_path: str | None


def main(task: Task | bytes, place: Place, receiving: Connection) -> None:
    """Wait for ``(port, run id, secret)`` from the parent, and run the task, which is pickled unless this process is a fork."""
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C then reaches only the parent, which ends this process and its children
    signal.signal(signal.SIGINT, signal.default_int_handler)
    set_safe_path(place.safe_path)
    try:
        _work(task, place, receiving)
    except BaseException as error:
        code = error.code if isinstance(error, SystemExit) else 1
        code = code if isinstance(code, int) else int(code is not None)
        if code:
            worker_main.write_error(str(place.folder / failures.ERROR_FILE), error, worker_main.without_launcher(error.__traceback__), code)
        sys.exit(code)


def set_safe_path(value: str | None) -> None:
    """Set PYTHONSAFEPATH to ``value``, or unset it if ``value`` is None.

    If PYTHONSAFEPATH is set, new Python processes do not add the current directory or the folder of the script to ``sys.path``.
    """
    if value is None:
        os.environ.pop(SAFE_PATH, None)
    else:
        os.environ[SAFE_PATH] = value


def _work(given: Task | bytes, place: Place, receiving: Connection) -> None:
    port, run_id, secret = receiving.recv()
    os.environ.update(_variables(place, port, run_id) | {job_secret.VARIABLE: secret})
    import torch

    if place.threads is not None:
        torch.set_num_threads(place.threads)
    task: Task = pickle.loads(given) if isinstance(given, bytes) else given  # noqa: S301 # from the parent process, as an argument
    objects = modules_and_optimizers(task.arguments)
    with accelkit.Runtime(**task.runtime) as runtime:
        returned = on_host(task.function(runtime, *task.arguments))
        states = states_of(objects)
    if place.index == 0:
        _leave({"returned": returned, "states": states}, task, place)


def _leave(result: dict[str, Any], task: Task, place: Place) -> None:
    try:
        data = pickle.dumps(result)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UnsupportedError(
            f"the return value of {task.function.__name__} on rank 0 cannot be sent to the parent process",
            why=str(error),
            hint="return tensors, numbers, strings or containers of these",
        ) from error
    (place.folder.parent / RESULT_FILE).write_bytes(data)


def _variables(place: Place, port: int, run_id: str) -> dict[str, str]:
    return torchrun_variables(
        rank=place.index,
        world_size=place.count,
        local_rank=place.index,
        local_world_size=place.count,
        group_rank=0,
        group_world_size=1,
        main_address=HERE,
        main_port=port,
        run_id=run_id,
        restart_count=0,
        max_restarts=0,
        uses_agent_store=True,
    )


# -- what comes back to the parent ----------------------------------------------------------------------------------------


def modules_and_optimizers(arguments: Sequence[Any]) -> list[Any]:
    """Return the modules and optimizers in a function's arguments, each once and in the same order on every process.

    Containers such as lists and dicts are searched too.
    """
    import torch

    found: list[Any] = []
    for leaf in tree_leaves(list(arguments)):
        if isinstance(leaf, torch.nn.Module | torch.optim.Optimizer) and not any(leaf is other for other in found):
            found.append(leaf)
    return found


def states_of(objects: Sequence[Any]) -> list[Any]:
    """Return each object's ``state_dict()``, copied to the CPU. All processes must call this, because sharded tensors are gathered."""
    return [on_host(thing.state_dict()) for thing in objects]


def load_states(objects: Sequence[Any], kept: Sequence[Any]) -> None:
    """Load into each object the state at the same position in ``kept``."""
    for thing, state in zip(objects, kept, strict=True):
        thing.load_state_dict(state)


def on_host(data: Any) -> Any:
    """Return ``data`` with each tensor replaced by a copy on the CPU without autograd history. Sharded tensors are gathered first."""
    import torch

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        whole = leaf.full_tensor() if hasattr(leaf, "full_tensor") else leaf
        return whole.detach().cpu().clone()

    return tree_map(move, data)
