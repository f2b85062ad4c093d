"""Cache of the verdicts of trials and probes, in the user's cache folder.

Each installed version of a plugin has its own verdicts.

Trials: In a trial, a child process loads the plugin and computes with it. A third-party plugin that worked in a trial is later loaded
without another trial. The verdict on a built-in plugin is valid for an hour. ``accelkit list`` shows the cached verdicts on all plugins. If
a built-in plugin has no valid verdict, ``accelkit list`` probes the plugin and caches the result as its verdict. Such a verdict never takes
the place of a trial. The selection of an accelerator uses the cached verdict on a built-in accelerator only if ``known_devices.py`` lists
the accelerator's device. All other built-in accelerators are probed in the current process instead, without a trial.

Probes: When ``auto`` or an alias (``gpu``, ``tpu``) probes third-party plugins, the results are cached separately. Only ``auto`` and the
aliases use these results. A result is ``usable``, ``absent`` (the device is not present) or ``broken``. The result for a simulated device
does not expire. The result for any other device is valid for ten minutes, and only while ``machine_state`` does not change. While a result
is valid, no child process is started to probe the plugin. The result ``broken`` is not taken from the cache.

A cache that cannot be read or written, or that another user could have written, is ignored.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import time
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from accelkit import __version__, untrusted_json
from accelkit.atomic_file import atomic_file
from accelkit.discovery import device_table, machine_state
from accelkit.discovery.metadata import installed_version
from accelkit.discovery.verdict import Verdict
from accelkit.errors import UntrustedFileError
from accelkit.private_files import check_private, private_folder
from accelkit.regular_file import read_regular
from accelkit.types import PluginRecord

IMPORT_VARIABLE = "ACCELKIT_IMPORT"
"""The environment variable that names the module that is imported before ``torch:<device_type>`` uses the device."""
_GOOD_FOR_SECONDS = 3600
_PROBE_GOOD_FOR_SECONDS = 600
_LARGEST = 1_000_000  # size limit of a verdict in bytes


def cache_folder() -> Path:
    """Return the folder set by ACCELKIT_CACHE_DIR, or else ``accelkit`` in the platform's cache folder.

    Raises:
        RuntimeError: If the platform's cache folder is not known, because this user has no home folder.
    """
    if chosen := os.environ.get("ACCELKIT_CACHE_DIR"):
        return Path(chosen)
    import platformdirs

    folder = platformdirs.user_cache_path("accelkit", appauthor=False)
    if not folder.is_absolute():  # old versions of platformdirs do not expand ~, which would name a folder in the working directory
        raise RuntimeError(f"this user has no home folder, and so no cache folder: {folder}")
    return folder


def tried(records: Sequence[PluginRecord]) -> dict[PluginRecord, Verdict]:
    """Return the verdict of a trial for each record. In a trial, a child process loads the plugin and computes with it.

    A plugin that worked in an earlier trial is not tried again while the cached verdict is valid (see ``recalled``). All other plugins are
    tried, and their verdicts are cached (see ``remember``).
    """
    found = {record: verdict for record, verdict in recalled(records).items() if verdict.status == "usable" and not verdict.is_of_probe}
    fresh = _ask_all([record for record in records if record not in found], is_trial=True)
    for record, verdict in fresh.items():
        remember(record, verdict)
    return found | fresh


def probed(records: Sequence[PluginRecord], *, is_fresh: bool = False) -> dict[PluginRecord, Verdict]:
    """Return the verdict of a probe for each record.

    A plugin is probed in a child process, unless a cached result is still valid. The result ``broken`` is never taken from the cache. The
    result for a simulated device stays valid, because it depends only on the installed version and not on the machine. For all other
    devices, ``usable`` and ``absent`` are valid for ten minutes, as long as the state of the machine does not change.

    Args:
        records: The records of the plugins.
        is_fresh: Whether to probe all plugins again.
    """
    if not records:
        return {}
    state = machine_state.digest()
    cached = {} if is_fresh else _read(records, is_probe=True)
    found = {record: verdict for record, verdict in cached.items() if _is_current(verdict, state)}
    fresh = _ask_all([record for record in records if record not in found])
    for record, verdict in fresh.items():
        _write(record, verdict, state or "", is_probe=True, is_of_probe=True)
    return found | fresh


def _ask_all(records: Sequence[PluginRecord], *, is_trial: bool = False) -> dict[PluginRecord, Verdict]:
    if not records:
        return {}
    from accelkit.discovery.probing import ask_all  # probing is slow to import, and not needed if all verdicts are cached

    return ask_all(records, is_trial=is_trial)


def _is_current(verdict: Verdict, state: str | None) -> bool:
    """Return whether the cached result of a probe may be used, given the state of the machine."""
    if verdict.status == "broken":
        return False
    return verdict.is_simulated or (verdict.machine_state == state and 0 <= time.time() - verdict.cached_at < _PROBE_GOOD_FOR_SECONDS)


def recalled(records: Iterable[PluginRecord]) -> dict[PluginRecord, Verdict]:
    """Return a mapping from records to the verdicts cached by ``remember`` that are still valid.

    A verdict is not valid if the plugin, accelkit, Python, torch, the visible devices or ACCELKIT_IMPORT has changed since the verdict was
    cached. A verdict on a built-in plugin is also not valid if it is more than an hour old, or if a package was installed or removed.
    """
    now = time.time()
    return {
        record: verdict
        for record, verdict in _read(records).items()
        if not record.is_builtin or 0 <= now - verdict.cached_at < _GOOD_FOR_SECONDS
    }


def remember(record: PluginRecord, verdict: Verdict, *, is_of_probe: bool = False) -> None:
    """Cache a verdict, if later changes to the plugin's code can be detected.

    Verdicts on registered classes, and on third-party plugins whose installation is editable or has no RECORD, are therefore not cached.

    Args:
        record: The record of the plugin.
        verdict: The verdict of a trial, or of a probe if ``is_of_probe`` is True.
        is_of_probe: Whether the verdict comes from a probe. If True, the function ``tried`` does not use the verdict.
    """
    _write(record, verdict, is_of_probe=is_of_probe)


def _read(records: Iterable[PluginRecord], *, is_probe: bool = False) -> dict[PluginRecord, Verdict]:
    found: dict[PluginRecord, Verdict] = {}
    with contextlib.suppress(OSError, RuntimeError):
        folder, surroundings = _folder(), _surroundings()
        for record in filter(_is_memorable, records):
            with contextlib.suppress(OSError, ValueError, RuntimeError, UntrustedFileError):
                path = folder / _file_name(record, surroundings, is_probe)
                content = read_regular(path, _LARGEST)
                check_private(path)
                found[record] = Verdict.from_dict(untrusted_json.parse(content))
    return found


def _write(record: PluginRecord, verdict: Verdict, state: str = "", *, is_probe: bool = False, is_of_probe: bool = False) -> None:
    if not _is_memorable(record):
        return
    with contextlib.suppress(OSError, RuntimeError):
        path = _folder() / _file_name(record, _surroundings(), is_probe)
        try:
            private_folder(path.parent)
        except UntrustedFileError as error:
            warnings.warn(
                f"The results of testing plugins are not cached, so plugins are tested each time: {error}", RuntimeWarning, stacklevel=2
            )
            return
        facts = {"cached_at": time.time(), "machine_state": state, "is_of_probe": is_of_probe}
        with atomic_file(path, writer=str(os.getpid()), is_durable=False, mode=0o600) as temporary:
            temporary.write_text(json.dumps(verdict.as_dict() | facts), "utf-8")


def _is_memorable(record: PluginRecord) -> bool:
    return bool(record.fingerprint) or record.is_builtin


def _folder() -> Path:
    return cache_folder() / "verdicts"


def _surroundings() -> tuple[tuple[object, ...], tuple[str, ...]]:
    """Return the part of a cache key that is the same for all plugins, and the part that is added for built-in plugins.

    The first part contains the version and the prefix of Python, the versions of accelkit and torch, the variables that limit which devices
    a process sees, and the value of ACCELKIT_IMPORT. The second part changes if a package is installed or removed, because a built-in
    plugin may need a package that accelkit does not require.
    """
    devices = (device_table.visible_devices_variables(os.environ), os.environ.get(IMPORT_VARIABLE, ""))
    return (sys.version, sys.prefix, __version__, installed_version("torch"), *devices), tuple(machine_state.installations())


def _file_name(record: PluginRecord, surroundings: tuple[tuple[object, ...], tuple[str, ...]], is_probe: bool) -> str:
    installation = (record.kind, record.name, record.plugin, record.value, record.fingerprint)
    key = (installation, surroundings if record.is_builtin else surroundings[0], is_probe)
    digest = importlib.util.source_hash(repr(key).encode())  # hashlib takes 3 ms to import
    return f"{digest.hex()}.json"
