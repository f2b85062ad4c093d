"""Load an accelkit strategy for a bridge to another framework, and check that the accelerator supports the strategy."""

from __future__ import annotations

from accelkit.discovery import loading
from accelkit.selection import load_named
from accelkit.specs.accelerator import Accelerator
from accelkit.specs.strategy import Strategy


def checked_strategy(name: str, accelerator: Accelerator) -> Strategy:
    """Load a strategy by name, and let it check that the accelerator has what the strategy needs.

    Raises:
        UnsupportedError: If the accelerator lacks something that the strategy needs.
        UnknownNameError, UnavailableError, PluginError: If the strategy cannot be loaded.
    """
    loaded = load_named("strategy", name)
    strategy: Strategy = loading.instantiate(loaded.cls, loaded.record)
    strategy.check(accelerator)
    return strategy
