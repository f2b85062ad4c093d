"""Installed plugins, read from metadata alone. No plugin is imported, and a defective plugin does not hide the others."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import importlib_metadata

from accelkit.discovery.device_table import BUILTIN_PACKAGE
from accelkit.discovery.metadata_files import Headers, headers, parse_entry_points
from accelkit.errors import message_in_one_line, shortened
from accelkit.types import OWN_DISTRIBUTION, Kind, PluginRecord

GROUPS: Mapping[str, Kind] = {
    "accelkit.accelerators": "accelerator",
    "accelkit.precisions": "precision",
    "accelkit.clusters": "cluster",
    "accelkit.strategies": "strategy",
    "accelkit.hooks": "hooks",
}
TORCH_GROUP = "torch.backends"
_CONFORMANCE_GROUP = "accelkit.conformance"  # read by the conformance suite
_SIMILARITY = 0.85  # if a group's name is at least this similar to one of accelkit's groups, it is taken for a misspelling
_LARGEST = 100_000  # maximum number of characters in an entry_points.txt
_LONGEST_NAME = 200  # maximum number of characters in a distribution's name, or in an entry point's name or value
_LONGEST_SUMMARY = 512  # maximum number of characters in a summary, as on PyPI
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


def normalized(distribution: str) -> str:
    """Normalise a distribution's name as in PEP 503. packaging's ``canonicalize_name`` does the same, but takes 5 ms to import."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


class Distribution(Protocol):
    """Protocol for importlib_metadata's distributions, with the only method that this module uses."""

    def read_text(self, filename: str, /) -> str | None: ...


class Installed(NamedTuple):
    """An installed distribution that provides plugins for accelkit, with its requirements and the records of its plugins."""

    distribution: str
    requirements: tuple[str, ...]
    records: tuple[PluginRecord, ...]


class TorchBackend(NamedTuple):
    """An entry point in the group ``torch.backends``, which ``import torch`` loads automatically."""

    name: str
    value: str
    distribution: str
    version: str

    @property
    def plugin(self) -> str:
        return f"{self.distribution}=={self.version}"


class Inventory(NamedTuple):
    """The installed distributions that matter to accelkit.

    Attributes:
        installed: The distributions that provide plugins for accelkit.
        torch_backends: The entry points that ``import torch`` loads automatically (the group ``torch.backends``).
        unreadable: The names of the distributions whose ``entry_points.txt`` is not UTF-8 or cannot be read. Because of such a file,
            ``importlib.metadata.entry_points()`` raises an error, and ``import torch`` therefore fails too.
    """

    installed: tuple[Installed, ...]
    torch_backends: tuple[TorchBackend, ...]
    unreadable: tuple[str, ...] = ()


def scan() -> Inventory:
    """Return the installed distributions with entry points in accelkit's groups or in ``torch.backends``, in the order of ``sys.path``."""
    found: dict[str, list[tuple[Path, Installed]]] = {}
    backends: list[TorchBackend] = []
    unreadable: list[str] = []
    for distribution in importlib_metadata.distributions(path=_existing_paths()):
        path = str(getattr(distribution, "_path", ""))  # the only way to find a distribution without METADATA
        if isinstance(distribution, importlib_metadata.PathDistribution) and _has_no_groups(path):
            continue
        folder = Path(path)
        text, complaint, is_readable = _entry_points_text(distribution, folder)
        if not is_readable:
            unreadable.append(_name_and_version(_metadata(distribution), folder)[0])
        if TORCH_GROUP in text:
            backends += _torch_backends(distribution, folder, text)
        if not _may_be_meant(text):
            continue
        installed = _read(distribution, folder, text, complaint)
        if installed.records:
            found.setdefault(normalized(installed.distribution), []).append((folder, installed))
    return Inventory(tuple(_first_of(installations) for installations in found.values()), tuple(backends), tuple(unreadable))


@functools.cache
def installed_version(distribution: str) -> str | None:
    """Return the version in a distribution's metadata, or None if the distribution is not installed or its metadata cannot be read.

    The result is cached until ``accelkit.discovery.catalog.refresh`` is called.
    """
    for found in importlib_metadata.distributions(name=distribution, path=_existing_paths()):
        if (metadata := _metadata(found)) is not None:
            return metadata.get("version", [""])[0]
    return None


