"""The user's choice of distributions: ACCELKIT_PLUGINS is the allow list, and ACCELKIT_DISABLE_PLUGINS is the deny list."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from accelkit.discovery.metadata import normalized
from accelkit.errors import UsageError
from accelkit.types import OWN_DISTRIBUTION

ALLOW, DENY = "ACCELKIT_PLUGINS", "ACCELKIT_DISABLE_PLUGINS"


class Policy(NamedTuple):
    """The allow list and the deny list: normalised names of distributions. ``allowed`` is None if all distributions are allowed."""

    allowed: frozenset[str] | None = None
    denied: frozenset[str] = frozenset()

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Policy:
        """Read ``ACCELKIT_PLUGINS`` and ``ACCELKIT_DISABLE_PLUGINS``.

        Raises:
            UsageError: If the allow list is set but empty, if it combines ``none`` with names, or if the deny list names accelkit itself.
        """
        allowed = None
        if (listed := environ.get(ALLOW)) is not None:
            allowed = _names(listed)
            if not allowed:
                raise UsageError(
                    f"{ALLOW} is set, but empty",
                    why="an empty value could mean either all plugins or none",
                    hint=f"unset it to allow all plugins, or set {ALLOW}=none (only built-in plugins) or {ALLOW}=vendor-acme-plugin",
                )
            if "none" in allowed:
                if len(allowed) > 1:
                    raise UsageError(
                        f"{ALLOW}={listed!r} combines 'none' with names of distributions", hint="use either 'none' or the names"
                    )
                allowed = frozenset()
        denied = _names(environ.get(DENY, ""))
        if OWN_DISTRIBUTION in denied:
            raise UsageError(
                f"{DENY} names {OWN_DISTRIBUTION}", why="the built-in plugins cannot be disabled", hint=f"remove it from {DENY}"
            )
        return cls(allowed, denied)

    def objection(self, distribution: str) -> tuple[str, str] | None:
        """Return (reason, hint) if this policy forbids the use of the distribution, else None."""
        name = normalized(distribution)
        if name == OWN_DISTRIBUTION:
            return None
        if name in self.denied:
            return f"{DENY} lists it", f"remove {name} from {DENY}"
        if self.allowed is not None and name not in self.allowed:
            return f"{ALLOW} does not list it", f"add {name} to {ALLOW}" if self.allowed else f"set {ALLOW}={name}"
        return None


def _names(text: str) -> frozenset[str]:
    return frozenset(normalized(part.strip()) for part in text.split(",") if part.strip())
