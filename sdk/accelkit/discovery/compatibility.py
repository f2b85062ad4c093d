"""Whether a plugin fits what is installed, known before it is imported: from its own Requires-Dist on accelkit and torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from accelkit.types import PluginStatus

GATED = ("accelkit", "torch")


def objection(requirements: Sequence[str], version_of: Callable[[str], str | None]) -> tuple[PluginStatus, str, str] | None:
    """(status, reason, hint) if the requirements are not met, else None.

    Markers are evaluated for this interpreter. Base releases are compared and pre-releases allowed, so that a vendor's own build of
    torch (``2.13.0a0+acme``) satisfies ``torch>=2.13``.
    """
    for line in requirements:
        try:
            requirement = Requirement(line)
        except InvalidRequirement as error:
            return "broken", f"its requirement {line!r} cannot be read: {str(error).splitlines()[0]}", "report it to the vendor"
        name = canonicalize_name(requirement.name)
        if name not in GATED or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
            continue
        bare = f"{name}{requirement.specifier}"
        installed = version_of(name)
        if installed is None:
            return "incompatible", f"it requires {bare}, and {name} is not installed", f"pip install '{bare}'"
        try:
            base = Version(installed).base_version
        except InvalidVersion:
            return (
                "incompatible",
                f"it requires {bare}; the installed {name} {installed!r} has no readable version",
                f"pip install '{bare}'",
            )
        if not requirement.specifier.contains(base, prereleases=True):
            reason = f"it requires {bare}, {name} {installed} is installed"
            return "incompatible", reason, f"pip install '{bare}', or another version of the plugin"
    return None
