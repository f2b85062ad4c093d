"""Compatibility of a plugin with the installed accelkit and torch, according to its Requires-Dist. The plugin is not imported."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from accelkit.discovery.metadata import normalized
from accelkit.types import PluginStatus

GATED = ("accelkit", "torch")
_LONGEST = 1000  # maximum number of characters in a requirement
_REPORT = "report it to the vendor"
_PLAIN = r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?: *>= *([0-9]+(?:\.[0-9]+)*))?"
_VERSION = r"([0-9]+(?:\.[0-9]+)*)(?:(?:a|b|rc|\.post|\.dev)[0-9]+)*(?:\+[A-Za-z0-9]+(?:\.[A-Za-z0-9]+)*)?"


def objection(requirements: Sequence[str], version_of: Callable[[str], str | None]) -> tuple[PluginStatus, str, str] | None:
    """Return (status, reason, hint) if a plugin's requirements are not met or cannot be read, else None.

    Only the plugin's requirements for accelkit and torch are checked against the installed versions. ``version_of`` returns the installed
    version of a package, or None if the package is not installed.

    Markers are evaluated for this interpreter. Suffixes of the installed version are ignored: a vendor's own build of torch with version
    ``2.13.0a0+acme`` counts as 2.13.0, and so satisfies ``torch>=2.13``.
    """
    if long := next((line for line in requirements if len(line) > _LONGEST), None):
        return "broken", f"its requirement {long!r:.60} has {len(long):,} characters; the limit is {_LONGEST:,}", _REPORT
    rest = [line for line in requirements if not _is_satisfied(line, version_of)]
    if not rest:
        return None
    try:
        return _objection(rest, version_of)
    except (ValueError, RecursionError) as error:  # InvalidRequirement and UndefinedComparison of packaging are ValueErrors
        return "broken", f"its requirements cannot be read: {str(error).partition(chr(10))[0]:.200}", _REPORT


def _is_satisfied(line: str, version_of: Callable[[str], str | None]) -> bool:
    """Return True if a requirement has the form ``name`` or ``name>=1.2`` and is met.

    Only requirements on accelkit and torch are compared with the installed versions. Any other requirement of this form counts as met. If
    the result is False, the requirement may still be met, for example if it has another form, so the caller then checks it with packaging.
    Most plugins require only ``accelkit>=0.1``, so this function saves the import of packaging's parser, which takes 15 ms.
    """
    plain = re.fullmatch(_PLAIN, line)
    if plain is None:
        return False
    name, least = normalized(plain[1]), plain[2]
    if name not in GATED:
        return True
    installed = re.fullmatch(_VERSION, version_of(name) or "")
    return installed is not None and _numbers(installed[1]) >= _numbers(least or "0")


def _numbers(release: str) -> list[int]:
    return [int(number) for number in release.split(".")]


def _objection(requirements: Sequence[str], version_of: Callable[[str], str | None]) -> tuple[PluginStatus, str, str] | None:
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.version import InvalidVersion, Version

    for line in requirements:
        try:
            requirement = Requirement(line)
        except InvalidRequirement as error:
            return "broken", f"its requirement {line!r:.200} cannot be read: {str(error).splitlines()[0]:.200}", _REPORT
        name = normalized(requirement.name)
        if name not in GATED or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
            continue
        bare = f"{name}{requirement.specifier}"
        installed = version_of(name)
        if installed is None:
            return "incompatible", f"it requires {bare}, but {name} is not installed", f"pip install '{bare}'"
        try:
            base = Version(installed).base_version
        except InvalidVersion:
            return (
                "incompatible",
                f"it requires {bare}, but the version {installed!r} of the installed {name} is invalid",
                f"pip install '{bare}'",
            )
        if not requirement.specifier.contains(base, prereleases=True):
            reason = f"it requires {bare}, but {name} {installed} is installed"
            return "incompatible", reason, f"pip install '{bare}', or another version of the plugin"
    return None
