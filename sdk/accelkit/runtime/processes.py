"""What a process knows of the others, and what they do together. On one process the collectives are the identity."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch

from accelkit.nested import leaves
from accelkit.specs.cluster import ClusterEnvironment

T = TypeVar("T")
P = ParamSpec("P")


class Processes:
    """The part of a Runtime that is about processes. Names and behaviour are Accelerate's."""

    cluster: ClusterEnvironment

    @property
    def num_processes(self) -> int:
        """Number of processes of the job."""
        return self.cluster.world_size

    @property
    def process_index(self) -> int:
        """This process's rank in the job."""
        return self.cluster.global_rank

    @property
    def local_process_index(self) -> int:
        """This process's rank on its machine."""
        return self.cluster.local_rank

    @property
    def is_main_process(self) -> bool:
        """Whether this is the job's first process."""
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is its machine's first process."""
        return self.local_process_index == 0

    def print(self, *args: Any, **kwargs: Any) -> None:
        """``print``, on the main process only."""
        if self.is_main_process:
            print(*args, **kwargs)  # noqa: T201 # this is what it is for

    def on_main_process(self, function: Callable[P, T]) -> Callable[P, T | None]:
        """A decorator: the function runs on the main process only, and returns None elsewhere."""

        @functools.wraps(function)
        def on_main_only(*args: P.args, **kwargs: P.kwargs) -> T | None:
            return function(*args, **kwargs) if self.is_main_process else None

        return on_main_only

    @contextlib.contextmanager
    def main_process_first(self) -> Iterator[None]:
        """The main process runs the block before the others do: to download or preprocess once."""
        if not self.is_main_process:
            self.wait_for_everyone()
        yield
        if self.is_main_process:
            self.wait_for_everyone()

    def wait_for_everyone(self) -> None:
        """Return when every process has come here. One process does not wait."""

    def gather(self, data: T) -> T:
        """``data`` of all processes, concatenated along the first dimension; any nesting of tensors. Of one process: itself."""
        return _tensors_only(data, "gather")

    def gather_for_metrics(self, data: T) -> T:
        """As ``gather``, without the samples that were repeated to fill the last batch; objects too."""
        return data

    def reduce(self, data: T, reduction: str = "sum", scale: float = 1.0) -> T:
        """``data`` summed (``sum``), averaged (``mean``) or as it is (``none``) over all processes, times ``scale``."""
        if reduction not in ("sum", "mean", "none"):
            raise ValueError(f"reduction is {reduction!r}; one of sum, mean, none is expected")
        checked = _tensors_only(data, "reduce")
        return checked if scale == 1.0 or reduction == "none" else _scaled(checked, scale)

    def broadcast(self, data: T, from_process: int = 0) -> T:
        """``data`` as process ``from_process`` has it."""
        if not 0 <= from_process < self.num_processes:
            raise ValueError(f"from_process is {from_process}; there are processes 0 to {self.num_processes - 1}")
        return _tensors_only(data, "broadcast")

    def pad_across_processes(self, data: T, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> T:
        """Tensors padded along ``dim`` to the longest of all processes with ``pad_index``, at the end or (``pad_first``) at the start."""
        return _tensors_only(data, "pad_across_processes")


def _tensors_only(data: T, call: str) -> T:
    for leaf in leaves(data):
        if not isinstance(leaf, torch.Tensor):
            raise TypeError(f"{call} takes nested tensors, and was given {type(leaf).__name__}; gather_for_metrics takes objects")
    return data


def _scaled(data: T, scale: float) -> T:
    from accelkit.nested import map_leaves

    return map_leaves(lambda tensor: tensor * scale, data)
