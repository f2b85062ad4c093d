"""Any device that torch itself knows, selected as ``torch:<device_type>`` with no plugin at all."""

from __future__ import annotations

from accelkit import Accelerator, Availability, UnavailableError


class TorchDeviceAccelerator(Accelerator):
    """Any device type that torch supports, as torch:<device_type>."""

    @classmethod
    def for_device_type(cls, device_type: str) -> type[TorchDeviceAccelerator]:
        """Return the accelerator class for this device type. Whether torch has the device is known only after ``load`` and ``check``."""
        return type(f"TorchDevice_{device_type}", (cls,), {"device_type": device_type, "__module__": cls.__module__})

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
        """Check that torch knows the device type.

        Nothing is imported: the device must be torch's own, or have been added by a package that the program imported.

        Raises:
            UnavailableError: If torch does not know the device type.
        """
        import torch

        try:
            torch.device(self.device_type)
        except RuntimeError as error:
            hint = "first import the package that adds it, or install the vendor's plugin; accelkit list shows what is installed"
            why = str(error).partition(" at start")[0]
            raise UnavailableError(
                f"torch does not support the device type {self.device_type!r}", plugin=self.plugin, why=why, hint=hint
            ) from error
