"""What a process knows of the others, and what they do together. On one process the collectives are the identity.

Nothing here imports what a job of several processes needs before there is one.
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

    from accelkit.runtime.collectives.fingerprint import Communicator
    from accelkit.runtime.collectives.reduction import Operation

T = TypeVar("T")

REDUCTIONS = ("sum", "mean", "max", "min", "product", "none")


class Processes(ThisProcess):
    """The part of a Runtime in which processes act together. Names and behaviour are Accelerate's.

    Before data move, every process tells the others what it calls and with what, always over the host: a ``reduce`` of one float takes two
    processes on one machine 0.3 ms, where ``all_reduce`` alone takes 0.1 ms. So every method here raises CollectiveError, on each process:

    - when some process does not come before the process group's time-out: it names the process, its host and what that called last;
    - when processes call different methods, or give data of different structure, dtype or shape: at once.

    All take any nesting of dicts, lists, tuples, named tuples and dataclasses of tensors of any dtype, contiguous or not, also without
    elements, on the device or on the host. Results are where the argument was and hold no graph, unless a method says otherwise. ``group``
    is a process group of torch.distributed whose members make the call; None is every process of the job.
    """

    _loaders: list[PreparedLoader]

    if TYPE_CHECKING:

        @property
        def device(self) -> torch.device: ...

    def wait_for_everyone(self) -> None:
        """Return when every process has come here. One process does not wait. Work that is queued on the device is not waited for."""
        if self.num_processes > 1:
            self._verify("wait_for_everyone")

    @contextlib.contextmanager
    def main_process_first(self) -> Iterator[None]:
        """The main process runs the block before the others do: to download or preprocess once.

        Raises:
            CollectiveError: On the others, if the block failed on the main process.
        """
        with self._goes_first("main_process_first", self.is_main_process):
            yield

    @contextlib.contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """Each machine's main process runs the block before the others do.

        Raises:
            CollectiveError: On the others, if the block failed on one of the main processes.
        """
        with self._goes_first("local_main_process_first", self.is_local_main_process):
            yield

    def gather(self, tensor: T, *, group: dist.ProcessGroup | None = None, sync_grads: bool = False) -> T:
        """``tensor`` of all processes, concatenated along the first dimension in the order of ranks. Of one process: itself.

        Args:
            tensor: Nested tensors, alike in structure, dtype and shape on all processes. Tensors without dimensions become one of
                ``[num_processes]``.
            group: The processes that take part.
            sync_grads: Whether the result is differentiable: the gradient of this process's part is the sum over processes of what each
                one's backward pass gives for it. Then every process must run backward through it, in the same order as other collectives.

        Raises:
            CollectiveError: If the tensors differ: it gives each rank's shapes. ``pad_across_processes`` makes first dimensions equal.
        """
        if self.num_processes == 1:
            tensors_of(tensor, "gather")
            return tensor
        from accelkit.runtime.collectives import operations

        return operations.gather(self._communicator(group), tensor, sync_grads=sync_grads)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """As ``gather``, without the samples that were repeated to fill the last batch of the prepared loader that is at its end.

        Args:
            input_data: Nested tensors. If any leaf is no tensor, or there is none (an empty list), it is pickled, and the result is one
                list: of the items of each process's list or tuple, or of the objects themselves if they are something else.
            use_gather_object: Pickle tensors too: for tensors that differ in shape and are not to be padded.
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
        """``tensor`` reduced over all processes, element by element, times ``scale``; new tensors, the same on all processes.

        float16, bfloat16 and float8 are reduced in float32 and rounded once; small integers and bools in wider ones, so that a sum of bools
        is whether any is true. 100 bytes or less of host tensors take one exchange, and are added in the order of ranks.

        Args:
            tensor: Nested tensors, alike on all processes.
            reduction: ``sum``, ``mean``, ``max``, ``min``, ``product``, a ``torch.distributed.ReduceOp``, or ``none``: as it is, unscaled.
            scale: Multiplies the result.
            group: The processes that take part.

        Raises:
            TypeError: For the mean of integers and the order of complex numbers.
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
        """``tensor`` as process ``from_process`` has it; there itself, elsewhere new.

        Args:
            tensor: Nested tensors, alike on all processes: the values are sent. Anything else, or where the others have something else
                (None, as a rule), is pickled; its tensors arrive on the receiver's device if they were on the sender's.
            from_process: Its rank in the job.
            group: The processes that take part.
        """
        if not 0 <= from_process < self.num_processes:
            raise ValueError(f"from_process is {from_process}; there are processes 0 to {self.num_processes - 1}")
        if self.num_processes == 1:
            return tensor
        from accelkit.runtime.collectives import operations

        return operations.broadcast(self._communicator(group), tensor, from_process)

    def pad_across_processes(self, tensor: T, dim: int = 0, pad_index: float = 0, pad_first: bool = False) -> T:
        """Tensors padded along ``dim`` to the longest of all processes with ``pad_index``, at the end or (``pad_first``) at the start.

        One that is long enough, or has no such dimension, is returned as it is. Gradients flow back through the padded ones.
        """
        if self.num_processes == 1:
            tensors_of(tensor, "pad_across_processes")
            return tensor
        from accelkit.runtime.collectives import operations

        return operations.pad(self._communicator(None), tensor, dim, pad_index, pad_first)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _communicator(self, group: dist.ProcessGroup | None) -> Communicator:
        device = self.device  # the first use joins the process group
        from accelkit.runtime.collectives import fingerprint

        return fingerprint.Communicator.of(group, device)

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
                self._verify(name, b"failed")  # the others would wait for as long as the time-out
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
        """How many samples of the job's batch are real, if the innermost running loader is at its last and some are not."""
        loader = innermost(self._loaders)
        return loader.remainder if loader is not None and loader.remainder > 0 else None
