"""Faults in how precisions unscale gradients, skip steps, update the scale, and save and load the scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelkit_builtin.precisions.p16_mixed import Float16Mixed
from accelkit_conformance.mutants import mutant


def _has_found_infinity(precision: Float16Mixed, optimizer: Any) -> bool:
    """Return whether a gradient of the optimizer was infinite or NaN, and remove the optimizer from ``_waiting``."""
    precision._waiting.pop(id(optimizer), None)
    check = precision._unscaled.get(id(optimizer))
    return check is not None and check.has_found_infinity()


@mutant("precision_scaling", "unscaling", kind="precision", base="16-mixed")
class ClipsScaledGradients(Float16Mixed):
    """Gradients are unscaled only in the step, so clipping applies to scaled gradients."""

    def unscale_gradients(self, optimizer: Any) -> None:
        return None

    def optimizer_step(self, optimizer: Any, step: Any, closure: Any = None) -> Any:
        super().unscale_gradients(optimizer)
        return None if _has_found_infinity(self, optimizer) else step()


@mutant("precision_scaling", "unscaling", kind="precision", base="16-mixed")
class UnscalesAgain(Float16Mixed):
    """``unscale_gradients`` divides the gradients by the scale even if a previous call before the same step has already divided them."""

    def unscale_gradients(self, optimizer: Any) -> None:
        if id(optimizer) in self._unscaled:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad /= self._scaler.state_dict(None)["scale"]
        else:
            super().unscale_gradients(optimizer)


@mutant("precision_scaling", "unscaling", kind="precision", base="16-mixed")
class UnscalesAfterAnotherModel(Float16Mixed):
    """If another model runs a backward pass after gradients were unscaled for clipping, the step unscales these gradients again."""

    def pre_backward(self, loss: Any) -> Any:
        self._waiting.clear()
        return super().pre_backward(loss)


@mutant("precision_scaling", "skipping", kind="precision", base="16-mixed")
class NeverSkips(Float16Mixed):
    """The step takes place even if a gradient is infinite."""

    def optimizer_step(self, optimizer: Any, step: Any, closure: Any = None) -> Any:
        self.unscale_gradients(optimizer)
        _has_found_infinity(self, optimizer)
        return step()


@mutant("precision_scaling", "skipping", kind="precision", base="16-mixed")
class StepsWithZeros(Float16Mixed):
    """If a gradient is infinite or NaN, the step is not skipped but takes place with zero gradients. Momentum still changes the parameters,
    and a scheduler still changes the learning rate.
    """

    def optimizer_step(self, optimizer: Any, step: Any, closure: Any = None) -> Any:
        self.unscale_gradients(optimizer)
        if _has_found_infinity(self, optimizer):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.zero_()
        return step()


@mutant("precision_scaling", "skipping", kind="precision", base="16-mixed")
class SkipsAllOptimizers(Float16Mixed):
    """If one optimizer has an infinite gradient, the steps of all other optimizers are skipped too."""

    def check_optimizer(self, optimizer: Any) -> None:
        super().check_optimizer(optimizer)
        self._all = [*getattr(self, "_all", []), optimizer]

    def optimizer_step(self, optimizer: Any, step: Any, closure: Any = None) -> Any:
        for other in self._all:
            self.unscale_gradients(other)
        found = _has_found_infinity(self, optimizer)
        return None if found or any(_has_found_infinity(self, other) for other in self._all) else step()


@mutant("precision_scaling", "the scale", kind="precision", base="16-mixed")
class KeepsItsScale(Float16Mixed):
    """Steps with infinite gradients are skipped, but the scale does not change."""

    def pre_backward(self, loss: Any) -> Any:
        self._uncounted.clear()
        return super().pre_backward(loss)


@mutant("precision_scaling", "the scale", kind="precision", base="16-mixed")
class NeverGrows(Float16Mixed):
    """The scale becomes smaller after infinite gradients, but never grows."""

    def post_backward(self, loss: Any) -> None:
        super().post_backward(loss)
        self._scaler._growth_tracker = 0


@mutant("precision_state", "checkpoints", kind="precision", base="16-mixed")
class ForgetsItsScale(Float16Mixed):
    """``state_dict`` returns an empty dict, so training that is resumed from a checkpoint starts with the initial scale again."""

    def state_dict(self) -> dict[str, Any]:
        return {}


@mutant("precision_state", "checkpoints", kind="precision", base="16-mixed")
class SavesTheScaleBeforeItsUpdate(Float16Mixed):
    """The saved state is from before the last step, so the effect of that step on the scale is lost."""

    def state_dict(self) -> dict[str, Any]:
        return self._scaler.state_dict(None)


@mutant("precision_state", "checkpoints", kind="precision", base="16-mixed")
class NeedsItsState(Float16Mixed):
    """``load_state_dict`` resets the scale to 1 if the state is empty.

    The state is empty if it was saved by a precision without a scaler.
    """

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict({**super().state_dict(), "scale": 1.0, "_growth_tracker": 0, **state})
