"""Facts about devices that accelkit knows without a plugin: reserved names, aliases and vendors' packages.

The facts are in ``known_devices.py`` in the package of built-in plugins. Programs need these facts at startup, so the file is written in
Python, which loads faster than TOML. ``other_names.toml`` lists alternative spellings of names, and names that accelkit does not offer.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelkit.types import OWN_DISTRIBUTION, Kind, PluginRecord

BUILTIN_PACKAGE = "accelkit_builtin"


def not_offered(kind: Kind, name: str) -> tuple[str, str] | None:
    """Return, as (reason, hint), why accelkit has no plugin named ``name`` and what to use instead.

    Return None if ``other_names.toml`` does not list the name. For each kind of plugin, this file lists names that other frameworks use or
    used.
    """
    entry = _other_names().get(kind, {}).get(name)
    return (entry["reason"], entry["hint"]) if entry else None


def canonical_name(kind: Kind, name: str) -> str:
    """Return the canonical name if ``name`` is an alternative spelling of it, and otherwise ``name`` itself."""
    spelled: str = _other_names()["alias"].get(kind, {}).get(name, name)
    return spelled


@functools.cache
def _other_names() -> Mapping[str, Any]:
    import tomllib

    return tomllib.loads(Path(_known_devices().__file__).with_name("other_names.toml").read_text("utf-8"))


def host_name() -> str:
    """Return ``cpu``, the name of the accelerator that is always available: the CPU on which Python itself runs."""
    return str(_known_devices().HOST)


def reserved_names() -> frozenset[str]:
    """Return the accelerator names that no third party may use."""
    names: frozenset[str] = _known_devices().RESERVED
    return names


def aliases() -> Mapping[str, Mapping[str, Any]]:
    """Return the aliases (``gpu``, ``tpu``), as ``{name: {"candidates": (...), ...}}``.

    The candidates of an alias are the names of the accelerators for which it may stand. If exactly one candidate is usable here, the alias
    stands for this candidate. Otherwise, the alias cannot be used.
    """
    found: Mapping[str, Mapping[str, Any]] = _known_devices().ALIASES
    return found


def retirement(name: str) -> tuple[str, str] | None:
    """Return, as (reason, hint), why the accelerator ``name`` was retired and what to use instead; None if it was not retired."""
    entry = _known_devices().RETIRED.get(name)
    return (str(entry["reason"]), str(entry.get("hint", ""))) if entry else None


def vendors() -> Mapping[str, Mapping[str, Any]]:
    """Return what accelkit knows about each vendor accelerator, such as its device type and its package.

    The keys are the names of the accelerators.
    """
    found: Mapping[str, Mapping[str, Any]] = _known_devices().VENDORS
    return found


def visible_devices_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables set in ``environ`` that limit which devices a process sees.

    These are the known variables, and any other variable whose name ends in ``VISIBLE_DEVICES``.
    """
    names = {str(row.get("visible_devices_variable")) for row in vendors().values()} | set(_known_devices().VISIBLE_DEVICES_VARIABLES)
    return {name: environ[name] for name in sorted(environ) if name in names or name.endswith("VISIBLE_DEVICES")}


def has_package(name: str) -> bool:
    """Return whether the package that adds the accelerator ``name`` to torch can be found, without importing the package.

    If torch supports the accelerator without a further package, return True. ``name`` must be a key of ``vendors()``.
    """
    package = vendors()[name].get("torch_package")
    return package is None or importlib.util.find_spec(str(package).partition(".")[0]) is not None


def fallback_records(version: str) -> list[PluginRecord]:
    """Return a plugin record for each accelerator in ``vendors()``. An installed plugin of the same name replaces the record.

    ``version`` is the version of accelkit. It becomes the version of the plugin in each record.
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


@functools.cache
def _known_devices() -> Any:
    """Return the module ``known_devices`` of the built-in plugins. The module imports nothing but the standard library."""
    try:
        return importlib.import_module(f"{BUILTIN_PACKAGE}.known_devices")
    except ModuleNotFoundError as error:
        raise RuntimeError(f"the installation of accelkit lacks {BUILTIN_PACKAGE}; reinstall accelkit") from error
