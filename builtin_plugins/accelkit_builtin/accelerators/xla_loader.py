"""Upload batches to an XLA device through torch_xla's ParallelLoader, which reads and uploads batches in advance, in two threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_AHEAD = 2
"""The number of batches that are read ahead on the host. The same number of batches is uploaded ahead to the device."""


def uploaded(batches: Iterator[list[torch.Tensor]], device: torch.device) -> Iterator[list[torch.Tensor]]:
    """Yield the batches on ``device``, in order.

    If ``batches`` raises an error, this function first yields the earlier batches and then raises the error. On its own, ParallelLoader
    would silently end the epoch at the error, because it reads ``batches`` in a thread.

    Args:
        batches: The batches to upload.
        device: The XLA device.
    """
    from torch_xla.distributed.parallel_loader import ParallelLoader

    source = _Source(batches)
    parallel = ParallelLoader(source, [device], loader_prefetch_size=_AHEAD, device_prefetch_size=_AHEAD)
    try:
        # per_device_loader is not used: it ends a step for each batch, and random numbers depend on the number of ended steps.
        while (batch := parallel.next_item(device)) is not None:
            yield batch
        if source.error is not None:
            raise source.error
        if not parallel._exception_queue.empty():
            raise parallel._exception_queue.get()
    finally:
        parallel.close()


class _Source:
    """Iterable of batches for ParallelLoader. If ``batches`` raises an error, the iteration ends, and ``error`` holds the error."""

    def __init__(self, batches: Iterator[list[torch.Tensor]]) -> None:
        self._batches = batches
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        try:
            yield from self._batches
        except BaseException as error:  # this thread has no caller that could handle the error
            self.error = error
