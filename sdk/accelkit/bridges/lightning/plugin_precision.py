"""Precisions that Lightning does not have, as Lightning plugins that delegate to accelkit's Precision.

Lightning calls the methods of a precision plugin in different places than Runtime does. This has the following consequences:

- A Trainer converts each batch and runs the whole step of the LightningModule in the forward context. It does not convert the
  results of the step.
- A Trainer computes the gradients inside the optimizer's step, in a closure. If the Precision overrides ``unscale_gradients`` or
  ``optimizer_step``, the plugin instead runs the closure before the step, so that gradients can be unscaled before Lightning's hooks see
  them and before they are clipped.
- Lightning tears the strategy down after every ``fit`` and may save a checkpoint after that, so the state of the precision is kept.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from accelkit.bridges.lightning.compat import Framework
from accelkit.bridges.own_precision import own_precision
from accelkit.errors import UnsupportedError
from accelkit.plugin_calls import call, call_in_step, wrong_result
from accelkit.runtime.precision_forward import backward_of
from accelkit.specs.accelerator import Accelerator
from accelkit.specs.overrides import overrides
from accelkit.specs.precision import Precision

_BACKWARD_ARGUMENTS = ("gradient", "retain_graph", "create_graph", "inputs")
"""The positional arguments of ``torch.Tensor.backward``."""


if TYPE_CHECKING:

    class Theirs:
        """The methods of Lightning's precision plugins that this module uses, declared for type checkers.

        All of them except ``_after_closure`` are public.
        """

        def connect(self, model: Any, optimizers: list[Any], lr_schedulers: list[Any]) -> Any: ...
        def pre_backward(self, tensor: torch.Tensor, module: Any) -> torch.Tensor: ...
        def backward(self, tensor: torch.Tensor, model: Any, *args: Any, **kwargs: Any) -> None: ...
        def post_backward(self, tensor: torch.Tensor, module: Any) -> torch.Tensor: ...
        def optimizer_step(self, optimizer: Any, **kwargs: Any) -> Any: ...
        def clip_gradients(self, optimizer: Any, *args: Any, **kwargs: Any) -> None: ...
        def _after_closure(self, model: Any, optimizer: Any) -> None: ...

else:
    Theirs = object


class PluginPrecision(Theirs):
    """Lightning's precision interface, implemented by an accelkit Precision.

    The Precision is set up at first use, in the process that uses the device, because the device of the strategy is not known earlier.

    Args:
        framework: The Trainer or Fabric.
        selected: The Precision that the user selected.
        accelerator: The accelerator, whose own implementation of the precision is used if it has one.
        strategy: Lightning's strategy.
    """

    def __init__(self, framework: Framework, selected: Precision, accelerator: Accelerator, strategy: Any) -> None:
        self.precision = selected.name
        self._framework, self._accelerator, self._strategy = framework, accelerator, strategy
        self._selected = selected
        self._in_use: Precision | None = None
        self._state: dict[str, Any] = {}

    @property
    def plugin(self) -> Precision:
        """The Precision, set up for the device of this process."""
        if self._in_use is None:
            device = self._strategy.root_device
            precision = own_precision(self._accelerator, self._selected.name, device) or self._selected
            call(precision, "setup", self._accelerator, device)
            if self._state:
                call(precision, "load_state_dict", self._state)
            self._in_use = precision
        return self._in_use

    def convert_module(self, module: torch.nn.Module) -> torch.nn.Module:
        converted: torch.nn.Module = call(self.plugin, "convert_module", module)
        return converted

    def check_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        call(self.plugin, "check_optimizer", optimizer)

    def convert_input(self, data: Any) -> Any:
        return self._converted("convert_input", data)

    def convert_output(self, data: Any) -> Any:
        return self._converted("convert_output", data)

    def _converted(self, method: str, data: Any) -> Any:
        result = call_in_step(self.plugin, method, data)
        if result is None and data is not None:
            raise wrong_result(self.plugin, method, result, "the data in another precision")
        return result

    def forward_context(self) -> AbstractContextManager[Any]:
        return self._context("forward_context")

    def module_init_context(self) -> AbstractContextManager[Any]:
        return self._context("module_init_context")

    def tensor_init_context(self) -> AbstractContextManager[Any]:
        return self._context("tensor_init_context")

    def _context(self, method: str) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = call_in_step(self.plugin, method)
        return context

    def unscale_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        call_in_step(self.plugin, "unscale_gradients", optimizer)

    def state_dict(self) -> dict[str, Any]:
        """Return the Precision's state, or its last state if it has been torn down. Empty if the Precision was never set up."""
        return self._state if self._in_use is None else dict(call(self._in_use, "state_dict"))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        call(self.plugin, "load_state_dict", state_dict)

    def teardown(self) -> None:
        """Tear the Precision down, and keep its state, which is saved in later checkpoints and loaded when the Precision is next set up."""
        if self._in_use is not None:
            self._state = self.state_dict()
            precision, self._in_use = self._in_use, None
            call(precision, "teardown")

    def _step(self, optimizer: Any, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Run the step of the optimizer through the ``optimizer_step`` of the Precision."""

        def _own_step(closure: Callable[[], Any] | None = None) -> Any:  # note_plugin recognises the optimizer's errors by this name
            return optimizer.step(closure=closure, **kwargs) if closure is not None else optimizer.step(**kwargs)

        return call_in_step(self.plugin, "optimizer_step", optimizer, _own_step, closure)


class FabricPrecision(PluginPrecision):
    """A precision for Fabric. Fabric uses it to convert the arguments and results of every forward pass, as Runtime does."""

    def pre_backward(self, tensor: torch.Tensor, module: Any) -> Any:
        """Do nothing. Fabric ignores the tensor that ``pre_backward`` returns, so the loss is scaled in ``backward`` instead."""

    def backward(self, tensor: torch.Tensor, model: Any, *args: Any, **kwargs: Any) -> None:
        backward_of(self.plugin)(tensor, **_named(args), **kwargs)

    def optimizer_step(self, optimizer: Any, **kwargs: Any) -> Any:
        return self._step(optimizer, **kwargs)


class TrainerPrecision(PluginPrecision):
    """A precision for a Trainer."""

    def convert_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Convert the LightningModule in place.

        Raises:
            UnsupportedError: If the Precision returns another module, on which the Trainer could not call ``training_step``.
        """
        converted = super().convert_module(module)
        if converted is not module:
            raise UnsupportedError(
                f"precision {self.precision!r} cannot be used in a Trainer",
                plugin=self.plugin.plugin,
                why=f"its convert_module replaces {type(module).__name__} by another module, and a Trainer keeps the LightningModule",
                hint="use it in Fabric or in accelkit.Runtime, or replace the module's layers instead of the module itself",
            )
        return converted

    def connect(self, model: Any, optimizers: list[Any], lr_schedulers: list[Any]) -> Any:
        for optimizer in optimizers:
            self.check_optimizer(optimizer)
        return super().connect(model, optimizers, lr_schedulers)

    def pre_backward(self, tensor: torch.Tensor, module: Any) -> torch.Tensor:
        scaled = call_in_step(self.plugin, "pre_backward", tensor)
        if not isinstance(scaled, torch.Tensor):
            raise wrong_result(self.plugin, "pre_backward", scaled, "a tensor")
        return super().pre_backward(scaled, module)

    def backward(self, tensor: torch.Tensor, model: Any, *args: Any, **kwargs: Any) -> None:
        """Run the Precision's ``backward`` if its class overrides ``Precision.backward``, or else the LightningModule's ``backward``.

        Raises:
            UnsupportedError: If the Precision and the LightningModule both override ``backward``.
        """
        if not overrides(self.plugin, Precision, "backward"):
            super().backward(tensor, model, *args, **kwargs)
            return
        if overrides(model, self._framework.part("core").LightningModule, "backward"):
            raise UnsupportedError(
                f"{type(model).__name__} overrides backward, which precision {self.precision!r} does too",
                plugin=self.plugin.plugin,
                why="only one of them can run the backward pass",
                hint="remove backward from the LightningModule, or use another precision",
            )
        call_in_step(self.plugin, "backward", tensor, **_named(args[1:]), **kwargs)  # the first argument is the optimizer

    def post_backward(self, tensor: torch.Tensor, module: Any) -> torch.Tensor:
        call_in_step(self.plugin, "post_backward", tensor)
        return super().post_backward(tensor, module)

    def optimizer_step(self, optimizer: Any, *, model: Any, closure: Callable[[], Any], **kwargs: Any) -> Any:  # type: ignore[override]
        """Compute and unscale the gradients, run Lightning's hooks, clip the gradients, and run the optimizer's step.

        Returns:
            The result of the optimizer's step. None if the step was skipped, for example because ``training_step`` returned None.

        Raises:
            UnsupportedError: If the optimizer requires a closure, as LBFGS does, and the Precision overrides ``optimizer_step`` or
                ``unscale_gradients``.
        """
        if not overrides(self.plugin, Precision, "optimizer_step", "unscale_gradients"):
            return super().optimizer_step(optimizer, model=model, closure=closure, **kwargs)
        parameter = inspect.signature(optimizer.step).parameters.get("closure")
        if parameter is not None and parameter.default is inspect.Parameter.empty:
            raise UnsupportedError(
                f"{type(optimizer).__name__} cannot be used with precision {self.precision!r} in a Trainer",
                plugin=self.plugin.plugin,
                why="it computes the gradients during its step, and a Trainer clips them there, before the precision can unscale them",
                hint="use an optimizer whose step needs no closure, or use the precision in Fabric or in accelkit.Runtime",
            )
        result = closure()
        if result is None and model.automatic_optimization:
            return None  # training_step returned None, so there was no backward pass
        self.unscale_gradients(optimizer)
        self._after_closure(model, optimizer)
        return self._step(optimizer, **kwargs)

    def clip_gradients(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Unscale the gradients, unless they are unscaled already, and clip them."""
        wrapper = self._framework.part("core.optimizer").LightningOptimizer  # what a LightningModule gets from optimizers()
        self.unscale_gradients(optimizer.optimizer if isinstance(optimizer, wrapper) else optimizer)
        super().clip_gradients(optimizer, *args, **kwargs)


def make_plugin_precision(framework: Framework, selected: Precision, accelerator: Accelerator, strategy: Any) -> Any:
    """Create a Lightning precision plugin that delegates to an accelkit Precision. The arguments are those of ``PluginPrecision``.

    The plugin's class has the same name as the class of ``selected``, because a Trainer saves the state of a plugin under the name of its
    class.
    """
    mixin = TrainerPrecision if framework.is_trainer else FabricPrecision
    bases = (mixin, framework.part("plugins.precision").Precision)
    return type(type(selected).__name__, bases, {"__module__": __name__})(framework, selected, accelerator, strategy)


def _named(arguments: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(_BACKWARD_ARGUMENTS, arguments, strict=False))
