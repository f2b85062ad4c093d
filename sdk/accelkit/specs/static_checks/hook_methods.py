"""Rules about hook implementations: their names, their arguments and the marker ``@hookimpl``."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from accelkit.specs.hooks import HOOK_SPECIFICATIONS
from accelkit.specs.static_checks.plugin_class import PluginClass, did_you_mean, is_method

_MARK = "accelkit_impl"
_SIMILARITY = 0.85

Arguments = Mapping[str, tuple[str, ...]]


@functools.cache
def specified_arguments() -> Arguments:
    """Return a mapping from the name of each hook to the names of the hook's arguments, in the order of the signature."""
    return {name: tuple(inspect.signature(function).parameters)[1:] for name, function in specified_hooks().items()}


@functools.cache
def specified_hooks() -> Mapping[str, Any]:
    """Return a mapping from the name of each hook to the function that specifies the hook."""
    return {
        name: function
        for specification in HOOK_SPECIFICATIONS
        for name, function in vars(specification).items()
        if hasattr(function, "accelkit_spec")
    }


def mark_of(cls: type, name: str) -> Any:
    """Return the options of the marker ``@hookimpl`` on the attribute ``name`` of the class, or None if the attribute has no such marker.

    The class and its bases are searched without evaluating properties.
    """
    for one in cls.__mro__:
        attribute = vars(one).get(name)
        function = getattr(attribute, "__func__", attribute)
        if inspect.isfunction(function) and hasattr(function, _MARK):
            return getattr(function, _MARK)
    return None


def wrong_hooks(cls: type) -> Iterator[tuple[str, str, str]]:
    """Find methods that are marked with ``@hookimpl`` although no hook has their name.

    Also find marked methods that require an argument which the hook does not have.
    """
    specified = specified_arguments()
    for name in dir(cls):
        if mark_of(cls, name) is None:
            continue
        spelt = f"{cls.__name__}.{name}"
        if name not in specified:
            why = f"no specification has a hook named {name!r}"
            yield f"{spelt} implements an unknown hook", why, did_you_mean(name, specified, "known hooks are")
            continue
        for parameter in _parameters(inspect.getattr_static(cls, name)):
            is_taken = parameter.default is parameter.empty and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            if is_taken and parameter.name not in specified[name]:
                yield (
                    f"{spelt} has an unknown argument {parameter.name!r}",
                    f"the signature of the hook is {name}({', '.join(specified[name])})",
                    did_you_mean(parameter.name, specified[name], "an implementation may have the arguments"),
                )


def unused_hooks(plugin: PluginClass) -> Iterator[tuple[str, str, str]]:
    """Find methods that look like hook implementations, but are never called because they lack the marker or their name is misspelt.

    Also find hook wrappers (such as ``@hookimpl(wrapper=True)``) that do not yield, and hook plugins that implement no hook. Each finding
    consists of what is wrong, why, and how to correct it.
    """
    for name, value in plugin.own.items():
        if not is_method(value) or name in plugin.specified:
            continue
        mark = mark_of(plugin.cls, name)
        if mark is None and name in specified_arguments():
            why = "it has the name of a hook, but accelkit calls only the implementations that are marked"
            yield f"{plugin.spell(name)} is not marked", why, f"write @hookimpl (from accelkit import hookimpl) above def {name}"
        elif mark is None and plugin.kind == "hooks" and name not in plugin.mentioned:
            if near := difflib.get_close_matches(name, specified_arguments(), n=1, cutoff=_SIMILARITY):
                hint = f"did you mean {near[0]!r}? Mark it with @hookimpl. If the name is right, start it with an underscore"
                yield f"{plugin.spell(name)} is unknown", "no hook has this name, so accelkit never calls it", hint
        elif mark is not None and (mark["wrapper"] or mark["hookwrapper"]) and not inspect.isgeneratorfunction(value):
            hint = "yield once, and return the result of the yield"
            yield f"{plugin.spell(name)} is a wrapper that does not yield", "a wrapper of a hook is a generator", hint
    if plugin.kind == "hooks" and not any(name in specified_arguments() or mark_of(plugin.cls, name) for name in plugin.own):
        why = "a hook plugin consists of methods that implement hooks"
        yield f"{plugin.cls.__name__} implements no hook", why, f"the hooks are {', '.join(specified_arguments())}"


def _parameters(value: Any) -> list[inspect.Parameter]:
    function = getattr(value, "__func__", value)
    return list(inspect.signature(function).parameters.values())[0 if isinstance(value, staticmethod) else 1 :]
