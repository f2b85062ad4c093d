"""Accelerators for the devices in the table ``known_devices.py``. The vendors of these devices have no accelkit plugin yet.

This module has one attribute for each row of the table. For example, ``known_vendor.npu`` is the accelerator class for the row ``npu``.
The class is a fallback, which is used only if no plugin named ``npu`` is installed. A row does not mean that accelkit supports the device.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import ClassVar

from accelkit import Accelerator, Availability
from accelkit_builtin.known_devices import VENDORS


class KnownVendorAccelerator(Accelerator):
    """A vendor's device that is described by a row of the table ``known_devices.py``."""

    library: ClassVar[str | None] = None
    register: ClassVar[str | None] = None
    install_hint: ClassVar[str] = ""

    @classmethod
    def probe(cls) -> Availability:
        """Return whether the driver's library and the vendor's package are installed. The package is not imported.

        If torch itself supports the device, this method looks for torch's own library for the device instead of a package.
        """
        if cls.torch_package and not _is_installed(cls.torch_package):
            return Availability.absent(f"the package {cls.torch_package} is not installed", cls.install_hint)
        if cls.library:
            answer = Availability.from_library(cls.library, hint=cls.install_hint)
            if not answer.is_usable:
                return answer
        if not cls.torch_package and not _torch_library(f"libtorch_{cls.device_type}.so").exists():
            return Availability.absent(f"the installed torch was built without {cls.device_type}", cls.install_hint)
        return Availability.usable(f"{cls.torch_package or 'torch'} is installed")

    def load(self) -> None:
        """Import the vendor's package. If ``known_devices.py`` names a registration function of the package, also call this function."""
        super().load()
        if self.torch_package and self.register:
            getattr(importlib.import_module(self.torch_package), self.register)()


def __getattr__(name: str) -> type[KnownVendorAccelerator]:
    row = VENDORS.get(name)
    if row is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    attributes = {
        "__doc__": row["description"],
        "__module__": __name__,
        "device_type": row["device_type"],
        "torch_package": row.get("torch_package"),
        "process_group_backend": row.get("process_group_backend"),
        "visible_devices_variable": row.get("visible_devices_variable"),
        "library": row.get("library"),
        "register": row.get("register"),
        "first_call_timeout": row.get("first_call_timeout", 0),
        "is_simulated": row.get("is_simulated", False),
        "install_hint": row["hint"],
    }
    return type(name, (KnownVendorAccelerator,), attributes)


def _is_installed(package: str) -> bool:
    """Return whether a package is installed. For a dotted name, only the top-level package is checked. Imports nothing."""
    return importlib.util.find_spec(package.partition(".")[0]) is not None


def _torch_library(name: str) -> Path:
    specification = importlib.util.find_spec("torch")
    folder = Path(specification.origin).parent if specification and specification.origin else Path()
    return folder / "lib" / name
