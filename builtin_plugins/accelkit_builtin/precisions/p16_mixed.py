"""``16-mixed``: parameters in float32, the forward pass under the device's own autocast in float16, and scaled losses.

The positive numbers of float16 range from 6e-8 to 65504. Smaller gradients become zero, so the loss is multiplied by a scale before the
backward pass, and the gradients are divided by the same scale before the optimizer step. A scale that is too large makes gradients
infinite. The optimizer step is then skipped, and the scale is reduced.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from accelkit import Accelerator, UnsupportedError, UsageError
from accelkit_builtin.precisions.autocast import AutocastOptions, AutocastPrecision
from accelkit_builtin.precisions.loss_scaler import GradientCheck, GradScalerOptions, LossScaler

if TYPE_CHECKING:
    import torch


class Float16Mixed(AutocastPrecision):
    """float16 autocast with float32 parameters and gradient scaling.

    The scale changes only at the first backward pass after a step. Gradients that are accumulated over several backward passes are
    therefore multiplied by the same scale. If several optimizers step without a backward pass in between, the gradients of all these
    optimizers are multiplied by the same scale, too.

    Args:
        scaler: Options for the scaler.
        autocast: Options for autocast.
    """

    required_capabilities = ("autocast.float16",)
    dtype_name = "float16"
    _unscaled: dict[int, GradientCheck]
    _uncounted: dict[object, GradientCheck]
    _waiting: dict[int, weakref.ref[torch.optim.Optimizer]]
    _versions_of_waiting: dict[int, dict[int, int]]

    def __init__(self, scaler: GradScalerOptions | None = None, autocast: AutocastOptions | None = None) -> None:
        super().__init__(autocast)
        self.scaler_options = scaler or GradScalerOptions()

    def setup(self, accelerator: Accelerator, device: torch.device) -> None:
        super().setup(accelerator, device)
        self._make_scaler()
        # The versions of the gradients of each optimizer whose gradients have never been divided by the scale. The dict is usually empty.
        self._versions: dict[weakref.ref[torch.optim.Optimizer], dict[int, int]] = {}

    @property
    def scale(self) -> float:
        """The factor by which the next loss is multiplied.

        Reading it waits for the device if gradients have been divided by the scale since the last step.
        """
        return float(self.state_dict()["scale"])

    def pre_backward(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss multiplied by the scale.

        If gradients have been divided by the scale since the previous backward pass, usually for an optimizer step, the scale is updated
        first. The scale is not updated right after a step, because other optimizers that have not stepped yet still need the old scale.
        """
        if self._waiting:
            self._update_except_waiting()
        elif self._unscaled:
            self._update()
            self._unscaled.clear()
        self._has_scaled = True
        return self._scaler.multiply(loss)

    def _update(self) -> None:
        """Adapt the scale to the gradients that were checked since the last update, if any were."""
        if self._uncounted:
            self._scaler.update(self._has_found_infinity())
            self._uncounted.clear()

    def _has_found_infinity(self) -> bool:
        """Return whether any gradient that was checked since the last update of the scale was infinite or NaN."""
        return any(check.has_found_infinity() for check in self._uncounted.values())

    def _update_except_waiting(self) -> None:
        """Adapt the scale as ``_update`` does, but keep the check results that waiting optimizers still need for their steps.

        An optimizer is waiting if its gradients have been divided by the scale, but it has not stepped since. The result of its check is
        kept if the optimizer still has gradients. If all results since the last update belong to such optimizers, the scale is not updated.

        A backward pass through another model leaves the gradients of a waiting optimizer unchanged. To detect whether the next backward
        pass changes these gradients, this method records their versions, and ``post_backward`` compares them with the later versions.
        """
        versions = {key: _gradient_versions(optimizer) for key, reference in self._waiting.items() if (optimizer := reference())}
        self._versions_of_waiting = {key: some for key, some in versions.items() if some}
        if any(key not in self._versions_of_waiting for key in self._uncounted):
            self._update()
        self._unscaled = {key: self._unscaled[key] for key in self._versions_of_waiting}
        self._waiting = {key: self._waiting[key] for key in self._versions_of_waiting}

    def _forget_changed(self) -> None:
        """Forget the check results of waiting optimizers whose gradients were changed by the backward pass.

        An optimizer is waiting if its gradients have been divided by the scale, but it has not stepped since. A result that is forgotten
        here is no longer used for a step. However, it still counts in the next update of the scale, unless the scale has already been
        updated with it.
        """
        for key, reference in tuple(self._waiting.items()):
            optimizer = reference()
            if optimizer is None or _gradient_versions(optimizer) != self._versions_of_waiting.get(key):
                del self._waiting[key], self._unscaled[key]
                if key in self._uncounted:  # under another key, so the next update counts it as well as the check of the new gradients
                    self._uncounted[key, "unused"] = self._uncounted.pop(key)

    def check_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Watch the optimizer's gradients, to warn if the program changes them before they are divided by the scale for the first time.

        If a program clips scaled gradients, the updates become so small that the model hardly trains, and no error is raised.
        """
        self._versions.setdefault(weakref.ref(optimizer), _gradient_versions(optimizer))

    def post_backward(self, loss: torch.Tensor) -> None:
        """Record the versions of gradients, to notice later whether the program changed the gradients.

        The version of a tensor is torch's count of its in-place changes. The versions are recorded for each optimizer until its gradients
        are divided by the scale for the first time.

        If optimizers are waiting for their steps, this method also calls ``_forget_changed``.
        """
        for reference in tuple(self._versions) if self._versions else ():
            if (optimizer := reference()) is None:
                del self._versions[reference]
            else:
                self._versions[reference] = _gradient_versions(optimizer)
        if self._waiting:
            self._forget_changed()

    def unscale_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the optimizer's gradients by the scale, unless they were already divided after the last backward pass.

        The first call for an optimizer warns if the program changed the gradients while they were still multiplied by the scale.

        Raises:
            UsageError: If the optimizer has gradients that ``Runtime.backward`` did not compute, or if the gradients are in float16 because
                the model was converted to float16. Gradients that ``Runtime.backward`` did not compute are detected if it has never been
                called. Until the optimizer's gradients have been divided for the first time, they are also detected if the optimizer had
                no gradients after the last call to ``Runtime.backward``.
        """
        key = id(optimizer)
        if key in self._unscaled or not (gradients := _gradients(optimizer)):
            return
        versions = self._versions.get(weakref.ref(optimizer)) if self._versions else None
        if not self._has_scaled or versions == {}:
            raise UsageError(
                f"the gradients of {type(optimizer).__name__} were not scaled",
                why=f"precision {self.name!r} scales the loss in rt.backward(loss), which did not compute them",
                hint="call rt.backward(loss) instead of loss.backward()",
            )
        if versions is not None:
            del self._versions[weakref.ref(optimizer)]
            self._check_unchanged(optimizer, versions)
        self._unscaled[key] = self._uncounted[key] = self._scaler.divide(gradients)
        self._waiting[key] = weakref.ref(optimizer)

    def _check_unchanged(self, optimizer: torch.optim.Optimizer, versions: Mapping[int, int]) -> None:
        if any(versions.get(gradient, version) != version for gradient, version in _gradient_versions(optimizer).items()):
            warnings.warn(
                f"the gradients of {type(optimizer).__name__} were changed between backward and step, for instance by "
                f"torch.nn.utils.clip_grad_norm_, while they were still multiplied by the loss scale of precision {self.name!r}. After the "
                "division by the scale, they are too small for training. Use rt.clip_grad_norm_(model.parameters(), max_norm), or call "
                "rt.unscale_gradients(optimizer) before you change them.",
                stacklevel=7,
            )

    def optimizer_step(self, optimizer: torch.optim.Optimizer, step: Callable[..., Any], closure: Callable[[], Any] | None = None) -> Any:
        """Run ``step`` and return its result, or skip it and return None if a gradient is infinite or NaN. The check waits for the device.

        Raises:
            UsageError: If the optimizer has gradients, but ``Runtime.backward`` has never been called.
            UnsupportedError: If a closure is given, because the scale must not change between calls to the closure.
        """
        if closure is not None:
            raise UnsupportedError(
                f"{type(optimizer).__name__}.step does not support a closure here",
                plugin=self.plugin,
                why=f"precision {self.name!r} checks all gradients before the step, but a closure computes them during the step",
                hint="call rt.backward(loss) and then step() without a closure, or use precision='bf16-mixed'",
            )
        self.unscale_gradients(optimizer)
        self._waiting.pop(id(optimizer), None)
        check = self._unscaled.get(id(optimizer))
        return None if check is not None and check.has_found_infinity() else step()

    def state_dict(self) -> dict[str, Any]:
        """Return the entries of ``GradScaler.state_dict``.

        The scale is updated at the start of a backward pass. If gradients have been unscaled since the last update, the returned ``scale``
        and ``_growth_tracker`` are the values that the next update will set. In this case, the call waits for the device, unless
        ``optimizer_step`` has already waited for the results of the checks.
        """
        return self._scaler.state_dict(self._has_found_infinity() if self._uncounted else None)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the scaler's state and options. If a precision without a scaler saved the checkpoint, nothing is restored.

        Gradients that were computed before this call were multiplied by another scale. This precision therefore forgets whether they
        contained infinities or NaN. A step with these gradients raises UsageError until ``Runtime.backward`` is called again.
        """
        if state:
            self._scaler.load_state_dict(state)
            self._forget_gradients()  # the results of earlier steps would change the restored scale

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for a copy of this precision. The copy gets its own scaler, with the same scale.

        Copying a module that was prepared with this precision also copies the precision.
        """
        state = dict(vars(self))
        if "_scaler" in state:
            state["_scaler"] = self.state_dict()  # with the results of steps that the scaler has not seen yet
            for name in ("_unscaled", "_uncounted", "_waiting", "_versions", "_versions_of_waiting"):  # these refer to optimizers
                del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if "_scaler" in state:
            self._make_scaler()
            self._scaler.load_state_dict(state["_scaler"])
            self._versions = {}

    def _make_scaler(self) -> None:
        self._scaler = LossScaler(self.scaler_options)
        self._forget_gradients()

    def _forget_gradients(self) -> None:
        # The checks of the gradients that were divided since the last backward pass, by the ids of their optimizers.
        self._unscaled = {}
        # The checks that have not changed the scale yet.
        self._uncounted = {}
        # The optimizers whose gradients were divided, for example to clip them, and that have not stepped since, by their ids.
        self._waiting = {}
        self._versions_of_waiting = {}
        self._has_scaled = False


def _gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the gradients of the optimizer's parameters. For a sparse gradient, the list contains the tensor of its values."""
    gradients = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None:
                gradients.append(gradient._values() if gradient.is_sparse else gradient)
    return gradients


def _gradient_versions(optimizer: torch.optim.Optimizer) -> dict[int, int]:
    """Return how often each gradient was changed in place, keyed by the ``id`` of the gradient."""
    gradients = (parameter.grad for group in optimizer.param_groups for parameter in group["params"])
    return {id(gradient): gradient._version for gradient in gradients if gradient is not None}
