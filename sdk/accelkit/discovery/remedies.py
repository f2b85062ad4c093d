"""Remedies for errors in plugins, by cause, such as a missing library, a server that does not respond or an unregistered device."""

from __future__ import annotations

import difflib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from accelkit.discovery.metadata import installed_version

_Remedy = Callable[["re.Match[str]"], str]


def by_cause(error: BaseException) -> str:
    """Return what to do about the cause of an error: a phrase without a full stop, or "" if the cause is not known.

    The error is considered first, then its causes and contexts.
    """
    for one in _chain(error):
        if found := _by_type(one) or by_text(f"{type(one).__name__}: {one}"):
            return found
    return ""


def by_text(text: str) -> str:
    """Return what to do about an error that has this text, or "" if no remedy is known.

    The text may also be the place in the code at which a process exceeded its time limit.
    """
    for pattern, remedy in _BY_TEXT:
        if match := re.search(pattern, text):
            return remedy if isinstance(remedy, str) else remedy(match)
    return ""


def _by_type(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("torch."):
        package = error.name.partition(".")[0]
        if package != error.name and importlib.util.find_spec(package) is not None:
            return f"{package} is not completely installed, or its extension was not compiled: install or build it again"
        return f"install the package that provides the module {error.name}"
    if isinstance(error, ImportError) and error.name == "accelkit" and (name := getattr(error, "name_from", None)):
        near = difflib.get_close_matches(name, sys.modules["accelkit"].__all__, n=1)
        meant = f"did you mean accelkit.{near[0]}?" if near else "upgrade accelkit, or see the list of public names in the reference"
        return f"accelkit {installed_version('accelkit')} has no {name}: {meant}"
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}, line {error.lineno}"
        return f"correct {where}, or use a version of Python that the plugin supports (this is {'.'.join(map(str, sys.version_info[:2]))})"
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        return _missing_attribute(error)
    if isinstance(error, PermissionError) and error.filename:
        return f"allow this user to open {error.filename}, for example by adding the user to the group of the file"
    return ""


def _chain(error: BaseException) -> Sequence[BaseException]:
    found: list[BaseException] = []
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop(0)
        if one is not None and one not in found:
            found.append(one)
            pending += [one.__cause__, None if one.__suppress_context__ else one.__context__]
    return found


def _undefined_symbol(match: re.Match[str]) -> str:
    installed = installed_version("torch")
    whose = "it was built for another version of torch"
    if not (found := _required_torch(match["file"]) if match["file"] else None):
        whose += " or of a library"
    elif installed and _allows(found[1], installed):
        whose += f" or of a library, although {found[0]} requires only {found[1]}"
    else:
        whose += f" ({found[0]} requires {found[1]}; torch {installed} is installed)"
    return f"{whose}: install a build for torch {installed}, or build it again"


def _required_torch(file: str) -> tuple[str, str] | None:
    """Return the distribution that contains a shared library, and the version of torch that the distribution requires.

    An example is ``("torch-acme 1.0", "torch==2.9.*")``. Return None if the distribution is not known or does not require torch.
    """
    from importlib import metadata

    packages = metadata.packages_distributions()
    for package in (part for part in Path(file).parts if part in packages):
        for distribution in packages[package]:
            for line in metadata.requires(distribution) or ():
                if re.match(r"torch\b(?![-_.])", line):
                    return f"{distribution} {installed_version(distribution)}", line.partition(";")[0].strip()
    return None


def _allows(requirement: str, version: str) -> bool:
    """Return whether a version meets a requirement. The result is False if the requirement or the version cannot be parsed."""
    from packaging.requirements import Requirement

    try:
        return Requirement(requirement).specifier.contains(version, prereleases=True)
    except ValueError:  # InvalidRequirement and InvalidVersion of packaging are ValueErrors
        return False


def _missing_library(match: re.Match[str]) -> str:
    return f"install the missing library {match['library']}, or add its folder to the loader's path (LD_LIBRARY_PATH)"


def _missing_program(match: re.Match[str]) -> str:
    return (
        f"install {match['program']}, or add its folder to PATH, if the device needs this program; otherwise, check the path of this file"
    )


