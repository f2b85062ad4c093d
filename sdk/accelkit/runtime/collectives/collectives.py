"""The collectives of a Runtime, which operate on nested data. In a job with a single process, they do not communicate.

Modules that are needed only for communication are imported when a collective first needs them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from accelkit.errors import CollectiveError
from accelkit.pytree import tree_leaves, tree_map
from accelkit.runtime.collectives.tensors import check_dtypes, tensors_of

if TYPE_CHECKING:
    import torch.distributed as dist

    from accelkit.runtime.collectives.communicator import Communicator
    from accelkit.runtime.collectives.reduction import Operation
    from accelkit.runtime.collectives.verification import Mode

T = TypeVar("T")

_ANY_PROCESS_TAG = 0xF2

REDUCTIONS = ("sum", "mean", "max", "min", "product", "none")


class Collectives:
    """Collectives over the process group of the job, or over another group of torch.distributed.

    Methods that also exist in ``Runtime`` are documented there. The argument ``group`` of a method is the group whose members make the
    call. If it is None, ``gather`` and ``reduce`` use the group that ``data_group`` returns, and the other methods use all processes of the
    job. ``gather_for_metrics`` has no argument ``group`` and always uses the group that ``data_group`` returns. If several processes
    compute on the same samples (tensor parallelism), ``data_group`` returns a different group on each of these processes, so that no sample
    counts twice.

    Args:
        num_processes: Number of processes in the job.
        device: Function that returns the device of this process. It is called before each collective if there are several processes, so
            that the first call can join the process group.
        verification: The mode that determines which calls to ``gather`` and ``reduce`` are verified (see the module ``verification``).
        data_group: Function that returns a group to which this process belongs. Together, the members of the group have each sample exactly
            once. The function returns None if all processes of the job together have each sample exactly once.
    """

    def __init__(
        self,
        num_processes: int,
        device: Callable[[], torch.device],
        verification: Mode = "always",
        data_group: Callable[[], dist.ProcessGroup | None] = lambda: None,
    ) -> None:
        self._num_processes = num_processes
        self._device = device
        self._verification = verification
        self._data_group = data_group

    def communicator(self, group: dist.ProcessGroup | None = None) -> Communicator:
        """Return a communicator for the group. If necessary, this process first joins the process group of the job.

        Raises:
            UsageError: If this process is not in the group.
        """
        device = self._device()  # the first use of the device joins the process group
        from accelkit.runtime.collectives.communicator import Communicator

        return Communicator(group, device, self._verification)

    def _communicator_of_samples(self, group: dist.ProcessGroup | None = None) -> Communicator:
        """Return the communicator for ``group``. If ``group`` is None, use the group that ``data_group`` returns instead."""
        return self.communicator(self._data_group() if group is None else group)

    def verify(self, name: str, payload: bytes | None = None) -> Sequence[bytes]:
        """Wait until every process of the job has called this method with the same ``name``, and return the payloads of all processes, in
        the order of ranks.

        ``name`` is the name of the collective operation that the caller performs, such as ``wait_for_everyone``. A payload may have at
        most ``fingerprint.INLINE_BYTES`` bytes; if it is None, the returned sequence is empty. Call this only in jobs of several processes.

        Raises:
            CollectiveError: If a process performs another collective operation, or none before the timeout.
        """
        communicator = self.communicator()
        from accelkit.runtime.collectives import fingerprint

        return fingerprint.verify(communicator, name, payload=payload).parts

    def wait_for_everyone(self) -> None:
        """See ``Runtime.wait_for_everyone``."""
        if self._num_processes > 1:
            self.verify("wait_for_everyone")

    @contextlib.contextmanager
    def goes_first(self, name: str, is_first: bool) -> Iterator[None]:
        """Run the ``with`` block on the processes where ``is_first`` is true, then on the other processes.

        The other processes wait in a collective call. ``name`` is the name of this call in errors and in the call log.

        Raises:
            CollectiveError: On the processes where ``is_first`` is false, if the block failed on a process where ``is_first`` is true.
        """
        if self._num_processes == 1:
            yield
            return
        if is_first:
            try:
                yield
            except Exception:
                self.verify(name, b"failed")  # without this, the other processes would wait until the timeout
                raise
            self.verify(name, b"")
            return
        failed = [rank for rank, part in enumerate(self.verify(name, b"")) if part]
        if failed:
            raise CollectiveError(
                f"{name}: the block failed on rank {failed[0]}",
                why="the other ranks run it only after it has succeeded there",
                hint=f"look at the error of rank {failed[0]}",
            )
        yield

    def gather(self, tensor: T, *, group: dist.ProcessGroup | None = None, sync_grads: bool = False) -> T:
        """See ``Runtime.gather``."""
        if self._num_processes == 1:
            tensors_of(tensor, "gather")
            return tensor
        from accelkit.runtime.collectives import operations

        return operations.gather(self._communicator_of_samples(group), tensor, sync_grads=sync_grads)

    def gather_for_metrics(self, input_data: Any, num_samples: int | None, use_gather_object: bool = False) -> Any:
        """See ``Runtime.gather_for_metrics``.

        Args:
            input_data: The data of this process.
            num_samples: The number of samples in the global batch. Samples that were repeated to fill the batch do not count. None if no
                sample was repeated.
            use_gather_object: Whether tensors are pickled, as other objects are.
        """
        if self._num_processes == 1:
            return input_data
        from accelkit.runtime.collectives import operations

        found = tree_leaves(input_data)
        if use_gather_object or not found or not all(isinstance(leaf, torch.Tensor) for leaf in found):
            return operations.gather_objects(self._communicator_of_samples(), input_data)[:num_samples]
        everything = operations.gather(self._communicator_of_samples(), input_data)
        return everything if num_samples is None else tree_map(lambda tensor: tensor[:num_samples], everything)

    def reduce(self, tensor: T, reduction: Operation = "sum", scale: float = 1.0, *, group: dist.ProcessGroup | None = None) -> T:
        """See ``Runtime.reduce``."""
        if not isinstance(reduction, str):
            from accelkit.runtime.collectives.reduction import named

            reduction = named(reduction)
        elif reduction not in REDUCTIONS:
            raise ValueError(f"reduction must be one of {', '.join(REDUCTIONS)}, or a torch.distributed.ReduceOp, got {reduction!r}")
        tensors = tensors_of(tensor, "reduce")
        if reduction == "none":
            return tensor
        if self._num_processes == 1:
            check_dtypes(tensors, reduction)
        else:
            from accelkit.runtime.collectives import operations

            tensor = operations.reduce(self._communicator_of_samples(group), tensor, reduction)
        return tensor if scale == 1.0 else tree_map(lambda leaf: leaf * scale, tensor)

    def broadcast(self, tensor: T, from_process: int = 0, *, group: dist.ProcessGroup | None = None) -> T:
        """See ``Runtime.broadcast``."""
        if not 0 <= from_process < self._num_processes:
            raise ValueError(f"from_process must be between 0 and {self._num_processes - 1}, got {from_process}")
        if self._num_processes == 1:
            return tensor
        from accelkit.runtime.collectives import operations

        return operations.broadcast(self.communicator(group), tensor, from_process)

    def pad_across_processes(self, tensor: T, dim: int = 0, pad_index: float = 0, pad_first: bool = False) -> T:
        """See ``Runtime.pad_across_processes``."""
        if self._num_processes == 1:
            tensors_of(tensor, "pad_across_processes")
            return tensor
        from accelkit.runtime.collectives import operations

        return operations.pad(self.communicator(), tensor, dim, pad_index, pad_first)

    def any_process(self, flag: bool) -> bool:
        """Return whether ``flag`` is true on any process of the job. Every process must make this call, which accelkit does not verify."""
        if self._num_processes == 1:
            return flag
        communicator = self.communicator()
        if communicator.has_gloo:
            return communicator.minimum([int(not flag)], _ANY_PROCESS_TAG) == [0]
        import torch.distributed as dist

        from accelkit.runtime.collectives import transport

        number = transport.on_communicator_device(communicator, torch.tensor([int(flag)], dtype=torch.int32))
        dist.all_reduce(number, dist.ReduceOp.MAX, group=communicator.group)
        return bool(number.item())

    def from_main(self, data: Any) -> Any:
        """Return the ``data`` of rank 0 on every process of the job. The ``data`` of the other processes is ignored.

        The data is pickled. Every process must make this call, which accelkit does not verify.

        Raises:
            CollectiveError: If the received data is not signed by rank 0 with this job's secret.
        """
        if self._num_processes == 1:
            return data
        from accelkit.runtime.collectives import object_collectives

        return object_collectives.broadcast(self.communicator(), data)