def _existing_paths() -> list[str]:
    """Return the entries of ``sys.path`` that exist. For the others, importlib_metadata would import its zip reader, which takes time."""
    return [path for path in sys.path if os.path.exists(path or os.curdir)]


def _has_no_groups(path: str) -> bool:
    """Return whether a folder of metadata certainly has no entry points in accelkit's groups or ``torch.backends``.

    If the folder may have some, the result is False. Most folders have none, and for these, importlib_metadata would take five times as
    long as this function.
    """
    try:
        file = os.open(f"{path}/entry_points.txt", os.O_RDONLY)
    except FileNotFoundError:
        return os.path.isdir(path)
    except OSError:
        return False
    try:
        content = os.read(file, _LARGEST + 1)
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    finally:
        os.close(file)
    return len(content) <= _LARGEST and TORCH_GROUP not in text and not _may_be_meant(text)


def _may_be_meant(text: str) -> bool:
    """Return whether the text of an ``entry_points.txt`` may contain the name of an accelkit entry-point group, or a misspelling of one."""
    return "kit." in text or "accel" in text.lower()


def _entry_points_text(distribution: Distribution, folder: Path) -> tuple[str, str, bool]:
    """Return the text of a distribution's ``entry_points.txt``, what is wrong with it, and whether ``importlib.metadata`` can read it.

    The second value is empty if nothing is wrong. If the file is too large and declares plugins, an empty group replaces its text.
    """
    try:
        text = distribution.read_text("entry_points.txt") or ""
        if len(text) > _LARGEST and ("accelkit." in text or TORCH_GROUP in text):
            return "[accelkit.accelerators]\n", f"its entry_points.txt has {len(text):,} characters; the limit is {_LARGEST:,}", True
        return text, "", True
    except UnicodeDecodeError as error:
        text = (folder / "entry_points.txt").read_bytes().decode("utf-8", "backslashreplace")
        return text, f"its entry_points.txt is not UTF-8: {error}", False
    except OSError as error:
        return "", f"its entry_points.txt cannot be read: {error}", False


def _read(distribution: Distribution, folder: Path, text: str, complaint: str) -> Installed:
    metadata = _metadata(distribution)
    name, version = _name_and_version(metadata, folder)
    if metadata is None:
        complaint = complaint or f"METADATA is missing from {folder.name}, so its version and requirements are unknown"
    is_builtin = normalized(name) == OWN_DISTRIBUTION
    if is_builtin and _leads_elsewhere(text):  # an allow list that contains accelkit must not allow other packages that use its name
        name, is_builtin = f"{name} in {folder.parent}", False
        complaint = complaint or "its name is accelkit, but its entry points do not refer to accelkit's built-in plugins"
    blank = PluginRecord(
        kind="accelerator",
        name=name,
        distribution=name,
        version=version,
        value="",
        description="" if is_builtin or metadata is None else shortened(metadata.get("summary", [""])[0], _LONGEST_SUMMARY),
        is_builtin=is_builtin,
        fingerprint=_fingerprint(folder),
    )
    repair = f"pip install --force-reinstall --no-deps {name}, or report it to the vendor"
    if complaint and not text.partition("\n")[2]:
        return Installed(name, (), (blank.with_status("broken", complaint, repair),))
    try:
        entries = [(group, name, value) for group, name, value in parse_entry_points(text) if _meant(group)]
    except ValueError as error:
        if "accelkit." not in text:
            return Installed(name, (), ())
        reason = complaint or f"its entry_points.txt cannot be parsed: {message_in_one_line(error)}"
        return Installed(name, (), (blank.with_status("broken", reason, repair),))
    records = []
    for group, entry_name, value in entries:
        meant = _meant(group)
        record = dataclasses.replace(
            blank, kind=GROUPS[meant], name=shortened(entry_name, _LONGEST_NAME), value=shortened(value, _LONGEST_NAME)
        )
        reason = complaint or _malformation(entry_name, value)
        if reason:
            records.append(record.with_status("broken", reason, repair))
        elif group != meant:
            reason = f"its entry point is in the group {group!r:.100}, which accelkit does not read"
            hint = f"did you mean {meant!r}? Report it to the vendor of {name}, who must rename the group in pyproject.toml"
            records.append(record.with_status("broken", reason, hint))
        else:
            records.append(record)
    requirements = () if metadata is None else tuple(metadata.get("requires-dist", ()))
    return Installed(name, requirements, tuple(records))


