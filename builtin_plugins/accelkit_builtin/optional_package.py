"""Packages that a built-in precision or strategy needs but accelkit does not require."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import importlib.util
from types import ModuleType

from accelkit import Availability, Precision, UnavailableError


@dataclasses.dataclass(frozen=True, slots=True)
class OptionalPackage:
    """A package that a plugin needs.

    Args:
        module: The full name of the module that the plugin uses, such as ``torchao.float8``.
        distribution: The name of the distribution that provides the module.
        minimum: The oldest supported version of the distribution. The version is not checked if the distribution has no metadata.
        install: The command that installs the distribution.
    """

    module: str
    distribution: str
    minimum: str
    install: str

    def probe(self) -> Availability:
        """Return whether the distribution is installed and new enough. Does not import the package."""
        specification = importlib.util.find_spec(self.module.partition(".")[0])
        if specification is None or not specification.submodule_search_locations:
            return Availability.absent(f"the package {self.distribution} is not installed", self.install)
        from packaging.version import Version

        try:
            version = importlib.metadata.version(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            version = ""  # it is imported from its sources, without metadata
        if version and Version(version) < Version(self.minimum):
            reason = f"{self.distribution} {version} is installed, but {self.minimum} or newer is needed"
            return Availability.absent(reason, f"{self.install} --upgrade")
        return Availability.usable()

    def load(self, precision: Precision) -> ModuleType:
        """Import the module, and return it.

        Args:
            precision: The precision that needs the module, named in errors.

        Raises:
            UnavailableError: If the distribution is not installed or is too old, or if the module cannot be imported.
        """
        what, answer = f"precision {precision.name!r} cannot be used", self.probe()
        if not answer.is_usable:
            raise UnavailableError(what, plugin=precision.plugin, why=answer.reason, hint=answer.hint)
        try:
            return importlib.import_module(self.module)
        except (ImportError, OSError, RuntimeError) as error:  # for example, a shared library cannot be loaded or needs a GPU
            why = f"importing {self.module} failed: {type(error).__name__}: {' '.join(str(error).split())}"
            hint = f"{self.install} --upgrade --force-reinstall"
            raise UnavailableError(what, plugin=precision.plugin, why=why, hint=hint) from error
