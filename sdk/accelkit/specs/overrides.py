"""Find the methods that a plugin overrides. The runtime does this once, so that training steps skip inherited defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def overrides(plugin: object, specification: type, *methods: str) -> bool:
    """Return whether the plugin's class overrides at least one of ``methods`` of its specification."""
    return any(getattr(type(plugin), method) is not getattr(specification, method) for method in methods)


def overridden(plugin: object, specification: type, method: str) -> Callable[..., Any] | None:
    """Return the plugin's bound method, or None if the method is inherited from the specification."""
    found: Callable[..., Any] | None = getattr(plugin, method) if overrides(plugin, specification, method) else None
    return found
