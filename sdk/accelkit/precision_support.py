"""The precisions that a device supports, derived from the precisions' required capabilities and the accelerator's declared capabilities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelkit.capabilities import Support
from accelkit.discovery.catalog import plugins
from accelkit.selection import load_named

_WORST_FIRST: tuple[Support, ...] = ("none", "undeclared", "emulated", "native")


def precisions_of(capabilities: Mapping[str, Any]) -> dict[str, Support]:
    """Return the support for each of accelkit's own precisions: the lowest support among the capabilities that the precision requires.

    Does not initialise a driver or import torch.

    Args:
        capabilities: The capabilities that an accelerator declares. A missing key counts as ``undeclared``.
    """
    found: dict[str, Support] = {}
    for record in plugins("precision"):
        if record.is_builtin:
            needed = load_named("precision", record.name).cls.required_capabilities
            found[record.name] = min((capabilities.get(key, "undeclared") for key in needed), key=_WORST_FIRST.index, default="native")
    return found
