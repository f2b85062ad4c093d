"""The rules of the static checks, and the function that applies them to the class of a plugin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from accelkit.specs.finding import Finding
from accelkit.specs.static_checks.declarations import missing_docstring, unknown_capabilities, wrong_attributes, wrong_device_type
from accelkit.specs.static_checks.hook_methods import unused_hooks, wrong_hooks
from accelkit.specs.static_checks.members import misspelt, wrong_form
from accelkit.specs.static_checks.plugin_class import PluginClass, Rule
from accelkit.specs.static_checks.returns import wrong_results
from accelkit.specs.static_checks.signatures import constructor_with_arguments, missing_methods, wrong_signatures
from accelkit.types import Kind

__all__ = ["RULES", "TORCH_AT_IMPORT", "find_mistakes"]

RULES: Mapping[str, tuple[Rule, ...]] = {
    "documented": (missing_docstring,),
    "names": (misspelt,),
    "forms": (wrong_form,),
    "signatures": (wrong_signatures, constructor_with_arguments, missing_methods),
    "attributes": (wrong_attributes, wrong_device_type),
    "capabilities": (unknown_capabilities,),
    "results": (wrong_results,),
    "hooks": (lambda plugin: wrong_hooks(plugin.cls), unused_hooks),
}
"""The rules, by name. ``tests/discovery/test_vendor_mistakes.py`` has an example of a mistake for each rule."""

TORCH_AT_IMPORT = Finding(
    "import",
    "importing the plugin imports torch",
    "each child process that probes or describes the plugin then takes seconds",
    "move import torch into the methods that use it; for annotations, write it below if TYPE_CHECKING",
)
"""The finding for a plugin whose module imports torch. Only code that imports the plugin in a new process can detect this."""


def find_mistakes(kind: Kind, cls: type, rules: Iterable[str] = tuple(RULES)) -> list[Finding]:
    """Return the mistakes in the class of a plugin. No method of the class is called.

    Args:
        kind: The kind of the plugin.
        cls: The class of the plugin.
        rules: The names of the rules to apply. The default is all rules.
    """
    plugin = PluginClass(kind, cls)
    return [Finding(name, *found) for name in rules for rule in RULES[name] for found in rule(plugin)]
