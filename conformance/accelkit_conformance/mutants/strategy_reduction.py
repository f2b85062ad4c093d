"""Strategies that reduce gradients incorrectly, or that unfreeze or untie parameters."""

from __future__ import annotations

import contextlib
import copy
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from accelkit_builtin.strategies.ddp import DDPStrategy
from accelkit_conformance.mutants import mutant

if TYPE_CHECKING:
    import torch

AREA = "strategy_gradients"


class _Hooked(DDPStrategy):
    """The base class of mutants that reduce each of DDP's gradient buckets with their own ``reduce_buffer``, in a communication hook."""

    def wrap_module(self, module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
        wrapped: Any = super().wrap_module(module, device)
        if wrapped is not module:
            wrapped.register_comm_hook(None, lambda state, bucket: self.reduce_buffer(bucket.buffer()))
        return wrapped  # type: ignore[no-any-return]

    @staticmethod
    def reduce_buffer(buffer: torch.Tensor) -> Any:
        raise NotImplementedError


def _summed(buffer: torch.Tensor, divisor: float) -> Any:
    import torch.distributed as dist

    work: Any = dist.all_reduce(buffer, async_op=True)
    return work.get_future().then(lambda done: done.value()[0] / divisor)


@mutant(AREA, "reduction of gradients", kind="strategy", base="ddp")
class NeverAverages(DDPStrategy):
    """Claims to be distributed, but leaves each process with its own gradients."""

    def wrap_module(self, module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
        return module


@mutant(AREA, "reduction of gradients", kind="strategy", base="ddp")
class SumsGradients(_Hooked):
    """Adds gradients up, but does not divide them by the number of processes."""

    @staticmethod
    def reduce_buffer(buffer: torch.Tensor) -> Any:
        return _summed(buffer, 1)


@mutant(AREA, "reduction of gradients", kind="strategy", base="ddp")
class AveragesTwice(_Hooked):
    """Divides gradients by the number of processes twice."""

    @staticmethod
    def reduce_buffer(buffer: torch.Tensor) -> Any:
        import torch.distributed as dist

        return _summed(buffer, dist.get_world_size() ** 2)


@mutant(AREA, "precision of the reduction", kind="strategy", base="ddp")
class ReducesInFloat32(_Hooked):
    """Reduces float64 gradients in float32."""

    @staticmethod
    def reduce_buffer(buffer: torch.Tensor) -> Any:
        import torch
        import torch.distributed as dist

        lower = buffer.float()
        dist.all_reduce(lower)
        buffer.copy_(lower / dist.get_world_size())
        future: Any = torch.futures.Future()
        future.set_result(buffer)
        return future


@mutant(AREA, "passes without reduction", kind="strategy", base="ddp")
class ForgetsEarlierPasses(DDPStrategy):
    """Discards all gradients at the end of a ``no_sync`` block."""

    @contextlib.contextmanager
    def no_sync(self, module: torch.nn.Module) -> Any:
        with super().no_sync(module):
            yield
        module.zero_grad()


@mutant(AREA, "passes without reduction", kind="strategy", base="ddp")
class StaysUnsynchronised(DDPStrategy):
    """Never reduces gradients again after the first use of ``no_sync``."""

    @contextlib.contextmanager
    def no_sync(self, module: torch.nn.Module) -> Any:
        module.require_backward_grad_sync = False
        yield


@mutant(AREA, "passes without reduction", kind="strategy", base="ddp")
class ReducesInsideNoSync(DDPStrategy):
    """Overrides ``no_sync``, but still reduces gradients inside it."""

    def no_sync(self, module: torch.nn.Module) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()


@mutant(AREA, "parameters", kind="strategy", base="ddp")
class ThawsParameters(DDPStrategy):
    """Trains frozen parameters too."""

    def wrap_module(self, module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
        return super().wrap_module(module.requires_grad_(True), device)


@mutant(AREA, "parameters", kind="strategy", base="ddp")
class UntiesParameters(DDPStrategy):
    """Copies a weight that two layers share, so that each layer has its own weight."""

    def wrap_module(self, module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
        seen: set[int] = set()
        for child in module.modules():
            for name, parameter in list(child.named_parameters(recurse=False)):
                if id(parameter) in seen:
                    setattr(child, name, copy.deepcopy(parameter))
                seen.add(id(parameter))
        return super().wrap_module(module, device)


@mutant(AREA, "parameters", kind="strategy", base="ddp")
class WrapsFirstModelOnly(DDPStrategy):
    """Wraps the first model that is prepared, and no other."""

    def wrap_module(self, module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
        if hasattr(self, "_first"):
            return module
        self._first = super().wrap_module(module, device)
        return self._first
