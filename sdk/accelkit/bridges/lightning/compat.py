"""Locations of the classes in Lightning's packages, and the supported versions. Importing this module imports none of the packages.

Lightning's Trainer and Fabric exist twice: in the package ``lightning``, and as copies in the packages ``pytorch_lightning`` (the Trainer)
and ``lightning_fabric`` (Fabric). ``lightning`` does not accept classes of the other two packages, and they do not accept classes of
``lightning``.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import sys
from typing import Any

from packaging.specifiers import SpecifierSet

from accelkit.errors import UnavailableError, UnknownNameError, UnsupportedError

KNOWN_VERSIONS = ">=2.5,<2.7"
"""The versions of Lightning that the bridge supports. The range is the same as in the extra ``lightning`` of the package accelkit."""


@dataclasses.dataclass(frozen=True, slots=True)
class Framework:
    """The Trainer or Fabric class of one package, such as the Trainer of ``pytorch_lightning``.

    Attributes:
        root: The name of the module that contains the framework's accelerators, strategies and precisions.
        fabric: The name of the package that contains the framework's cluster environments.
        entry: The name of the class that users instantiate, ``Trainer`` or ``Fabric``.
    """

    root: str
    fabric: str
    entry: str

    @property
    def package(self) -> str:
        """The name of the top-level package of ``root``. Users of the bridge pass this name as the argument ``package``."""
        return self.root.partition(".")[0]

    @property
    def is_trainer(self) -> bool:
        return self.entry == "Trainer"

    @property
    def entry_class(self) -> Any:
        return getattr(importlib.import_module(self.root), self.entry)

    @property
    def registry(self) -> Any:
        """Lightning's own registry of accelerators by name."""
        accelerators = self.part("accelerators")
        return accelerators.AcceleratorRegistry if self.is_trainer else accelerators.ACCELERATOR_REGISTRY

    @property
    def strategy_registry(self) -> Any:
        """Lightning's own registry of strategies by name."""
        return self.part("strategies").StrategyRegistry if self.is_trainer else self.part("strategies").STRATEGY_REGISTRY

    @property
    def environments(self) -> Any:
        return importlib.import_module(f"{self.fabric}.plugins.environments")

    def part(self, path: str) -> Any:
        return importlib.import_module(f"{self.root}.{path}")

    def owns(self, cls: type) -> bool:
        """Return whether Lightning itself defines ``cls``, that is, whether the top-level package of ``root`` or ``fabric`` contains it."""
        return cls.__module__.partition(".")[0] in (self.package, self.fabric.partition(".")[0])


TRAINERS = (Framework("lightning.pytorch", "lightning.fabric", "Trainer"), Framework("pytorch_lightning", "lightning_fabric", "Trainer"))
FABRICS = (Framework("lightning.fabric", "lightning.fabric", "Fabric"), Framework("lightning_fabric", "lightning_fabric", "Fabric"))


def find_framework(frameworks: tuple[Framework, ...], package: str | None) -> Framework:
    """Import one of Lightning's packages, and return the framework that the package contains.

    Args:
        frameworks: The frameworks to choose from: ``TRAINERS`` or ``FABRICS``.
        package: The name of the package. None means the first package of ``frameworks`` that the program has already imported, or else the
            first one that is installed.

    Raises:
        UnknownNameError: If none of ``frameworks`` is in a package of this name.
        UnavailableError: If the package is not installed or, if ``package`` is None, no package of ``frameworks`` is installed.
        UnsupportedError: If the version of the package is not supported.
    """
    if package is None:
        candidates = [one for one in frameworks if one.package in sys.modules] or installed(frameworks)
    else:
        candidates = [one for one in frameworks if one.package == package]
        if not candidates:
            names = " or ".join(repr(one.package) for one in frameworks)
            raise UnknownNameError(
                f"package={package!r} has no {frameworks[0].entry}", why="it is not a package of Lightning", hint=f"use {names}"
            )
    candidates = installed(tuple(candidates))
    if not candidates:
        raise UnavailableError(
            f"Lightning's {frameworks[0].entry} is not installed",
            why=f"no package {package or ' or '.join(one.package for one in frameworks)} is installed",
            hint="pip install 'accelkit[lightning]'",
        )
    check_version(candidates[0])
    return candidates[0]


def installed(frameworks: tuple[Framework, ...]) -> list[Framework]:
    """Return the frameworks whose packages are installed."""
    return [one for one in frameworks if importlib.util.find_spec(one.package) is not None]


def check_version(framework: Framework) -> None:
    """Import the package of the framework, and check the version of the package.

    Raises:
        UnsupportedError: If the version is not supported.
    """
    version = importlib.import_module(framework.package).__version__
    if not SpecifierSet(KNOWN_VERSIONS).contains(version, prereleases=True):
        raise UnsupportedError(
            f"this version of accelkit does not support {framework.package} {version}",
            why=f"the bridge is tested with {KNOWN_VERSIONS}, and Lightning's plugin interfaces are experimental",
            hint=f"pip install '{framework.package.replace('_', '-')}{KNOWN_VERSIONS}', or install a newer accelkit",
        )
