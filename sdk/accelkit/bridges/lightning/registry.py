"""Support for accelkit plugins that have a method ``register_accelerators(registry)``.

Lightning's own accelerators also have this method. It registers accelerators under names of the plugin's choice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from accelkit.bridges.lightning.adapter import from_lightning
from accelkit.bridges.lightning.compat import Framework
from accelkit.discovery import loading
from accelkit.errors import NameConflictError, UsageError
from accelkit.selection import load_named
from accelkit.specs.accelerator import Accelerator

_Offer = tuple[Any, dict[str, Any], str]  # an accelerator class, its options, and the plugin
_offers: dict[str, _Offer] = {}


def register_all(names: Iterable[str], framework: Framework) -> None:
    """Load the plugins named in ``names``, and let each register its accelerators. If a plugin fails, no accelerators are registered.

    Each plugin receives a new, empty registry that has the same class as Lightning's own registry.

    Raises:
        UsageError: If a plugin has no ``register_accelerators``.
        NameConflictError: If a plugin registers a name that Lightning or another plugin uses.
        UnknownNameError, PluginError: If a plugin cannot be loaded.
    """
    offers = dict(_offers)
    for name in names:
        _register(name, framework, offers)
    _offers.update(offers)


def _register(name: str, framework: Framework, offers: dict[str, _Offer]) -> None:
    """Add to ``offers`` the accelerators that the plugin ``name`` registers."""
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
        taken = offers[offered][2] if offered in offers else framework.package if offered in framework.registry else ""
        if taken not in ("", loaded.record.plugin):
            raise NameConflictError(
                f"the accelerator name {offered!r} is taken",
                plugin=loaded.record.plugin,
                why=f"{taken} already registers it",
                hint="ask the vendor to use another name, or omit this plugin from install()",
            )
        offers[offered] = (entry["accelerator"], entry["init_params"], loaded.record.plugin)


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
