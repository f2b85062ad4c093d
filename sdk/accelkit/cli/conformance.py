"""``accelkit conformance ...``: the commands of the conformance suite, a separate package in the same distribution."""

from __future__ import annotations

from accelkit_conformance.commands import command

__all__ = ["command"]
