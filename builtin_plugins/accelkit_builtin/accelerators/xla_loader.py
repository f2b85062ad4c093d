"""Batches to an XLA device through torch_xla's ParallelLoader, which reads and uploads ahead in two threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_AHEAD = 2
"""Batches that wait at each end of the upload."""


def uploaded(batches: Iterator[list[torch.Tensor]], device: torch.device) -> Iterator[list[torch.Tensor]]:
    """Each batch on ``device``, in their order.

    Args:
        batches: Read in a thread. An error of it, which would end ParallelLoader's thread and the epoch without a word, is raised here
            after the batches that came before it.
        device: An XLA device.
    """
    from torch_xla.distributed.parallel_loader import ParallelLoader

    source = _Source(batches)
    parallel = ParallelLoader(source, [device], loader_prefetch_size=_AHEAD, device_prefetch_size=_AHEAD)
    try:
        # Not by its per_device_loader, which ends a step as often as it is asked: random numbers depend on how many steps ended.
        while (batch := parallel.next_item(device)) is not None:
            yield batch
        if source.error is not None:
            raise source.error
        if not parallel._exception_queue.empty():
            raise parallel._exception_queue.get()
    finally:
        parallel.close()


class _Source:
    """What ParallelLoader reads, with the error that ended it."""

    def __init__(self, batches: Iterator[list[torch.Tensor]]) -> None:
        self._batches = batches
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        try:
            yield from self._batches
        except BaseException as error:  # this thread has nobody to tell
            self.error = error
