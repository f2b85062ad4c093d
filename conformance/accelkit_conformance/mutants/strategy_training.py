"""Strategies with faults in initial weights and buffers, clipping, unwrapping, process groups, error handling, uneven inputs or memory."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from accelkit import Accelerator
from accelkit_builtin.strategies.ddp import DDPOptions, DDPStrategy
from accelkit_builtin.strategies.fsdp import FSDPStrategy
from accelkit_conformance.mutants import mutant

if TYPE_CHECKING:
    import torch


@mutant("strategy_state", "first weights", kind="strategy", base="ddp")
class KeepsFirstWeights(DDPStrategy):
    """Leaves each process with its own initial weights, instead of those of rank 0."""

    def wrap_module(self, module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
        own = [parameter.detach().clone() for parameter in module.parameters()]
        wrapped = super().wrap_module(module, device)
        for parameter, before in zip(module.parameters(), own, strict=True):
            parameter.data.copy_(before)
        return wrapped


@mutant("strategy_state", "first weights", kind="strategy", base="ddp")
class KeepsFirstBuffers(DDPStrategy):
    """Leaves each process with its own initial buffers, instead of those of rank 0."""

    def __init__(self) -> None:
        super().__init__(DDPOptions(broadcast_buffers=False))

    def wrap_module(self, module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
        own = [buffer.clone() for buffer in module.buffers()]
        wrapped = super().wrap_module(module, device)
        for buffer, before in zip(module.buffers(), own, strict=True):
            buffer.copy_(before)
        return wrapped


@mutant("strategy_steps", "clipping", kind="strategy", base="ddp")
class ClipsEachParameter(DDPStrategy):
    """Clips each parameter's gradient by its own norm, instead of the norm of all gradients."""

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float, **kwargs: Any) -> torch.Tensor:
        import torch

        norms = [torch.nn.utils.clip_grad_norm_([one], max_norm, norm_type) for one in parameters]
        return torch.linalg.vector_norm(torch.stack(norms), norm_type)


@mutant("strategy_steps", "clipping", kind="strategy", base="fsdp")
class ClipsEachShard(FSDPStrategy):
    """Each process clips its shards of the gradients by the norm of these shards, instead of the norm of the whole gradients."""

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float, **kwargs: Any) -> torch.Tensor:
        import torch

        shards = [one.grad.to_local() for one in parameters if one.grad is not None]
        total = torch.nn.utils.get_total_norm(shards, norm_type)
        for shard in shards:
            shard.mul_((max_norm / (total + 1e-6)).clamp(max=1.0))
        return total


@mutant("strategy_steps", "clipping", kind="strategy", base="ddp")
class IgnoresClipByValue(DDPStrategy):
    """Ignores calls that clip gradients by value."""

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        pass


@mutant("strategy_state", "unwrapping", kind="strategy", base="ddp")
class ReturnsTheWrapper(DDPStrategy):
    """``unwrap_module`` returns the wrapper instead of the module inside it."""

    def unwrap_module(self, module: torch.nn.Module) -> torch.nn.Module:
        return module


@mutant("strategy_state", "unwrapping", kind="strategy", base="ddp")
class ReturnsACopy(DDPStrategy):
    """``unwrap_module`` returns a copy of the module inside the wrapper, so weights that are loaded into the copy are lost."""

    def unwrap_module(self, module: torch.nn.Module) -> torch.nn.Module:
        inner = super().unwrap_module(module)
        return module if inner is module else copy.deepcopy(inner)


@mutant("strategy_processes", "process group", kind="strategy", base="ddp")
class CreatesAGroup(DDPStrategy):
    """``setup`` creates a process group, which the strategy never destroys."""

    def setup(self, accelerator: Accelerator, devices: Sequence[int]) -> None:
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


@mutant("strategy_processes", "errors", kind="strategy", base="ddp")
class HidesErrorsInNoSync(DDPStrategy):
    """Swallows an error that is raised inside ``no_sync``."""

    @contextlib.contextmanager
    def no_sync(self, module: torch.nn.Module) -> Any:
        with contextlib.suppress(Exception), super().no_sync(module):
            yield


@mutant("strategy_processes", "errors", kind="strategy", base="ddp")
class ReplacesErrors(DDPStrategy):
    """Turns a LookupError that is raised inside ``no_sync`` into a KeyError, which is a subclass of LookupError."""

    @contextlib.contextmanager
    def no_sync(self, module: torch.nn.Module) -> Any:
        try:
            with super().no_sync(module):
                yield
        except LookupError as error:
            raise KeyError("no_sync") from error


@mutant("strategy_processes", "uneven inputs", kind="strategy", base="ddp")
class DoesNotJoin(DDPStrategy):
    """Claims to support uneven inputs, but does nothing for processes that have no batches left."""

    def join(self, modules: Sequence[torch.nn.Module]) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()


@mutant("strategy_processes", "memory", kind="strategy", base="fsdp")
class KeepsTheWholeModel(FSDPStrategy):
    """Shards the parameters, but keeps a copy of the whole model on the device."""

    def wrap_module(self, module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
        self._whole = copy.deepcopy(module)
        return super().wrap_module(module, device)
