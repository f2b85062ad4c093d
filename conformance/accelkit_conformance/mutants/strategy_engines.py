"""Faulty strategies that own the optimizer. Their base class, ``AveragingEngineStrategy``, is correct."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelkit import EngineSettings, EngineStrategy
from accelkit_conformance.mutants import mutant

if TYPE_CHECKING:
    import torch


class AveragingEngineStrategy(EngineStrategy):
    """An engine strategy for one or several modules. ``backward`` accumulates gradients in each process, and ``step`` averages them over
    all processes."""

    is_distributed = True

    def __init__(self) -> None:
        super().__init__()
        self.gradients: dict[torch.optim.Optimizer, dict[torch.nn.Parameter, torch.Tensor]] = {}

    def wrap_module(self, module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
        import torch.distributed as dist

        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor.detach(), src=0)
        return module

    def wrap_training(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer, settings: EngineSettings) -> torch.nn.Module:
        self.gradients[optimizer] = {}
        return module

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        loss.backward(**kwargs)  # type: ignore[no-untyped-call]
        for optimizer, held in self.gradients.items():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        held[parameter] = held[parameter] + parameter.grad if parameter in held else parameter.grad
                        parameter.grad = None

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        import torch.distributed as dist

        is_finite = True
        for parameter, gradient in self.gradients[optimizer].items():
            dist.all_reduce(gradient)
            parameter.grad = gradient / dist.get_world_size()
            is_finite = is_finite and bool(gradient.isfinite().all())
        if is_finite:
            optimizer.step()
        self.gradients[optimizer] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        return is_finite

    def zero_grad(self, optimizer: torch.optim.Optimizer) -> None:
        self.gradients[optimizer] = {}

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float, **kwargs: Any) -> torch.Tensor:
        from accelkit import UnsupportedError

        raise UnsupportedError(
            "this engine does not clip gradients", plugin=self.plugin, why="the engine averages gradients only when it takes a step"
        )

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        from accelkit import UnsupportedError

        raise UnsupportedError(
            "this engine does not clip gradients", plugin=self.plugin, why="the engine averages gradients only when it takes a step"
        )

    def join(self, modules: Any) -> None:
        """Return None: uneven inputs are not supported, because every process must take part in every step."""


@mutant("strategy_steps", "engines", kind="strategy", base="ddp")
class EngineThatDoesNotStep(AveragingEngineStrategy):
    """``step`` takes no optimizer step, but reports that it has taken one."""

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        return True


@mutant("strategy_steps", "engines", kind="strategy", base="ddp")
class EngineThatKeepsGradients(AveragingEngineStrategy):
    """``zero_grad`` does not discard the accumulated gradients."""

    def zero_grad(self, optimizer: torch.optim.Optimizer) -> None:
        pass


@mutant("strategy_steps", "engines", kind="strategy", base="ddp")
class EngineThatHidesSkippedSteps(AveragingEngineStrategy):
    """``step`` reports that it has taken an optimizer step even if it has skipped the step."""

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        super().step(optimizer)
        return True
