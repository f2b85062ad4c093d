"""Which process of the job this is, and what only some of them do. No process waits for another here."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, ParamSpec, Self, TypeVar, overload

from accelkit.errors import UnsupportedError
from accelkit.runtime.data.partition import share_of
from accelkit.specs.cluster import ClusterEnvironment

T = TypeVar("T")
P = ParamSpec("P")


class ThisProcess:
    """The part of a Runtime that is about this process's place. Names and behaviour are Accelerate's.

    The environment is read once: these are asked in training loops.
    """

    cluster: ClusterEnvironment

    @functools.cached_property
    def num_processes(self) -> int:
        """Number of processes of the job."""
        return self.cluster.world_size

    @functools.cached_property
    def process_index(self) -> int:
        """This process's rank in the job."""
        return self.cluster.global_rank

    @functools.cached_property
    def local_process_index(self) -> int:
        """This process's rank on its machine."""
        return self.cluster.local_rank

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """What it prepared can be pickled; a Runtime cannot.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(
            "a Runtime cannot be pickled",
            why="it stands for this process: its device, its process group and its place in the job",
            hint="pickle rt.state or what rt prepared, and make a Runtime in the other process; rt.launch(function) gives each its own",
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Itself, so that a copy of what holds a Runtime (a callback, a dataset) works with the same one."""
        return self

    @property
    def is_main_process(self) -> bool:
        """Whether this is the job's first process."""
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is its machine's first process."""
        return self.local_process_index == 0

    @property
    def is_last_process(self) -> bool:
        """Whether this is the job's last process."""
        return self.process_index == self.num_processes - 1

    def print(self, *args: Any, **kwargs: Any) -> None:
        """``print``, once per machine: on its main process only."""
        if self.is_local_main_process:
            print(*args, **kwargs)  # noqa: T201 # this is what it is for

    @overload
    def on_main_process(self, function: Callable[P, T]) -> Callable[P, T | None]: ...
    @overload
    def on_main_process(self, function: None = None) -> Callable[[Callable[P, T]], Callable[P, T | None]]: ...
    def on_main_process(self, function: Any = None) -> Any:
        """A decorator, with parentheses or without: the function runs on the main process only, and returns None elsewhere."""
        return self.on_main_process if function is None else _only_if(lambda: self.is_main_process, function)

    @overload
    def on_local_main_process(self, function: Callable[P, T]) -> Callable[P, T | None]: ...
    @overload
    def on_local_main_process(self, function: None = None) -> Callable[[Callable[P, T]], Callable[P, T | None]]: ...
    def on_local_main_process(self, function: Any = None) -> Any:
        """A decorator, with parentheses or without: the function runs on each machine's main process only, and returns None elsewhere."""
        return self.on_local_main_process if function is None else _only_if(lambda: self.is_local_main_process, function)

    def on_last_process(self, function: Callable[P, T]) -> Callable[P, T | None]:
        """A decorator: the function runs on the last process only, and returns None elsewhere."""
        return _only_if(lambda: self.is_last_process, function)

    @overload
    def on_process(self, function: Callable[P, T], process_index: int) -> Callable[P, T | None]: ...
    @overload
    def on_process(self, function: None = None, process_index: int = ...) -> Callable[[Callable[P, T]], Callable[P, T | None]]: ...
    def on_process(self, function: Any = None, process_index: int = 0) -> Any:
        """A decorator, as ``@rt.on_process(process_index=2)``: the function runs on that process only, and returns None elsewhere.

        A job of one process runs it whatever the index.
        """
        if function is None:
            return functools.partial(self.on_process, process_index=process_index)
        return _only_if(lambda: self.num_processes == 1 or self.process_index == process_index, function)

    @overload
    def on_local_process(self, function: Callable[P, T], local_process_index: int) -> Callable[P, T | None]: ...
    @overload
    def on_local_process(
        self, function: None = None, local_process_index: int = ...
    ) -> Callable[[Callable[P, T]], Callable[P, T | None]]: ...
    def on_local_process(self, function: Any = None, local_process_index: int = 0) -> Any:
        """A decorator, as ``@rt.on_local_process(local_process_index=2)``: the function runs on that process of each machine only.

        A job of one process runs it whatever the index.
        """
        if function is None:
            return functools.partial(self.on_local_process, local_process_index=local_process_index)
        return _only_if(lambda: self.num_processes == 1 or self.local_process_index == local_process_index, function)

    @contextlib.contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """This process's consecutive share of what every process has; the first ones are one longer where it does not come out even.

        Args:
            inputs: A list, tuple or tensor, a dict of such of one length, or ``datasets.Dataset``. Not changed, and not sent.
            apply_padding: Repeat the last of all items until every share is as long as the longest, so that results can be gathered.

        Raises:
            TypeError: For anything else.
            ValueError: If a dict's values differ in length.
        """
        yield inputs if self.num_processes == 1 else share_of(inputs, self.process_index, self.num_processes, is_padded=apply_padding)


def _only_if(is_this: Callable[[], bool], function: Callable[P, T]) -> Callable[P, T | None]:
    @functools.wraps(function)
    def run_here_only(*args: P.args, **kwargs: P.kwargs) -> T | None:
        return function(*args, **kwargs) if is_this() else None

    return run_here_only
