"""``xla``: one process drives all XLA devices of its machine as if they were a single device.

Batches are divided among the devices, and XLA adds the reductions over the devices to the compiled program.

Source: https://github.com/pytorch/xla/blob/master/docs/source/perf/spmd_basic.md (GSPMD: arXiv:2105.04663).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from accelkit import Accelerator, Strategy, UnsupportedError, tree_map

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


class XLAStrategy(Strategy):
    """Data parallelism with XLA's partitioner (SPMD): parameters are replicated, and batches are divided along their first dimension.

    A program that was written for one device runs unchanged on all devices: its losses and metrics are those of the whole batch.
    """

    drives_all_devices = True

    def check(self, accelerator: Accelerator) -> None:
        """Check that the accelerator drives XLA devices, because the strategy uses XLA's partitioner.

        Raises:
            UnsupportedError: If the device type of the accelerator is not ``xla``.
        """
        if accelerator.device_type != "xla":
            raise UnsupportedError(
                f"{accelerator.name} does not support strategy {self.name!r}",
                plugin=accelerator.plugin,
                why="the strategy uses XLA's partitioner",
                hint="use accelerator='xla', or strategy='ddp'",
            )

    def setup(self, accelerator: Accelerator, devices: Sequence[int]) -> None:
        """Switch this process to SPMD, and create a mesh of all devices of the job. The process cannot be switched back.

        Raises:
            UnsupportedError: If ``devices`` does not contain every device of this process.
        """
        from torch_xla import runtime
        from torch_xla.distributed import spmd

        if len(devices) != accelerator.auto_device_count():
            raise UnsupportedError(
                f"strategy {self.name!r} cannot use {len(devices)} of the {accelerator.auto_device_count()} devices of this process",
                plugin=self.plugin,
                why="XLA's partitioner uses all devices of a process",
                hint="use devices=-1, or limit the devices that the process sees with TPU_VISIBLE_CHIPS or CPU_NUM_DEVICES",
            )
        runtime.use_spmd()
        count = runtime.global_runtime_device_count()
        self._mesh: Any = spmd.Mesh(list(range(count)), (count,), ("data",))

    def root_device(self, accelerator: Accelerator, devices: Sequence[int], local_rank: int) -> torch.device:
        """Return ``xla:0``. Under SPMD, this one device stands for all devices."""
        return accelerator.device(0)

    def place_batch(self, batch: T) -> T:
        """Split each tensor of the batch among the devices, along its first dimension, and return the batch.

        Tensors that cannot be split evenly are copied to every device.
        """
        import torch
        from torch_xla.distributed import spmd

        def divide(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] % self._mesh.size() == 0:
                spmd.mark_sharding(leaf, self._mesh, ("data", *[None] * (leaf.dim() - 1)))
            return leaf

        return tree_map(divide, batch)
