"""Support for accelkit plugins with a method ``register_accelerators(registry)``, which Lightning's own accelerators also have.

The method registers accelerators under names of the plugin's choice.
"""

from __future__ import annotations

from typing import Any

from accelkit.bridges.lightning.adapter import from_lightning
from accelkit.bridges.lightning.compat import Framework
from accelkit.discovery import loading
from accelkit.errors import NameConflictError, UsageError
from accelkit.selection import load_named
from accelkit.specs.accelerator import Accelerator

_offers: dict[str, tuple[Any, dict[str, Any], str]] = {}


def register_all(name: str, framework: Framework) -> None:
    """Load the plugin ``name``, and let the plugin register its accelerators.

    The plugin receives a new, empty registry that has the same class as Lightning's own registry.

    Raises:
        UsageError: If the plugin has no ``register_accelerators``.
        NameConflictError: If the plugin registers a name that Lightning or another plugin uses.
        UnknownNameError, PluginError: If the plugin cannot be loaded.
    """
    loaded = load_named("accelerator", name)
    register = getattr(loaded.cls, "register_accelerators", None)
    if register is None:
        raise UsageError(
            f"the accelerator {name!r} registers no names",
            plugin=loaded.record.plugin,
            why=f"{loaded.cls.__name__} has no method register_accelerators(registry)",
            hint=f"call install() without the name; Trainer(accelerator={name!r}) then works",
        )
    registry = type(framework.registry)()
    with loading.plugin_errors(loaded.record.plugin, f"{loaded.cls.__name__}.register_accelerators"):
        register(registry)
    for offered, entry in registry.items():
        taken = _offers[offered][2] if offered in _offers else framework.package if offered in framework.registry else ""
        if taken not in ("", loaded.record.plugin):
            raise NameConflictError(
                f"the accelerator name {offered!r} is taken",
                plugin=loaded.record.plugin,
                why=f"{taken} already registers it",
                hint="ask the vendor to use another name, or omit this plugin from install()",
            )
        _offers[offered] = (entry["accelerator"], entry["init_params"], loaded.record.plugin)


def registered(name: str) -> Accelerator | None:
    """Create the accelerator that a plugin registered under ``name``, or return None if no plugin registered this name."""
    if name not in _offers:
        return None
    cls, options, plugin = _offers[name]
    with loading.plugin_errors(plugin, f"creating the accelerator {name}"):
        accelerator: Accelerator = cls(**options) if issubclass(cls, Accelerator) else from_lightning(cls, **options)()
    accelerator.name, accelerator.plugin = name, plugin
    return accelerator


def forget_all() -> None:
    _offers.clear()