def _missing_attribute(error: AttributeError) -> str:
    """Return the remedy for an attribute that is missing from a module, or "" if no remedy is known.

    Either the entry point or the plugin's code refers to the attribute.
    """
    module = getattr(error.obj, "__name__", "")
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if frames and frames[-1].f_code.co_name == "_resolve":  # accelkit's own function, which resolves an entry point
        near = difflib.get_close_matches(str(error.name), dir(error.obj), n=1)
        return f"correct the name {error.name} in the entry point" + (f": did you mean {near[0]!r}?" if near else "")
    version = installed_version(module.partition(".")[0])
    return f"install the version of {module} for which the plugin was written (this is {version})" if version else ""


_SERVER = "a server that the device needs does not respond; start it, or correct its address"
_LOST = "the device was lost, or the server that it needs has stopped: reset the device, or start its server again"
_NOT_REGISTERED = (
    "importing the vendor's torch package must register the device with torch; check device_type and torch_package, "
    "or override load() to call the package's function that registers the device"
)
_NO_MODULE = "the vendor's torch package must register a module for its device type with torch._register_device_module; update the package"
_NEWER_SYSTEM = "it was built for a newer system; install a build for this one"
_OTHER_PROCESSOR = "it was built for another processor; install a build for this one"
_OPERATOR = "the vendor's torch package does not implement an operator that every device needs; update it"
_NO_DEVICE = "check that the device is installed and visible to this user, and that its driver is loaded"
_DTYPE = (
    "the device lacks a dtype that the plugin uses; the default check() adds float32 numbers, so a plugin for a device without float32 "
    "must override it"
)
_TOO_SLOW = (
    "something that the device needs does not respond in time; start it, or correct its address. "
    "accelkit's own time limits are ACCELKIT_PROBE_TIMEOUT and ACCELKIT_LOAD_TIMEOUT"
)
_PERMISSION = "allow this user to open the device, for example by adding the user to the group of its file in /dev"
_COMMAND = "a command that the device needs, such as a compiler, has failed: run it in a terminal to see why"
_COMPILES = (
    "it compiles an extension, which may take minutes the first time: increase ACCELKIT_LOAD_TIMEOUT (seconds), or import its torch "
    "package once in Python; a plugin can do so in its build(), which has a limit of its own"
)
_LOCK = (
    "it waits for another process that compiles the same extension. If there is none, one was killed: delete the file named lock in the "
    "extension's folder, in TORCH_EXTENSIONS_DIR or ~/.cache/torch_extensions"
)
_DISK = "free disk space, or set ACCELKIT_CACHE_DIR and TMPDIR to folders on another disk"
_BY_TEXT: Sequence[tuple[str, str | _Remedy]] = (
    (r"(?:(?P<file>/[^\s:]+\.(?:so[\w.]*|dylib))\W[^/]*)?(?:undefined symbol|[Ss]ymbol not found)", _undefined_symbol),
    (r"version `[\w.]+' not found", _NEWER_SYSTEM),
    (r"wrong ELF class|invalid ELF header|incompatible architecture", _OTHER_PROCESSOR),
    (r"(?P<library>[\w.+/-]+\.(so[\w.]*|dylib|dll)): cannot open shared object file", _missing_library),
    (r"Library not loaded: (?P<library>\S+)", _missing_library),
    (r"(?i)connection ?refused", _SERVER),
    (r"(?i)connection ?reset|broken ?pipe|(device|session) ?(is |was )?lost|device has been removed", _LOST),
    (r"(?i)expected one of .*device type|not linked with support for \S+ devices|not compiled with \S+ enabled", _NOT_REGISTERED),
    (r"(?i)no module for the device type|module 'torch' has no attribute 'privateuseone'", _NOT_REGISTERED),
    (r"No module named 'torch\.\w+'", _NO_MODULE),
    (r"(?i)could not run 'aten::\w+", _OPERATOR),
    (r"(?i)no (\w+ )?devices? (is |are |was |were )?(found|available|detected|visible)", _NO_DEVICE),
    (
        r"(?i)not implemented for '|NotImplementedError: .*(dtype|float|aten)|unsupported d(ata )?type|dtype.* not support"
        r"|only supports? d(ata )?type",
        _DTYPE,
    ),
    (r"(?i)timed? ?out|TimeoutError", _TOO_SLOW),
    (r"(?i)permission denied", _PERMISSION),
    (r"FileNotFoundError: .*No such file or directory: '(?P<program>[\w.+-]+)'", _missing_program),
    (r"CalledProcessError|returned non-zero exit status", _COMMAND),
    (r"(?i)no space left on device", _DISK),
    (r"torch/utils/file_baton\.py", _LOCK),
    (r"torch/utils/cpp_extension\.py", _COMPILES),
)
