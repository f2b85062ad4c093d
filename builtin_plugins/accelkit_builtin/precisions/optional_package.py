"""Packages that a precision computes with and that accelkit does not require."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from types import ModuleType

from packaging.version import Version

from accelkit import Precision, UnavailableError


def load_package(precision: Precision, module: str, *, distribution: str, minimum: str, install: str) -> ModuleType:
    """Import ``module``, for one precision.

    Args:
        precision: For the errors.
        module: Its name, as ``torchao.float8``. The part before the dot is looked for first.
        distribution: Under which it is installed.
        minimum: The oldest version that does what is needed.
        install: The command that installs it.

    Raises:
        UnavailableError: If it is not installed, too old, or cannot be imported.
    """
    what, package = f"precision {precision.name!r} cannot be used", module.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        raise UnavailableError(what, plugin=precision.plugin, why=f"the package {distribution} is not installed", hint=install)
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        version = ""  # a copy of its sources on the path
    if version and Version(version) < Version(minimum):
        why = f"{distribution} {version} is installed, and {minimum} or newer is needed"
        raise UnavailableError(what, plugin=precision.plugin, why=why, hint=f"{install} --upgrade")
    try:
        return importlib.import_module(module)
    except (ImportError, OSError, RuntimeError) as error:  # a library of its own that does not load, or asks for a GPU
        why = f"importing {module} failed: {type(error).__name__}: {' '.join(str(error).split())}"
        raise UnavailableError(what, plugin=precision.plugin, why=why, hint=f"{install} --upgrade --force-reinstall") from error
