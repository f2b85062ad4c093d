"""Calls to plugin methods. Outside training steps, errors and wrong return values become errors that name the plugin.

In training steps, an error keeps its type, because programs may catch it. A note on the error names the plugin. Out-of-memory errors,
accelkit's own errors and errors of built-in plugins are never changed. Most values that plugins return in training steps are checked only
after something has failed. If nothing fails, the checks cost almost nothing.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from accelkit.capabilities import Capabilities
from accelkit.discovery import loading
from accelkit.errors import AccelkitError, BrokenPluginError, is_out_of_memory
from accelkit.types import FROM_CODE, OWN_DISTRIBUTION, Availability

if TYPE_CHECKING:
    from accelkit.specs.accelerator import Accelerator
    from accelkit.specs.precision import Precision
    from accelkit.specs.strategy import Strategy

_SPECIFICATIONS = "accelkit.specs."


def call(plugin: Accelerator | Precision | Strategy, method: str, *arguments: Any, **options: Any) -> Any:
    """Return ``plugin.method(*arguments, **options)``, for calls outside training steps.

    Errors of the built-in plugins, out-of-memory errors (not the plugin's fault) and accelkit's own errors are passed on unchanged. The
    return values of built-in plugins are not checked.

    Raises:
        BrokenPluginError: If the method raises any other error, or returns a value that is not of the type in the method's specification.
    """
    function = getattr(plugin, method)
    if is_built_in(plugin):
        return function(*arguments, **options)
    exhausted = None
    with loading.plugin_errors(plugin.plugin, _spell(plugin, method)):
        try:
            result = function(*arguments, **options)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            exhausted = error
    if exhausted is not None:
        raise exhausted
    return checked(plugin, method, result)


def call_in_step(plugin: Precision | Strategy, method: str, *arguments: Any, **options: Any) -> Any:
    """Call ``plugin.method(*arguments, **options)`` in a training step, check the type of the return value, and return this value.

    If the method raises an error, the error keeps its type, and ``note_plugin`` adds a note to it.

    Raises:
        BrokenPluginError: If the method returns a value that is not of the type in its specification.
    """
    try:
        result = getattr(plugin, method)(*arguments, **options)
    except Exception as error:
        note_plugin(error, plugin, method)
        raise
    return checked(plugin, method, result)


def checked(plugin: Accelerator | Precision | Strategy, method: str, result: Any) -> Any:
    """Check the type of ``result``, the return value of the method, and return ``result``.

    Raises:
        BrokenPluginError: If ``result`` is not of the type in the method's specification.
    """
    is_right, expected = _RETURNS.get(f"{_kind(plugin)}.{method}", (_anything, ""))
    if not is_right(result):
        raise wrong_result(plugin, method, result, expected)
    return result


def wrong_result(plugin: Accelerator | Precision | Strategy, method: str, result: object, expected: str) -> BrokenPluginError:
    """Return the error that states what a plugin's method returned, and what it should have returned."""
    return invalid_result(plugin, method, f"it returned {result!r:.80} ({type(result).__name__}) instead of {expected}")


def invalid_result(plugin: Accelerator | Precision | Strategy, method: str, why: str) -> BrokenPluginError:
    """Return the error that states that a plugin's method returned an invalid value. ``why`` states what is wrong with the value."""
    hint = f"see the docstring of accelkit.{_specification(plugin).__name__}.{method}"
    distribution = _distribution(plugin)
    rest = f"; report it to the vendor of {distribution}; ACCELKIT_DISABLE_PLUGINS={distribution} disables it"
    return BrokenPluginError(
        f"{_spell(plugin, method)} returned an invalid value",
        plugin=plugin.plugin,
        why=why,
        hint=hint + (rest if distribution not in (FROM_CODE, OWN_DISTRIBUTION) else ""),
    )


def note_plugin(error: Exception, plugin: Precision | Strategy, method: str) -> None:
    """Add a note to ``error``, which a method of the plugin raised during a training step. The note names the plugin.

    No note is added to accelkit's own errors, to out-of-memory errors, to errors of built-in plugins, to errors of methods that the plugin
    does not override, or to errors that the user's optimizer raises in its ``step``.
    """
    is_its_own = getattr(type(plugin), method) is not getattr(_specification(plugin), method)
    if isinstance(error, AccelkitError) or is_out_of_memory(error) or is_built_in(plugin) or not is_its_own:
        return
    if any(frame.f_code.co_name == "_own_step" for frame, _ in traceback.walk_tb(error.__traceback__)):
        return
    distribution = _distribution(plugin)
    hint = f"report it to the vendor of {distribution} with the traceback above; ACCELKIT_DISABLE_PLUGINS={distribution} disables it"
    if distribution == FROM_CODE:
        hint = loading.remedy(error, plugin.plugin)
    error.add_note(str(BrokenPluginError(f"{_spell(plugin, method)} failed", plugin=plugin.plugin, hint=hint)))


def is_built_in(plugin: Accelerator | Precision | Strategy) -> bool:
    """Return whether the plugin is part of accelkit.

    Errors in methods of built-in plugins come from torch or from the user's program, and need not name the plugin.
    """
    return _distribution(plugin) == OWN_DISTRIBUTION


def is_context(value: object) -> bool:
    """Return whether ``value`` is a context manager."""
    return hasattr(type(value), "__enter__") and hasattr(type(value), "__exit__")


def _spell(plugin: Accelerator | Precision | Strategy, method: str) -> str:
    return f"{method} of the {_kind(plugin)} {plugin.name}"


def _kind(plugin: Accelerator | Precision | Strategy) -> str:
    return next(kind for kind in loading.BASES if isinstance(plugin, loading.base_class(kind)))


def _specification(plugin: Accelerator | Precision | Strategy) -> type:
    return next(cls for cls in type(plugin).__mro__ if cls.__module__.startswith(_SPECIFICATIONS))


def _distribution(plugin: Accelerator | Precision | Strategy) -> str:
    return plugin.plugin.partition("==")[0]


def _anything(value: object) -> bool:
    return True


def _is_of_torch(name: str) -> Callable[[object], bool]:
    """Return a function that checks whether a value is an instance of the class ``torch.<name>``, such as ``torch.nn.Module``.

    If torch is not imported, that function returns False for every value.
    """

    def check(value: object) -> bool:
        found: Any = sys.modules.get("torch")
        for part in name.split("."):
            found = getattr(found, part, None)
        return found is not None and isinstance(value, found)

    return check


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _items(value: object) -> Sequence[object]:
    """Return ``value`` if it is a non-empty list or tuple. Otherwise, return ``("",)``.

    Callers check each item of the result. The empty string fails all of these checks.
    """
    return value if isinstance(value, list | tuple) and value else ("",)


_IS_MODULE = (_is_of_torch("nn.Module"), "a module")
_IS_MESH = _is_of_torch("distributed.device_mesh.DeviceMesh")
_IS_CONTEXT = (is_context, "a context manager")
_RETURNS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "accelerator.auto_device_count": (_is_count, "a number of devices"),
    "accelerator.capabilities": (lambda value: isinstance(value, Capabilities), "accelkit.Capabilities"),
    "accelerator.check": (lambda value: isinstance(value, Availability), "accelkit.Availability"),
    "accelerator.get_parallel_devices": (lambda value: all(map(_is_of_torch("device"), _items(value))), "a list of torch.device"),
    "accelerator.parse_devices": (lambda value: all(map(_is_count, _items(value))), "a list of device indices such as [0, 1]"),
    "precision.convert_module": _IS_MODULE,
    "precision.forward_context": _IS_CONTEXT,
    "precision.module_init_context": _IS_CONTEXT,
    "precision.state_dict": (lambda value: isinstance(value, dict), "a dict"),
    "precision.tensor_init_context": _IS_CONTEXT,
    "strategy.data_parallel_size": (lambda value: _is_count(value) and value > 0, "a positive int"),
    "strategy.device_mesh": (lambda value: value is None or _IS_MESH(value), "a torch.distributed.DeviceMesh, or None"),
    "strategy.clip_grad_norm_": (_is_of_torch("Tensor"), "a tensor with the norm before clipping"),
    "strategy.join": (lambda value: value is None or is_context(value), "a context manager, or None if it is not supported"),
    "strategy.no_sync": _IS_CONTEXT,
    "strategy.num_processes": (lambda value: _is_count(value) and value > 0, "a positive int"),
    "strategy.place_module": _IS_MODULE,
    "strategy.process_group_backend": (lambda value: value is None or isinstance(value, str), "the name of a backend or None"),
    "strategy.root_device": (_is_of_torch("device"), "a torch.device"),
    "strategy.unwrap_module": _IS_MODULE,
    "strategy.whole_parameters": _IS_CONTEXT,
    "strategy.wrap_module": _IS_MODULE,
    "strategy.wrap_training": _IS_MODULE,
}
