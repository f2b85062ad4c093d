"""Facts about devices that accelkit knows without a plugin: reserved names, aliases, vendors' packages.

Data, read from the built-ins' ``known_devices.toml``; and names that are used elsewhere, were, or are to be, from ``other_names.toml``.
"""

from __future__ import annotations

import functools
import importlib.util
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelkit.types import OWN_DISTRIBUTION, Kind, PluginRecord

BUILTIN_PACKAGE = "accelkit_builtin"


@functools.cache
def facts() -> Mapping[str, Any]:
    """The file ``known_devices.toml``, found without importing the package that holds it."""
    return _read("known_devices.toml")


def not_offered(kind: Kind, name: str) -> tuple[str, str] | None:
    """(reason, hint) for a name that is used elsewhere for a plugin of this kind, or was, and that nobody offers here."""
    entry = _other_names().get(kind, {}).get(name)
    return (entry["reason"], entry["hint"]) if entry else None


def other_spelling(kind: Kind, name: str) -> str:
    """The name that ``name`` is another spelling of; itself if it is none."""
    spelled: str = _other_names()["alias"].get(kind, {}).get(name, name)
    return spelled


@functools.cache
def _other_names() -> Mapping[str, Any]:
    return _read("other_names.toml")


def host_name() -> str:
    """The accelerator that is always there: the machine that runs Python."""
    return str(facts()["names"]["host"])


def reserved_names() -> frozenset[str]:
    """Accelerator names that no third party may take."""
    return frozenset(facts()["names"]["reserved"])


def aliases() -> Mapping[str, Mapping[str, Any]]:
    """Names that stand for the usable one of several: ``{name: {"candidates": [...], ...}}``."""
    found: Mapping[str, Mapping[str, Any]] = facts().get("aliases", {})
    return found


def retirement(name: str) -> tuple[str, str] | None:
    """(reason, hint) for a name that was retired."""
    entry = facts().get("retired", {}).get(name)
    return (str(entry["reason"]), str(entry.get("hint", ""))) if entry else None


def vendors() -> Mapping[str, Mapping[str, Any]]:
    """Vendors' devices by accelerator name: device type, package, how to install it."""
    found: Mapping[str, Mapping[str, Any]] = facts().get("vendors", {})
    return found


def visible_devices(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables set in ``environ`` that limit which devices a process sees: those known, and any of that ending."""
    names = {str(row.get("visible_devices_variable")) for row in vendors().values()} | set(facts()["names"]["visible_devices_variables"])
    return {name: environ[name] for name in sorted(environ) if name in names or name.endswith("VISIBLE_DEVICES")}


def has_package(name: str) -> bool:
    """Whether the package of a vendor's device is installed (found, not imported), or torch has the device itself."""
    package = vendors()[name].get("torch_package")
    return package is None or importlib.util.find_spec(str(package).partition(".")[0]) is not None


def fallback_records(version: str) -> list[PluginRecord]:
    """One record for each vendor's device; an installed plugin of that name takes its place."""
    return [
        PluginRecord(
            kind="accelerator",
            name=name,
            distribution=OWN_DISTRIBUTION,
            version=version,
            value=f"{BUILTIN_PACKAGE}.accelerators.known_vendor:{name}",
            description=str(row.get("description", "")),
            is_builtin=True,
            is_fallback=True,
        )
        for name, row in vendors().items()
    ]


def _read(name: str) -> Mapping[str, Any]:
    specification = importlib.util.find_spec(BUILTIN_PACKAGE)
    if specification is None or specification.origin is None:
        raise RuntimeError(f"{BUILTIN_PACKAGE} is not installed beside accelkit; reinstall accelkit")
    with Path(specification.origin).with_name(name).open("rb") as file:
        return tomllib.load(file)
