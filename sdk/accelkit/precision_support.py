"""Which precisions a device can do, and how: what their plugins need, against what the accelerator declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelkit.discovery.catalog import plugins
from accelkit.selection import load_named
from accelkit.types import Support

_WORST_FIRST: tuple[Support, ...] = ("none", "undeclared", "emulated", "native")


def precisions_of(capabilities: Mapping[str, Any]) -> dict[str, Support]:
    """Each of accelkit's own precisions, and the worst support of what it needs. Initialises nothing and imports no torch.

    Args:
        capabilities: As an accelerator declares them; a key that is missing is ``undeclared``.
    """
    found: dict[str, Support] = {}
    for record in plugins("precision"):
        if record.is_builtin:
            needed = load_named("precision", record.name).cls.required_capabilities
            found[record.name] = min((capabilities.get(key, "undeclared") for key in needed), key=_WORST_FIRST.index, default="native")
    return found
