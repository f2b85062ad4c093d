"""What a plugin does of its own: the runtime asks once, so that what is left as it was costs a step nothing."""

from __future__ import annotations


def overrides(plugin: object, specification: type, *methods: str) -> bool:
    """Whether the plugin's class does anything of its own in one of ``methods`` of its specification."""
    return any(getattr(type(plugin), method) is not getattr(specification, method) for method in methods)
