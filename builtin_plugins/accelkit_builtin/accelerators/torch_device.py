"""Any device that torch itself knows or that a package adds to torch.

The user selects the device as ``torch:<device_type>``. The device needs no plugin of its own.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import ClassVar

from accelkit import Accelerator, Availability, UnavailableError, UsageError

_VARIABLE = "ACCELKIT_IMPORT"


class TorchDeviceAccelerator(Accelerator):
    """Any device type that torch supports. The user selects it as torch:<device_type>."""

    backend: ClassVar[str] = ""

    @classmethod
    def for_device_type(cls, device_type: str, backend: str = "") -> type[TorchDeviceAccelerator]:
        """Create the accelerator class for a device type, even if torch does not have the device.

        ``load`` and ``check`` later find out whether torch has the device.

        Args:
            device_type: The device type, such as ``xpu``.
            backend: The ``torch.backends`` entry point that registers the device, as ``MODULE`` or ``MODULE:FUNCTION``; empty if there is
                none.
        """
        description = f"The device {device_type} of torch, or of a package that adds it."
        attributes = {"device_type": device_type, "backend": backend, "__module__": cls.__module__, "__doc__": description}
        return type(f"TorchDevice_{device_type}", (cls,), attributes)

    @classmethod
    def probe(cls) -> Availability:
        if not cls.device_type:
            return Availability.usable("needs a device type, for example torch:xpu")
        if cls.device_type == "meta":
            return Availability.absent(
                "meta tensors hold no values, so nothing can be computed on them", "use torch.device('meta') directly"
            )
        return Availability.usable(f"whether torch supports {cls.device_type} is checked when it is first used")

    def load(self) -> None:
        """Import the package that adds the device to torch, then check that torch has a device of this type.

        If ACCELKIT_IMPORT is set to ``MODULE``, the module is imported. If it is set to ``MODULE:FUNCTION``, the function is also called.
        If ACCELKIT_IMPORT is not set and torch does not have the device yet, the value of the device's ``torch.backends`` entry point is
        used in the same way.

        Raises:
            UnavailableError: If torch does not know the device type, or finds no device of this type.
            UsageError: If the module does not have the named function.
        """
        source = os.environ.get(_VARIABLE, "")
        if not source and (self._objection() or self._is_only_a_name()):
            source = self.backend
        found = _import(source) if source else None
        if why := self._objection():
            registered = _registered() if source else ""
            raise UnavailableError(
                f"importing {source} registered no device {self.device_type!r}"
                if source
                else f"torch does not support the device type {self.device_type!r}",
                plugin=self.plugin,
                why=f"the device that is registered is {registered!r}" if registered else why,
                hint=f"select it as torch:{registered}, or name another package" if registered else _hint(source, found),
            )
        if why := self._absence(is_imported=bool(source)):
            hint = "install the device's driver and a build of torch for it, and check the variables that limit which devices are visible"
            raise UnavailableError(
                f"torch has no usable device of type {self.device_type!r} on this machine",
                plugin=self.plugin,
                why=why,
                hint=hint if self._has_module() else _hint("", None),
            )

    def _absence(self, *, is_imported: bool) -> str:
        """Return why there is no device of this type, or "" if there is one or if that is not known. Does not initialise the driver.

        If a package was imported and registered no module ``torch.<device_type>``, the result is "", because the package is at fault.
        """
        import torch

        if not self._has_module():
            return "" if is_imported else f"torch {torch.__version__} knows the name of the device type, but does not have the device"
        if hasattr(self.device_module, "device_count") and self.auto_device_count() == 0:
            return f"torch.{self.device_type}.device_count() is 0 (torch {torch.__version__})"
        return ""

    def _has_module(self) -> bool:
        import torch

        return hasattr(torch, self.device_type)

    def _is_only_a_name(self) -> bool:
        """Return whether torch knows only the name of the device type, so that a package must still add the device.

        For example, torch knows the names opencl and vulkan, but does not have these devices. The result is False if the
        module ``torch.<device_type>`` exists, or if the device has a ``torch.backends`` entry point whose module has been imported already.
        """
        return not self._has_module() and self.backend.partition(":")[0] not in sys.modules

    def _objection(self) -> str:
        """Return the error message of ``torch.device(device_type)``, or "" if torch knows the device type."""
        import torch

        try:
            torch.device(self.device_type)
        except RuntimeError as error:
            return str(error).partition(" at start")[0]
        return ""


def _registered() -> str:
    """Return the device type that a package has registered as PrivateUse1, or "" if this slot is free.

    PrivateUse1 is torch's only slot for out-of-tree devices.
    """
    import torch

    name = torch.device("privateuseone").type
    return "" if name == "privateuseone" else name


def _import(source: str) -> ModuleType:
    """Import and return the module that ``source`` names. If ``source`` is ``MODULE:FUNCTION``, also call the function."""
    name, _, function = source.partition(":")
    module = importlib.import_module(name)
    if function:
        if not callable(found := getattr(module, function, None)):
            raise UsageError(f"{source} cannot be called", why=f"{name} has no function {function!r}", hint=f"use {_example(name, module)}")
        found()
    return module


def _example(source: str, module: ModuleType) -> str:
    """Return an example of ``MODULE:FUNCTION`` for an error message, such as ``acme:register_device`` for the module ``acme``.

    The name of the function starts with ``register``. If the module has no such function, the result ends in ``:FUNCTION``.
    """
    name = source.partition(":")[0]
    functions = [each for each in dir(module) if each.startswith("register") and callable(getattr(module, each))]
    return f"{name}:{functions[0] if functions else 'FUNCTION'}"


def _hint(source: str, module: ModuleType | None) -> str:
    if not source:
        return (
            "name the package that adds the device (--import MODULE in commands, ACCELKIT_IMPORT, or an import in the program), "
            "or install the vendor's plugin; accelkit list shows what is installed"
        )
    assert module is not None, "the source was imported"
    example = _example(source, module)
    return f"correct the device type, or name the function that registers the device: {example}; a plugin calls it in its load()"
