"""Rank information, and decorators that run a function on some processes only. Nothing here waits for another process."""

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
    """The part of a Runtime that describes this process's place in the job. Names and behaviour follow Accelerate.

    The environment is read once, because training loops use these properties.
    """

    cluster: ClusterEnvironment

    @functools.cached_property
    def num_processes(self) -> int:
        """Number of processes in the job."""
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
        """Refuse to be pickled. The objects that a Runtime prepared can be pickled; a Runtime cannot.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(
            "a Runtime cannot be pickled",
            why="it stands for this process: its device, its process group and its place in the job",
            hint="pickle rt.state or what rt prepared, and make a Runtime in the other process; rt.launch(function) gives each its own",
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the Runtime itself, so that a copy of an object that holds it (a callback, a dataset) uses the same Runtime."""
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
        """Call ``print`` once per machine, on its main process only."""
        if self.is_local_main_process:
            print(*args, **kwargs)  # noqa: T201 # this is what it is for

    @overload
    def on_main_process(self, function: Callable[P, T]) -> Callable[P, T | None]: ...
    @overload
    def on_main_process(self, function: None = None) -> Callable[[Callable[P, T]], Callable[P, T | None]]: ...
    def on_main_process(self, function: Any = None) -> Any:
        """Decorate a function to run on the main process only and return None elsewhere. Works with or without parentheses."""
        return self.on_main_process if function is None else _only_if(lambda: self.is_main_process, function)

    @overload
    def on_local_main_process(self, function: Callable[P, T]) -> Callable[P, T | None]: ...
    @overload
    def on_local_main_process(self, function: None = None) -> Callable[[Callable[P, T]], Callable[P, T | None]]: ...
    def on_local_main_process(self, function: Any = None) -> Any:
        """Decorate a function to run on the main process of each machine only and return None elsewhere.

        Works with or without parentheses.
        """
        return self.on_local_main_process if function is None else _only_if(lambda: self.is_local_main_process, function)

    def on_last_process(self, function: Callable[P, T]) -> Callable[P, T | None]:
        """Decorate a function to run on the last process only and return None elsewhere."""
        return _only_if(lambda: self.is_last_process, function)

    @overload
    def on_process(self, function: Callable[P, T], process_index: int) -> Callable[P, T | None]: ...
    @overload
    def on_process(self, function: None = None, process_index: int = ...) -> Callable[[Callable[P, T]], Callable[P, T | None]]: ...
    def on_process(self, function: Any = None, process_index: int = 0) -> Any:
        """Decorate a function to run on one process only and return None elsewhere: ``@rt.on_process(process_index=2)``.

        A job of one process runs the function regardless of the index.
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
        """Decorate a function to run on one process of each machine only: ``@rt.on_local_process(local_process_index=2)``.

        A job of one process runs the function regardless of the index.
        """
        if function is None:
            return functools.partial(self.on_local_process, local_process_index=local_process_index)
        return _only_if(lambda: self.num_processes == 1 or self.local_process_index == local_process_index, function)

    @contextlib.contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """Yield this process's consecutive share of ``inputs``, which every process has in full.

        If the inputs cannot be divided evenly, the first shares are one item longer.

        Args:
            inputs: A list, tuple or tensor, a dict of these with equal lengths, or a ``datasets.Dataset``. It is not changed, and no
                data are sent between processes.
            apply_padding: Whether to repeat the last item of ``inputs`` until every share is as long as the longest, so that results can
                be gathered.

        Raises:
            TypeError: If ``inputs`` is of another type.
            ValueError: If the values of a dict differ in length.
        """
        yield inputs if self.num_processes == 1 else share_of(inputs, self.process_index, self.num_processes, is_padded=apply_padding)


def _only_if(is_this: Callable[[], bool], function: Callable[P, T]) -> Callable[P, T | None]:
    @functools.wraps(function)
    def run_here_only(*args: P.args, **kwargs: P.kwargs) -> T | None:
        return function(*args, **kwargs) if is_this() else None

    return run_here_only
