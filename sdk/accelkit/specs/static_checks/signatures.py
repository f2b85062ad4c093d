"""Rules about signatures. They report methods with wrong arguments, missing methods, and constructors with required arguments."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence

from accelkit.specs.static_checks.plugin_class import PluginClass, did_you_mean, function_of, is_method


def wrong_signatures(plugin: PluginClass) -> Iterator[tuple[str, str, str]]:
    """Find methods whose arguments do not match the specification.

    A method is reported if it lacks ``self`` or an argument of the specification, requires an argument that the specification does not
    have, or takes the arguments in a different order. It is also reported if it accepts an argument only by keyword, although accelkit
    passes this argument by position.
    """
    for name, mine in plugin.own.items():
        theirs = plugin.specified.get(name)
        function, specified = function_of(mine), function_of(theirs)
        if not is_method(mine) or not is_method(theirs) or not inspect.isfunction(function):
            continue
        wanted = [one for one in list(inspect.signature(specified).parameters.values())[1:] if one.kind is one.POSITIONAL_OR_KEYWORD]
        parameters = list(inspect.signature(function).parameters.values())
        is_static = isinstance(mine, staticmethod)
        if not is_static and (not parameters or parameters[0].kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)):
            first = "cls" if isinstance(mine, classmethod) else "self"
            yield f"{plugin.spell(name)} takes no {first}", "accelkit calls it as a method", f"write def {name}({first}, ...)"
            continue
        starred = parameters and not is_static and parameters[0].kind is inspect.Parameter.VAR_POSITIONAL
        taken = parameters if is_static or starred else parameters[1:]
        if problem := _problem(taken, wanted):
            signature = ", ".join((["self"] if inspect.isfunction(theirs) else ["cls"]) + [_written(one) for one in wanted])
            yield f"{plugin.spell(name)} {problem[0]}", f"the specification has {name}({signature})", problem[1]


def constructor_with_arguments(plugin: PluginClass) -> Iterator[tuple[str, str, str]]:
    """Find a constructor that cannot be called without arguments."""
    constructor = inspect.getattr_static(plugin.cls, "__init__")
    if not inspect.isfunction(constructor):
        return
    try:
        inspect.signature(constructor).bind(None)
    except TypeError as error:
        hint = "give every argument of the constructor a default"
        yield f"{plugin.cls.__name__}.__init__ needs arguments", f"accelkit creates an instance without arguments: {error}", hint


def missing_methods(plugin: PluginClass) -> Iterator[tuple[str, str, str]]:
    """Find methods that the specification requires and that the class lacks."""
    for name in sorted(getattr(plugin.cls, "__abstractmethods__", ())):
        why = "its base class requires it, so no instance can be created"
        yield f"{plugin.spell(name)} is missing", why, f"write def {name}(self, ...)"


def _problem(taken: Sequence[inspect.Parameter], wanted: Sequence[inspect.Parameter]) -> tuple[str, str] | None:
    """Return what is wrong with the parameters of a method and what to write instead. Return None if accelkit can call the method."""
    takes_any_name = any(one.kind is one.VAR_KEYWORD for one in taken)
    takes_any_number = any(one.kind is one.VAR_POSITIONAL for one in taken)
    names = [one.name for one in taken if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    wanted_names = [one.name for one in wanted]
    missing = [name for name in wanted_names if name not in names and not takes_any_name]
    further = [
        one.name
        for one in taken
        if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL) and one.name not in wanted_names
    ]
    if missing and further and not (takes_any_number and takes_any_name):
        return f"has no argument {missing[0]!r}", f"rename its argument {further[0]!r} to {missing[0]!r}"
    if missing:
        return f"has no argument {missing[0]!r}", f"take {', '.join(missing)} too"
    if further:
        hint = did_you_mean(further[0], wanted_names, "accelkit passes") if wanted_names else "remove it, or give it a default"
        return f"requires the argument {further[0]!r}, which accelkit does not pass", hint
    shared = [name for name in names if name in wanted_names]
    if shared != [name for name in wanted_names if name in shared]:
        return f"takes its arguments in the order {', '.join(shared)}", f"take them in the order {', '.join(wanted_names)}"
    positional = [one.name for one in wanted if one.kind is not one.KEYWORD_ONLY]
    only_by_name = [one.name for one in taken if one.kind is one.KEYWORD_ONLY and one.name in positional]
    if only_by_name:
        return (
            f"takes {only_by_name[0]!r} only as a keyword argument",
            "remove the * before it, because accelkit passes it by position",
        )
    return None


def _written(parameter: inspect.Parameter) -> str:
    return parameter.name if parameter.default is parameter.empty else f"{parameter.name}={parameter.default!r}"
