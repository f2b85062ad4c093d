"""``single_device``: one process on one device."""

from __future__ import annotations

from accelkit import Strategy


class SingleDeviceStrategy(Strategy):
    """One process on one device. Modules are not wrapped."""
