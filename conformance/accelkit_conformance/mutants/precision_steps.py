"""Faults in how precisions compute gradients and take optimizer steps."""

from __future__ import annotations

from typing import Any

from accelkit_builtin.precisions.bf16_mixed import BFloat16Mixed
from accelkit_builtin.precisions.p16_mixed import Float16Mixed
from accelkit_builtin.precisions.p32_true import Float32
from accelkit_conformance.mutants import mutant


@mutant("precision_gradients", "values", kind="precision", base="32-true")
class RoundsInputs(Float32):
    """Inputs are rounded to bfloat16, although the precision declares float32."""

    def convert_input(self, data: Any) -> Any:
        import torch

        from accelkit import tree_map

        return tree_map(lambda leaf: leaf.bfloat16().float() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf, data)


@mutant("precision_gradients", "values", kind="precision", base="16-mixed")
class NeverUnscales(Float16Mixed):
    """Gradients stay multiplied by the scale."""

    def unscale_gradients(self, optimizer: Any) -> None:
        return None

    def optimizer_step(self, optimizer: Any, step: Any, closure: Any = None) -> Any:
        return step()


@mutant("precision_gradients", "accumulation", kind="precision", base="32-true")
class KeepsTheLastPass(Float32):
    """Each backward pass replaces the gradients of earlier passes instead of adding to them."""

    def check_optimizer(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def pre_backward(self, loss: Any) -> Any:
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        return loss


@mutant("precision_gradients", "accumulation", kind="precision", base="32-true")
class ChangesTheScaleBetweenPasses(Float32):
    """The scale doubles after every backward pass, even between two passes of the same step."""

    _scale = 1.0

    def pre_backward(self, loss: Any) -> Any:
        return loss * self._scale

    def post_backward(self, loss: Any) -> None:
        self._scale *= 2

    def unscale_gradients(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad /= self._scale / 2
        self._scale = 2.0  # a second call before the step changes nothing

    def optimizer_step(self, optimizer: Any, step: Any, closure: Any = None) -> Any:
        self.unscale_gradients(optimizer)
        self._scale = 1.0
        return step()


@mutant("precision_gradients", "the step", kind="precision", base="32-true")
class StepsTwice(Float32):
    """The optimizer steps twice with the same gradients."""

    def optimizer_step(self, optimizer: Any, step: Any, closure: Any = None) -> Any:
        super().optimizer_step(optimizer, step, closure)
        return super().optimizer_step(optimizer, step, closure)


@mutant("precision_gradients", "the step", kind="precision", base="bf16-mixed")
class NeverSteps(BFloat16Mixed):
    """``optimizer_step`` does not call the optimizer's step."""

    def optimizer_step(self, optimizer: Any, step: Any, closure: Any = None) -> Any:
        return None


@mutant("precision_gradients", "closures", kind="precision", base="32-true")
class LosesTheLossOfAClosure(Float32):
    """A step with a closure does not return the loss."""

    def optimizer_step(self, optimizer: Any, step: Any, closure: Any = None) -> Any:
        super().optimizer_step(optimizer, step, closure)


@mutant("precision_gradients", "closures", kind="precision", base="32-true")
class DropsTheClosure(Float32):
    """A closure is called once before the step and is not passed to the step, so LBFGS raises an error."""

    def optimizer_step(self, optimizer: Any, step: Any, closure: Any = None) -> Any:
        if closure is None:
            return step()
        loss = closure()
        step()
        return loss
