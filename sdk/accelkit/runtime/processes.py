"""Collectives of a Runtime. With a single process, they return their argument.

The modules that only a job of several processes needs are imported when such a job uses them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from accelkit.errors import CollectiveError
from accelkit.pytree import leaves, map_leaves
from accelkit.runtime.collectives.tensors import tensors_of
from accelkit.runtime.data.loaders import PreparedLoader, innermost
from accelkit.runtime.rank_info import ThisProcess

if TYPE_CHECKING:
    import torch.distributed as dist

    from accelkit.runtime.collectives.communicator import Communicator
    from accelkit.runtime.collectives.reduction import Operation

T = TypeVar("T")

REDUCTIONS = ("sum", "mean", "max", "min", "product", "none")


class Processes(ThisProcess):
    """The collectives of a Runtime. Names and behaviour follow Accelerate.

    Before any data are sent, every process tells the others its call and the structure of its data, always over the host. With two
    processes on one machine, a ``reduce`` of one float takes 0.3 ms, and ``all_reduce`` alone takes 0.1 ms. Therefore every method
    raises CollectiveError on each process

    - if a process does not make the call before the timeout of the process group: the error names the process, its host and its
      last call;
    - if processes call different methods, or give data of different structure, dtype or shape: immediately.

    All methods accept any nesting of dicts, lists, tuples, named tuples and dataclasses of tensors. The tensors may have any dtype, be
    contiguous or not, be empty, and be on the device or on the host. Results are on the device of the argument and are detached from
    the graph, unless a method says otherwise. ``group`` is the process group of torch.distributed whose members make the call; None
    stands for all processes of the job.
    """

    _loaders: list[PreparedLoader]

    if TYPE_CHECKING:

        @property
        def device(self) -> torch.device: ...

    def wait_for_everyone(self) -> None:
        """Wait until every process has made this call. Does not wait for work that is queued on the device.

        A job of one process returns immediately.
        """
        if self.num_processes > 1:
            self._verify("wait_for_everyone")

    @contextlib.contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Run the block on the main process before the other processes, to download or preprocess only once.

        Raises:
            CollectiveError: On the other processes, if the block failed on the main process.
        """
        with self._goes_first("main_process_first", self.is_main_process):
            yield

    @contextlib.contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """Run the block on the main process of each machine before the other processes.

        Raises:
            CollectiveError: On the other processes, if the block failed on one of the main processes.
        """
        with self._goes_first("local_main_process_first", self.is_local_main_process):
            yield

    def gather(self, tensor: T, *, group: dist.ProcessGroup | None = None, sync_grads: bool = False) -> T:
        """Gather ``tensor`` from all processes, concatenated along the first dimension in the order of ranks.

        A job of one process returns ``tensor`` itself.

        Args:
            tensor: Nested tensors with the same structure, dtypes and shapes on all processes. Tensors without dimensions become one
                tensor of shape ``[num_processes]``.
            group: The processes that take part.
            sync_grads: Whether the result is differentiable. The gradient of this process's part is the sum of the gradients that the
                backward passes of all processes compute for it. Every process must then run backward through the result, in the same
                order as other collectives.

        Raises:
            CollectiveError: If the tensors differ. The error gives the shapes on each rank. ``pad_across_processes`` makes first
                dimensions equal.
        """
        if self.num_processes == 1:
            tensors_of(tensor, "gather")
            return tensor
        from accelkit.runtime.collectives import operations

        return operations.gather(self._communicator(group), tensor, sync_grads=sync_grads)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Like ``gather``, but without the samples that were repeated to fill the last batch.

        Samples are dropped only while the innermost running prepared loader is at its last batch.

        Args:
            input_data: Nested tensors. If any leaf is not a tensor, or there are no leaves (an empty list), the data are pickled, and
                the result is one list: the items of each process's list or tuple, or the objects themselves if they are of other types.
            use_gather_object: Whether to pickle tensors too, for tensors that differ in shape and should not be padded.
        """
        if self.num_processes == 1:
            return input_data
        from accelkit.runtime.collectives import operations

        found = leaves(input_data)
        if use_gather_object or not found or not all(isinstance(leaf, torch.Tensor) for leaf in found):
            gathered = operations.gather_objects(self._communicator(None), input_data)
            return gathered[: self._real_samples()]
        real = self._real_samples()
        everything = operations.gather(self._communicator(None), input_data)
        return everything if real is None else map_leaves(lambda tensor: tensor[:real], everything)

    def reduce(
        self,
        tensor: T,
        reduction: Operation = "sum",
        scale: float = 1.0,
        *,
        group: dist.ProcessGroup | None = None,
    ) -> T:
        """Reduce ``tensor`` element-wise over all processes and multiply the result by ``scale``.

        float16, bfloat16 and float8 are reduced in float32 and rounded once. Small integers and bools are reduced in a wider integer type;
        a sum of bools is True if any of them is True. Host tensors of 100 bytes or less in total need a single exchange and are added in
        the order of ranks.

        Args:
            tensor: Nested tensors with the same structure, dtypes and shapes on all processes.
            reduction: ``sum``, ``mean``, ``max``, ``min``, ``product``, a ``torch.distributed.ReduceOp``, or ``none``, which returns
                ``tensor`` unchanged and unscaled.
            scale: The factor by which the result is multiplied.
            group: The processes that take part.

        Returns:
            New tensors, the same on all processes.

        Raises:
            TypeError: For the mean of integers, and for the maximum or minimum of complex numbers.
        """
        if isinstance(reduction, str) and reduction not in REDUCTIONS:
            raise ValueError(f"reduction is {reduction!r}; one of {', '.join(REDUCTIONS)}, or a torch.distributed.ReduceOp is expected")
        tensors_of(tensor, "reduce")
        if reduction == "none":
            return tensor
        if self.num_processes > 1:
            from accelkit.runtime.collectives import operations
            from accelkit.runtime.collectives.reduction import named

            tensor = operations.reduce(self._communicator(group), tensor, named(reduction))
        return tensor if scale == 1.0 else map_leaves(lambda leaf: leaf * scale, tensor)

    def broadcast(self, tensor: T, from_process: int = 0, *, group: dist.ProcessGroup | None = None) -> T:
        """Send ``tensor`` from process ``from_process`` to all processes.

        Args:
            tensor: Nested tensors. If they have the same structure, dtypes and shapes on all processes, only their values are sent.
                Otherwise (the other processes usually pass None), and for any other object, the data are pickled. Tensors in pickled
                data arrive on the receiver's device if they were on the sender's device.
            from_process: The rank in the job of the process that sends.
            group: The processes that take part.

        Returns:
            ``tensor`` itself on process ``from_process``, and a new object on the other processes.
        """
        if not 0 <= from_process < self.num_processes:
            raise ValueError(f"from_process is {from_process}; there are processes 0 to {self.num_processes - 1}")
        if self.num_processes == 1:
            return tensor
        from accelkit.runtime.collectives import operations

        return operations.broadcast(self._communicator(group), tensor, from_process)

    def pad_across_processes(self, tensor: T, dim: int = 0, pad_index: float = 0, pad_first: bool = False) -> T:
        """Pad tensors with ``pad_index`` along ``dim`` to the longest size among all processes, so that they can be gathered.

        Padding is added at the end, or at the start if ``pad_first`` is True. A tensor that is long enough, or that has no such
        dimension, is returned as it is. Gradients flow back through padded tensors.
        """
        if self.num_processes == 1:
            tensors_of(tensor, "pad_across_processes")
            return tensor
        from accelkit.runtime.collectives import operations

        return operations.pad(self._communicator(None), tensor, dim, pad_index, pad_first)

    # -- internals ----------------------------------------------------------------------------------------------------

    def _communicator(self, group: dist.ProcessGroup | None) -> Communicator:
        device = self.device  # the first use joins the process group
        from accelkit.runtime.collectives.communicator import Communicator

        return Communicator(group, device)

    def _verify(self, name: str, payload: bytes = b"") -> Sequence[bytes]:
        communicator = self._communicator(None)
        from accelkit.runtime.collectives import fingerprint

        return fingerprint.verify(communicator, name, payload=payload).parts

    @contextlib.contextmanager
    def _goes_first(self, name: str, is_first: bool) -> Iterator[None]:
        if self.num_processes == 1:
            yield
            return
        if is_first:
            try:
                yield
            except Exception:
                self._verify(name, b"failed")  # without this, the other processes would wait until the timeout
                raise
            self._verify(name)
            return
        failed = [rank for rank, part in enumerate(self._verify(name)) if part]
        if failed:
            raise CollectiveError(
                f"{name}: the block failed on rank {failed[0]}", why="the others run it afterwards", hint="see the error of that rank"
            )
        yield

    def _real_samples(self) -> int | None:
        """The number of real samples in the job's batch, if the innermost running loader is at its last batch and repeated samples in it.

        None otherwise.
        """
        loader = innermost(self._loaders)
        return loader.remainder if loader is not None and loader.remainder > 0 else None
