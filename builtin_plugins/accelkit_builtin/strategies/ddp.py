"""``ddp``: every process has the whole model and a share of each batch; gradients are averaged while they are computed."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

from accelkit import Strategy, UnsupportedError, UsageError
from accelkit_builtin.strategies.options import checked_options

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

CommunicationHook = Literal["fp16_compress", "bf16_compress", "power_sgd", "batched_power_sgd"]


@dataclasses.dataclass(frozen=True, slots=True)
class DDPOptions:
    """Options for ``torch.nn.parallel.DistributedDataParallel``, its communication hooks and synchronized batch norm.

    An option that is passed to DistributedDataParallel has the name of the corresponding argument.

    Args:
        find_unused_parameters: Whether a forward pass may leave parameters unused. If so, every forward pass traverses the autograd graph.
        static_graph: Whether every step uses the same parameters. If so, reentrant activation checkpointing has no restrictions.
        gradient_as_bucket_view: Whether gradients are views of the communication buffers, which saves memory and a copy.
        broadcast_buffers: Whether rank 0's buffers are copied to all processes before each forward pass.
        bucket_cap_mb: The size of a communication buffer in MiB. None selects DistributedDataParallel's default.
        communication_hook: How a communication buffer is reduced: the name of one of torch's hooks, or a function ``hook(state, bucket)``.
            None means that the buffer is averaged over the processes with all-reduce.
        communication_state: The argument ``state`` of ``communication_hook``, if the hook is a function.
        powersgd_rank: The matrix rank to which the hooks ``power_sgd`` and ``batched_power_sgd`` compress gradients.
        sync_batch_norm: Whether batch-norm layers compute their statistics over all processes.
        sync_batch_norm_group: The process group over which ``sync_batch_norm`` computes statistics. None means all processes.
    """

    find_unused_parameters: bool = False
    static_graph: bool = False
    gradient_as_bucket_view: bool = False
    broadcast_buffers: bool = True
    bucket_cap_mb: float | None = None
    communication_hook: CommunicationHook | Callable[[Any, Any], Any] | None = None
    communication_state: Any = dataclasses.field(default=None, metadata={"per_process": True})
    powersgd_rank: int = 1
    sync_batch_norm: bool = False
    sync_batch_norm_group: dist.ProcessGroup | None = dataclasses.field(default=None, metadata={"per_process": True})


class DDPStrategy(Strategy):
    """Data parallelism with torch's DistributedDataParallel.

    Args:
        options: The options of DistributedDataParallel. None means ``DDPOptions()``.
        device: The device or device type that the strategy is for. None means any device.

    Raises:
        UsageError: If ``options`` is not a DDPOptions object.
    """

    is_distributed = True

    def __init__(self, options: DDPOptions | None = None, *, device: torch.device | str | None = None) -> None:
        super().__init__(device)
        self.options = checked_options(options, DDPOptions, "DDPStrategy(DDPOptions(static_graph=True))")

    def wrap_module(self, module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
        """Return the module wrapped in DistributedDataParallel. A module without trainable parameters is not wrapped.

        Raises:
            UnsupportedError: If a parameter is on the meta device, where it has no values, or if torch does not support the communication
                hook in this build or on this backend.
            UsageError: If the communication hook is neither a function nor a known name.
        """
        from torch.nn.parallel import DistributedDataParallel

        if any(parameter.is_meta for parameter in module.parameters()):
            raise UnsupportedError(
                f"{type(module).__name__} has parameters on the meta device",
                plugin=self.plugin,
                why="ddp needs the whole model, with its values, in every process",
                hint="use strategy='fsdp', or create the model on the device",
            )
        options = self.options
        if options.sync_batch_norm:
            import torch

            convert: Any = torch.nn.SyncBatchNorm.convert_sync_batchnorm
            module = convert(module, options.sync_batch_norm_group)
        if not any(parameter.requires_grad for parameter in module.parameters()):
            return module
        renamed: dict[str, Any] = {} if options.broadcast_buffers else {"broadcast_buffers": False}  # torch 2.13 warns about this name
        wrapped = DistributedDataParallel(
            module,
            find_unused_parameters=options.find_unused_parameters,
            static_graph=options.static_graph,
            gradient_as_bucket_view=options.gradient_as_bucket_view,
            bucket_cap_mb=options.bucket_cap_mb,
            **renamed,
        )
        self._register_hook(wrapped)
        return wrapped

    def unwrap_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return the module inside DistributedDataParallel, or ``module`` itself if it is not wrapped."""
        from torch.nn.parallel import DistributedDataParallel

        return module.module if isinstance(module, DistributedDataParallel) else module

    def no_sync(self, module: torch.nn.Module) -> AbstractContextManager[Any]:
        """Return DistributedDataParallel's own ``no_sync()``, or a null context manager if the module is not wrapped."""
        from torch.nn.parallel import DistributedDataParallel

        return module.no_sync() if isinstance(module, DistributedDataParallel) else contextlib.nullcontext()

    def join(self, modules: Sequence[torch.nn.Module]) -> AbstractContextManager[Any]:
        """Return torch's context manager Join, which allows processes to have different numbers of batches.

        Inside it, a process that has no batches left still takes part in the reductions of the other processes.

        If no module is wrapped, return a context manager that does nothing.
        """
        from torch.distributed.algorithms.join import Join, Joinable

        joinable: list[Joinable] = [module for module in modules if isinstance(module, Joinable)]
        return Join(joinable) if joinable else contextlib.nullcontext()

    def _register_hook(self, wrapped: Any) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

        hook = self.options.communication_hook
        if hook is None:
            return
        if callable(hook):
            wrapped.register_comm_hook(self.options.communication_state, hook)
            return
        named: dict[str, tuple[Any, Callable[[], Any]]] = {
            "fp16_compress": (default_hooks.fp16_compress_hook, lambda: None),
            "bf16_compress": (default_hooks.bf16_compress_hook, lambda: None),
            "power_sgd": (powerSGD_hook.powerSGD_hook, self._powersgd_state),
            "batched_power_sgd": (powerSGD_hook.batched_powerSGD_hook, self._powersgd_state),
        }
        if hook not in named:
            raise UsageError(
                f"communication_hook={hook!r} is invalid",
                why="it is neither a function nor a known name",
                hint=f"use a function or one of {', '.join(named)}",
            )
        function, state = named[hook]
        try:
            wrapped.register_comm_hook(state(), function)
        except TypeError as error:
            hint = "use fp16_compress or your own function"
            raise UnsupportedError(
                f"communication_hook={hook!r} is not supported here", plugin=self.plugin, why=str(error), hint=hint
            ) from error

    def _powersgd_state(self) -> Any:
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

        return PowerSGDState(None, matrix_approximation_rank=self.options.powersgd_rank)