def _meant(group: str) -> str:
    """Return the name in ``GROUPS`` that ``group`` equals or probably misspells, or "" if it is another group."""
    if group in GROUPS or group == _CONFORMANCE_GROUP:
        return group if group in GROUPS else ""
    if not _may_be_meant(group):
        return ""
    import difflib  # slow to import, and rarely needed

    spelt = group.strip().lower().replace("_", ".").replace("-", ".")
    near = [name for name in GROUPS if name in (spelt, f"{spelt}s")] or difflib.get_close_matches(spelt, GROUPS, n=1, cutoff=_SIMILARITY)
    return near[0] if near else ""


def _leads_elsewhere(text: str) -> bool:
    """Return whether an ``entry_points.txt`` with the content ``text`` declares plugins outside the package of the built-in plugins.

    If ``text`` cannot be parsed, the result is True.
    """
    try:
        return any(value.partition(".")[0] != BUILTIN_PACKAGE for group, _, value in parse_entry_points(text) if group in GROUPS)
    except ValueError:
        return True


def _malformation(name: str, value: str) -> str:
    if max(len(name), len(value)) > _LONGEST_NAME:
        return f"the name {name!r:.60} or the value {value!r:.60} of its entry point has more than {_LONGEST_NAME} characters"
    if not NAME.fullmatch(name):
        return f"its name {name!r} is invalid: a name consists of letters, digits and _ . + -"
    if not _is_reference(value):
        return f"its entry point {name} = {value!r} is malformed; the expected form is module:Class"
    return ""


def _is_reference(value: str) -> bool:
    """Return whether ``value`` has the form ``module:Class`` or ``module:Class [extra]``. Both names may contain dots."""
    reference, bracket, rest = value.partition("[")
    module, colon, attribute = reference.partition(":")
    names = [*module.rstrip().split("."), *attribute.strip().split(".")]
    return bool(colon) and all(map(str.isidentifier, names)) and (not bracket or rest.endswith("]"))


def _torch_backends(distribution: Distribution, folder: Path, text: str) -> list[TorchBackend]:
    name, version = _name_and_version(_metadata(distribution), folder)
    try:
        return [TorchBackend(entry, value, name, version) for group, entry, value in parse_entry_points(text) if group == TORCH_GROUP]
    except ValueError:
        return []  # torch cannot read this file either


def _first_of(installations: list[tuple[Path, Installed]]) -> Installed:
    """Return the installation that Python imports, marked as broken if a failed upgrade left two installations in the same folder."""
    folder, first = installations[0]
    twins = {other: installed for other, installed in installations if other.parent == folder.parent}
    if len(twins) < 2:
        return first
    names = " and ".join(sorted(path.name for path in twins))
    reason = f"its metadata exists twice ({names}), because an upgrade was interrupted"
    hint = f"run pip uninstall {first.distribution} until nothing is left, then install it again"
    records = tuple(record.with_status("broken", reason, hint) for record in first.records)
    return Installed(first.distribution, first.requirements, records)


def _metadata(distribution: Distribution) -> Headers | None:
    try:
        text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO")
    except (UnicodeDecodeError, OSError):
        return None
    return headers(text) if text else None


def _name_and_version(metadata: Headers | None, folder: Path) -> tuple[str, str]:
    name, _, version = folder.stem.partition("-")
    if metadata is None or "name" not in metadata:
        return name.replace("_", "-"), version
    return shortened(metadata["name"][0], _LONGEST_NAME), shortened(metadata.get("version", [version])[0], _LONGEST_NAME)


def _fingerprint(folder: Path) -> str:
    """Return a string that changes whenever the distribution is installed again, or "" if the installation is editable or has no RECORD."""
    try:
        if '"editable": true' in (folder / "direct_url.json").read_text("utf-8", "replace"):
            return ""  # its code can change without a new installation
    except OSError:
        pass
    try:
        return f"{folder}:{(folder / 'RECORD').stat().st_mtime_ns}"
    except OSError:
        return ""
