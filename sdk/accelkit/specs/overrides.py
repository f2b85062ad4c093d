"""What a plugin does of its own: the runtime asks once, so that what is left as it was costs a step nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def overrides(plugin: object, specification: type, *methods: str) -> bool:
    """Whether the plugin's class does anything of its own in one of ``methods`` of its specification."""
    return any(getattr(type(plugin), method) is not getattr(specification, method) for method in methods)


def overridden(plugin: object, specification: type, method: str) -> Callable[..., Any] | None:
    """The plugin's method, to be called; None if it is the specification's own."""
    found: Callable[..., Any] | None = getattr(plugin, method) if overrides(plugin, specification, method) else None
    return found
