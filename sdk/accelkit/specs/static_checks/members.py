"""Rules about the names and forms of members: misspelt names, and wrong forms such as a method in place of a property."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from accelkit.specs.static_checks.hook_methods import specified_arguments
from accelkit.specs.static_checks.plugin_class import PluginClass, function_of, is_method, is_property

_SIMILARITY = 0.85
_ELSEWHERE: Mapping[str, Mapping[str, str]] = {
    "accelerator": {"is_available": "probe", "setup": "setup_device", "device_count": "auto_device_count"},
    "cluster": {
        "detect": "detect_cluster",
        "rank": "global_rank",
        "size": "world_size",
        "main_host": "main_address",
        "master_addr": "main_address",
        "master_address": "main_address",
        "master_port": "main_port",
    },
    "precision": {"convert_inputs": "convert_input", "convert_outputs": "convert_output", "clip_gradients": "unscale_gradients"},
    "strategy": {"setup_module": "wrap_module", "module_to_device": "place_module", "setup_environment": "setup"},
}
"""Names that other frameworks use, by kind of plugin, and the members of accelkit's specifications that correspond to them."""
_SET_BY_ACCELKIT = ("name", "plugin")


def misspelt(plugin: PluginClass) -> Iterator[tuple[str, str, str]]:
    """Find public members of a plugin that are probably misspelt.

    A member is reported if three conditions hold:

    - Neither a member of the specification nor a hook has its name.
    - The plugin's own code does not use the name.
    - The specification has a similar name that the plugin does not define.

    A name that another framework uses also counts as similar to the corresponding name in the specification. ``_ELSEWHERE`` lists these
    pairs.
    """
    candidates = [name for name in plugin.specified if name not in plugin.own and name not in _SET_BY_ACCELKIT]
    for name in plugin.own:
        if name in plugin.specified or name in specified_arguments() or name in plugin.mentioned:
            continue
        near = [known for known in [_ELSEWHERE.get(plugin.kind, {}).get(name)] if known in candidates]
        near = near or difflib.get_close_matches(name, candidates, n=1, cutoff=_SIMILARITY)
        if near:
            why = f"the specification of the {plugin.kind} has no {name}, so accelkit never uses it"
            yield f"{plugin.spell(name)} is unknown", why, f"did you mean {near[0]!r}? If the name is right, start it with an underscore"


def wrong_form(plugin: PluginClass) -> Iterator[tuple[str, str, str]]:
    """Find members whose form does not match the specification.

    Examples are a method where the specification has a property or an attribute, a property where the specification has a method, a
    coroutine, and a generator that lacks ``contextlib.contextmanager``.
    """
    for name, mine in plugin.own.items():
        if name not in plugin.specified:
            continue
        theirs = plugin.specified[name]
        if is_property(theirs):
            if is_method(mine):
                yield f"{plugin.spell(name)} is a method", "the specification has a property", f"write @property above def {name}"
        elif is_method(theirs):
            yield from _wrong_method(plugin, name, theirs, mine)
        elif is_method(mine):
            yield f"{plugin.spell(name)} is a method", "the specification has an attribute", f"write {name} = ... in the class"
        elif is_property(mine) and _is_read_from_class(plugin, name):
            yield f"{plugin.spell(name)} is a property", "it is read from the class", f"write {name} = ... in the class"
        elif isinstance(mine, property) and name in _SET_BY_ACCELKIT and mine.fset is None:
            hint = "remove it: the name is that of the entry point"
            yield f"{plugin.spell(name)} is a property", "accelkit sets it in each instance", hint


def _wrong_method(plugin: PluginClass, name: str, theirs: Any, mine: Any) -> Iterator[tuple[str, str, str]]:
    function = function_of(mine)
    if is_property(mine):
        yield f"{plugin.spell(name)} is a property", "the specification has a method", f"remove @property above def {name}"
    elif not callable(mine) and not is_method(mine):
        why = "the specification has a method"
        yield f"{plugin.spell(name)} is {mine!r:.60}, which cannot be called", why, f"write def {name}(...) instead"
    elif isinstance(theirs, classmethod) and inspect.isfunction(mine):
        why = "accelkit calls it on the class, before there is an instance"
        yield f"{plugin.spell(name)} is not a classmethod", why, f"write @classmethod above def {name}(cls)"
    elif inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        yield f"{plugin.spell(name)} is a coroutine", "accelkit calls it without await", f"write def {name} instead of async def {name}"
    elif inspect.isgeneratorfunction(function) and "AbstractContextManager" in str(_returned(theirs)):
        why = "accelkit uses its result in a with statement"
        yield f"{plugin.spell(name)} is a generator", why, f"write @contextlib.contextmanager above def {name}"


def _returned(theirs: Any) -> object:
    return inspect.signature(function_of(theirs)).return_annotation


def _is_read_from_class(plugin: PluginClass, name: str) -> bool:
    annotations = (inspect.get_annotations(one).get(name, "") for one in plugin.specifications)
    return any(str(annotation).startswith("ClassVar") for annotation in annotations)
