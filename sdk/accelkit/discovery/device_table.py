"""Facts about devices that accelkit knows without a plugin: reserved names, aliases and vendors' packages.

The facts are read from ``known_devices.toml`` in the package of built-in plugins. ``other_names.toml`` lists names that are used
elsewhere, were used before, or are planned.
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
    """Return the content of ``known_devices.toml``, without importing the package that contains it."""
    return _read("known_devices.toml")


def not_offered(kind: Kind, name: str) -> tuple[str, str] | None:
    """Return, as (reason, hint), why accelkit has no plugin named ``name`` and what to use instead; None if the name is not listed.

    ``other_names.toml`` lists such names for each kind of plugin: names from other frameworks, former names and planned names.
    """
    entry = _other_names().get(kind, {}).get(name)
    return (entry["reason"], entry["hint"]) if entry else None


def canonical_name(kind: Kind, name: str) -> str:
    """Return the canonical name if ``name`` is an alternative spelling of it, and otherwise ``name`` itself."""
    spelled: str = _other_names()["alias"].get(kind, {}).get(name, name)
    return spelled


@functools.cache
def _other_names() -> Mapping[str, Any]:
    return _read("other_names.toml")


def host_name() -> str:
    """Return the name of the accelerator that is always available: the CPU of the machine that runs Python."""
    return str(facts()["names"]["host"])


def reserved_names() -> frozenset[str]:
    """Return the accelerator names that no third party may use."""
    return frozenset(facts()["names"]["reserved"])


def aliases() -> Mapping[str, Mapping[str, Any]]:
    """Return the aliases that stand for several accelerators (``gpu``, ``tpu``), as ``{name: {"candidates": [...], ...}}``.

    If exactly one candidate of an alias is usable here, the alias stands for this candidate. Otherwise, the alias cannot be used.
    """
    found: Mapping[str, Mapping[str, Any]] = facts().get("aliases", {})
    return found


def retirement(name: str) -> tuple[str, str] | None:
    """Return, as (reason, hint), why the accelerator ``name`` was retired and what to use instead; None if it was not retired."""
    entry = facts().get("retired", {}).get(name)
    return (str(entry["reason"]), str(entry.get("hint", ""))) if entry else None


def vendors() -> Mapping[str, Mapping[str, Any]]:
    """Return, for the name of each vendor's accelerator, its device type, its package and how to install the package."""
    found: Mapping[str, Mapping[str, Any]] = facts().get("vendors", {})
    return found


def visible_devices_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables set in ``environ`` that limit which devices a process sees.

    These are the known variables, and any other variable whose name ends in ``VISIBLE_DEVICES``.
    """
    names = {str(row.get("visible_devices_variable")) for row in vendors().values()} | set(facts()["names"]["visible_devices_variables"])
    return {name: environ[name] for name in sorted(environ) if name in names or name.endswith("VISIBLE_DEVICES")}


def has_package(name: str) -> bool:
    """Return whether the package that adds the accelerator ``name`` to torch can be found, without importing the package.

    If torch supports the accelerator without a further package, return True. ``name`` must be a key of ``vendors()``.
    """
    package = vendors()[name].get("torch_package")
    return package is None or importlib.util.find_spec(str(package).partition(".")[0]) is not None


def fallback_records(version: str) -> list[PluginRecord]:
    """Return one record for each vendor's device. An installed plugin of the same name replaces the record.

    ``version`` is the version of accelkit.
    """
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
        raise RuntimeError(f"the installation of accelkit lacks {BUILTIN_PACKAGE}; reinstall accelkit")
    with Path(specification.origin).with_name(name).open("rb") as file:
        return tomllib.load(file)
