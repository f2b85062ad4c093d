"""An existing Lightning accelerator as an accelkit accelerator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from accelkit.errors import DevicesError, UsageError
from accelkit.specs.accelerator import Accelerator
from accelkit.specs.hooks import hookimpl
from accelkit.types import Availability

if TYPE_CHECKING:
    import torch

_METHODS = ("setup_device", "teardown", "parse_devices", "get_parallel_devices", "auto_device_count", "is_available")


class LightningAccelerator(Accelerator):
    """An accelkit accelerator that delegates to a Lightning accelerator. ``from_lightning`` creates subclasses of it.

    Attributes:
        lightning_class: The class of the Lightning accelerator.
        options: The keyword arguments for the constructor of ``lightning_class``.
    """

    lightning_class: ClassVar[Any]
    options: ClassVar[Mapping[str, Any]] = {}

    def __init__(self) -> None:
        self._lightning = self.lightning_class(**self.options)

    @classmethod
    def probe(cls) -> Availability:
        if cls.lightning_class.is_available():
            return Availability.usable(f"{cls.__name__}.is_available() returned True")
        return Availability.absent(f"{cls.__name__}.is_available() returned False; Lightning's interface does not provide a reason")

    def parse_devices(self, devices: int | str | Sequence[int]) -> list[int]:
        """Return the indices of the requested devices. The Lightning class parses ``devices``.

        If ``devices`` is ``auto`` or -1, the Lightning class is given the number of available devices instead. If the Lightning class
        returns a number N rather than a list of devices, the indices are 0 to N - 1.

        Raises:
            DevicesError: If ``devices`` cannot be parsed, requests no device, or requests a device that does not exist.
        """
        count = self.auto_device_count()
        try:
            found = self.lightning_class.parse_devices(count if devices in ("auto", -1, "-1") else devices)
            indices = list(range(found)) if isinstance(found, int) else [getattr(one, "index", one) or 0 for one in found or ()]
            if not indices or min(indices) < 0 or max(indices) >= count:
                raise ValueError(f"parse_devices() returned {found!r}")
        except Exception as error:  # any error of the Lightning class means that it does not accept the devices
            why, hint = (
                f"{self.lightning_class.__name__}: {error}",
                f"{self.name or self.device_type} has {count} device{'s' * (count != 1)}",
            )
            raise DevicesError(f"devices={devices!r} cannot be used with {self.name or self.device_type}", why=why, hint=hint) from error
        return indices

    def device(self, index: int) -> torch.device:
        """Return the torch device that ``lightning_class`` uses for this index."""
        device: torch.device = self.lightning_class.get_parallel_devices(self.lightning_class.parse_devices(index + 1))[index]
        return device

    def auto_device_count(self) -> int:
        return int(self.lightning_class.auto_device_count())

    @hookimpl
    def setup_device(self, device: torch.device) -> None:
        self._lightning.setup_device(device)

    @hookimpl
    def teardown(self) -> None:
        self._lightning.teardown()

    @hookimpl
    def get_device_stats(self, device: torch.device) -> dict[str, Any]:
        try:
            return dict(self._lightning.get_device_stats(device))
        except (AttributeError, NotImplementedError):  # Fabric's accelerators lack it; the Trainer's raise an error by default
            return self.memory_stats(device)


def from_lightning(cls: type, *, device_type: str | None = None, **options: Any) -> type[Accelerator]:
    """Create an accelkit accelerator class that delegates to a Lightning accelerator of the Trainer or of Fabric.

    Provide the class through an entry point (``acme = "vendor_acme:AcmeForAccelkit"``) or with ``accelkit.register``.

    Args:
        cls: A subclass of Lightning's ``Accelerator``.
        device_type: The device type, as in ``torch.device``. If None, the type is read from one of the accelerator's devices, so a device
            must be available.
        options: Keyword arguments for the constructor of ``cls``.

    Raises:
        UsageError: If ``cls`` is not a Lightning accelerator, or its device type cannot be determined.
    """
    missing = [name for name in _METHODS if not hasattr(cls, name)]
    if not isinstance(cls, type) or missing:
        what = f"{cls!r} is not a Lightning accelerator"
        raise UsageError(
            what, why=f"it has no {', '.join(missing) or 'class'}", hint="pass a subclass of lightning.pytorch.accelerators.Accelerator"
        )
    attributes = {"lightning_class": cls, "options": options, "device_type": device_type or _device_type(cls), "__doc__": cls.__doc__}
    return type(cls.__name__, (LightningAccelerator,), attributes | {"__module__": cls.__module__})


def adopt_instance(instance: Any) -> Accelerator:
    """Return an accelkit accelerator that delegates to an existing Lightning accelerator. See ``from_lightning``."""
    adopted: Any = from_lightning(type(instance))
    accelerator: Any = adopted.__new__(adopted)
    accelerator._lightning = instance
    return accelerator  # type: ignore[no-any-return]


def _device_type(cls: Any) -> str:
    if not cls.is_available():
        raise UsageError(
            f"the device type of {cls.__name__} is unknown",
            why="its is_available() returned False, so it cannot create a device that would show the type",
            hint=f"use from_lightning({cls.__name__}, device_type=...) with the argument of torch.device(...)",
        )
    return str(cls.get_parallel_devices(cls.parse_devices(1))[0].type)
