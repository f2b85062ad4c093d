"""Run forward and backward passes in a precision: convert inputs and outputs, enter the precision's forward context and scale losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from accelkit.errors import PrepareError, UnsupportedError, UsageError
from accelkit.plugin_calls import is_built_in, is_context, note_plugin, wrong_result
from accelkit.runtime.dynamic_subclass import restore_class, swap_class
from accelkit.specs.engine_strategy import EngineStrategy
from accelkit.specs.overrides import overridden, overrides
from accelkit.specs.precision import Precision

_ATTRIBUTE = "_accelkit_precision"


def backward_of(precision: Precision) -> Callable[..., None]:
    """Return the function that runs the backward pass of a loss.

    If the precision overrides none of ``pre_backward``, ``backward`` and ``post_backward``, this is ``torch.Tensor.backward`` itself, so
    that a step needs no extra call. Otherwise, the function adds the name of the plugin to errors that these methods raise.
    """
    if not overrides(precision, Precision, "pre_backward", "backward", "post_backward"):
        return torch.Tensor.backward
    before, after = precision.pre_backward, precision.post_backward
    run = overridden(precision, Precision, "backward") or torch.Tensor.backward

    def backward(loss: torch.Tensor, **kwargs: Any) -> None:
        doing, given = "pre_backward", loss
        try:
            loss = before(loss)
            doing = "backward"
            run(loss, **kwargs) if kwargs else run(loss)  # a call with ** takes longer
            doing = "post_backward"
            after(loss)
        except Exception as error:
            check_loss(given)
            if doing == "backward" and not isinstance(loss, torch.Tensor):
                raise wrong_result(precision, "pre_backward", loss, "a tensor") from error
            note_plugin(error, precision, doing)
            raise

    return backward


def check_loss(loss: object) -> None:
    """Check that ``loss`` is a tensor, and not a number such as the result of ``loss.item()``.

    Raises:
        UsageError: If it is not a tensor.
    """
    if not isinstance(loss, torch.Tensor):
        raise UsageError(
            f"rt.backward needs a tensor, got {type(loss).__name__}",
            why="gradients can be computed only from the tensor that the forward pass returned, not from a number such as loss.item()",
            hint="call rt.backward(loss) with the loss itself",
        )


def backward_of_engine(strategy: EngineStrategy) -> Callable[..., None]:
    """Return the function that runs the backward pass of a loss with an engine strategy.

    For a built-in strategy, this is ``strategy.backward`` itself. For a third-party strategy, it is a wrapper around ``strategy.backward``
    that adds the name of the plugin to errors.
    """
    if is_built_in(strategy):
        return strategy.backward

    def backward(loss: torch.Tensor, **kwargs: Any) -> None:
        try:
            strategy.backward(loss, **kwargs)
        except Exception as error:
            note_plugin(error, strategy, "backward")
            raise

    return backward


def apply_to_forward(module: torch.nn.Module, precision: Precision) -> None:
    """Change ``module`` in place so that its forward passes run in this precision. Does nothing if the precision changes no forward pass.

    Raises:
        PrepareError: If ``module`` has an instance attribute ``forward``, which would bypass the ``forward`` that runs in this precision.
    """
    if not overrides(precision, Precision, "convert_input", "forward_context", "convert_output"):
        return
    target = getattr(module, "_orig_mod", module)  # torch.compile's wrapper calls the module inside, which it traces
    if "forward" in vars(target):
        raise PrepareError(
            f"{type(target).__name__} cannot be prepared for {precision.name}",
            why="its forward was replaced on the instance, so the precision would be bypassed",
            hint="override forward in a subclass, or use precision='32-true'",
        )
    target.__dict__[_ATTRIBUTE] = precision
    swap_class(target, _behaviour(precision))


def remove_from_forward(module: torch.nn.Module) -> None:
    """Undo ``apply_to_forward``, in place. The module gets its original class back, and computes in the dtypes of its parameters.

    Does nothing if ``apply_to_forward`` has not changed the module.

    Raises:
        UnsupportedError: If the class of the module has been changed again since ``apply_to_forward``.
    """
    target = getattr(module, "_orig_mod", module)
    if _ATTRIBUTE not in vars(target):
        return
    if not restore_class(target, _behaviour(target.__dict__[_ATTRIBUTE])):
        raise UnsupportedError(
            f"precision {target.__dict__[_ATTRIBUTE].name!r} cannot be removed from {type(target).__name__}",
            why="its class was changed again after it was prepared, as strategies that shard do",
            hint="use keep_fp32_wrapper=True, or load rt.get_state_dict(model) into a new model",
        )
    del target.__dict__[_ATTRIBUTE]


def _behaviour(precision: Precision) -> Callable[[type], dict[str, Any]]:
    """Return the ``Behaviour`` (see ``dynamic_subclass``) that makes the forward passes of a module run in this precision.

    For a third-party precision, an exception handler adds the name of the plugin to errors. For a built-in precision, there is no
    handler, because a handler limits what torch.compile can trace.
    """
    return forward_in_precision if is_built_in(precision) else forward_in_plugins_precision


def forward_in_precision(cls: type) -> dict[str, Any]:
    """Return a dict with the method ``forward`` for a subclass of ``cls``. The method runs the ``forward`` of ``cls`` in the Precision that
    ``apply_to_forward`` stored in the module.
    """
    original: Any = cls

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        precision = self.__dict__[_ATTRIBUTE]
        if type(precision).convert_input is not Precision.convert_input:
            args, kwargs = precision.convert_input(args), precision.convert_input(kwargs)
        with precision.forward_context():
            result = original.forward(self, *args, **kwargs)
        return precision.convert_output(result)

    return {"forward": forward}


def forward_in_plugins_precision(cls: type) -> dict[str, Any]:
    """Like ``forward_in_precision``, but for a third-party precision.

    If a method of the precision raises an error, or causes an error by returning a wrong result, the error names the plugin.
    """
    original: Any = cls

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        precision = self.__dict__[_ATTRIBUTE]
        doing, context = "convert_input", None
        try:
            args, kwargs = precision.convert_input(args), precision.convert_input(kwargs)
            doing = "forward_context"
            context = precision.forward_context()
            with context:
                doing = ""
                result = original.forward(self, *args, **kwargs)
                doing = "forward_context"
            doing = "convert_output"
            converted = precision.convert_output(result)
        except Exception as error:
            _check_results(error, precision, args, kwargs, context)
            if doing:
                note_plugin(error, precision, doing)
            raise
        if converted is None and result is not None:
            raise wrong_result(precision, "convert_output", converted, "the result in another precision")
        return converted

    return {"forward": forward}


def _check_results(error: Exception, precision: Precision, args: object, kwargs: object, context: object) -> None:
    """Check what the methods of the precision returned in a forward pass that failed.

    Raises:
        BrokenPluginError: If a wrong result caused the failure.
    """
    if not isinstance(args, tuple | list):
        raise wrong_result(precision, "convert_input", args, "a tuple") from error
    if not isinstance(kwargs, Mapping):
        raise wrong_result(precision, "convert_input", kwargs, "a dict") from error
    if context is not None and not is_context(context):
        raise wrong_result(precision, "forward_context", context, "a context manager") from error
