"""Import of the packages that a precision needs but accelkit does not require."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from types import ModuleType

from packaging.version import Version

from accelkit import Precision, UnavailableError


def load_package(precision: Precision, module: str, *, distribution: str, minimum: str, install: str) -> ModuleType:
    """Import a module that a precision needs, and return it.

    Args:
        precision: The precision that needs the module, named in errors.
        module: The full name of the module, such as ``torchao.float8``.
        distribution: The name of the distribution that provides the module.
        minimum: The oldest supported version of the distribution. The version is not checked if the distribution has no metadata.
        install: The command that installs the distribution, shown in errors.

    Raises:
        UnavailableError: If the distribution is not installed or is too old, or if the module cannot be imported.
    """
    what, package = f"precision {precision.name!r} cannot be used", module.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        raise UnavailableError(what, plugin=precision.plugin, why=f"the package {distribution} is not installed", hint=install)
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        version = ""  # it is imported from its sources, without metadata
    if version and Version(version) < Version(minimum):
        why = f"{distribution} {version} is installed, but {minimum} or newer is needed"
        raise UnavailableError(what, plugin=precision.plugin, why=why, hint=f"{install} --upgrade")
    try:
        return importlib.import_module(module)
    except (ImportError, OSError, RuntimeError) as error:  # for example, a shared library cannot be loaded or needs a GPU
        why = f"importing {module} failed: {type(error).__name__}: {' '.join(str(error).split())}"
        raise UnavailableError(what, plugin=precision.plugin, why=why, hint=f"{install} --upgrade --force-reinstall") from error
