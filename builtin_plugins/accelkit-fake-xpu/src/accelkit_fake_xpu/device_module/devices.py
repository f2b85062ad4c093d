"""The available devices, the current device, and the properties of devices."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import TypeAlias

import torch

Device: TypeAlias = torch.device | int | str | None


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """The properties of a device.

    Attributes:
        name: The name to display.
        total_memory: The total memory in bytes.
        index_on_machine: The index among all devices on the machine, including those that FAKE_XPU_VISIBLE_DEVICES hides.
    """

    name: str
    total_memory: int
    index_on_machine: int


def index_of(device: Device = None) -> int:
    """Return the index of ``device``: a ``torch.device``, a string such as ``"fake_xpu:1"``, or an int.

    None, a negative int and a device without an index stand for the current device.

    Raises:
        ValueError: If ``device`` is not a ``fake_xpu`` device.
    """
    if device is None:
        return current_device()
    if isinstance(device, int):
        return current_device() if device < 0 else device
    device = torch.device(device)
    if device.type != "fake_xpu":
        raise ValueError(f"Expected a fake_xpu device, but got: {device}")
    return current_device() if device.index is None else device.index


def is_available() -> bool:
    """Return whether there is a device. Initialises nothing."""
    return device_count() > 0


def device_count() -> int:
    """Return the number of devices that this process sees. Initialises nothing."""
    return int(torch.ops.fake_xpu.device_count())


def init() -> None:
    """Initialise the devices now instead of at the first use. Processes forked afterwards cannot use the devices."""
    torch.ops.fake_xpu.init()


def is_initialized() -> bool:
    """Return whether the devices have been initialised, by ``init`` or by the first use of a device.

    Also True in a process that was forked after the initialisation.
    """
    return bool(torch.ops.fake_xpu.is_initialized())


def is_in_bad_fork() -> bool:
    """Return whether this process was forked from a process that had already initialised the devices."""
    return bool(torch.ops.fake_xpu.is_in_bad_fork())


def current_device() -> int:
    """Return the index of the current device of this thread."""
    return torch.accelerator.current_device_index()


def set_device(device: Device) -> None:
    """Make ``device`` the current device of this thread."""
    torch.accelerator.set_device_index(index_of(device))


class device:  # has the name of torch.cuda.device
    """Context manager that makes ``device`` the current device. None or a negative index changes nothing."""

    def __init__(self, device: Device) -> None:
        self.idx = -1 if device is None or (isinstance(device, int) and device < 0) else index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx >= 0:
            self.prev_idx = current_device()
            set_device(self.idx)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.idx >= 0:
            set_device(self.prev_idx)


class device_of(device):  # has the name of torch.cuda.device_of
    """Context manager that makes the device of a tensor or storage current. It has no effect for devices other than ``fake_xpu``."""

    def __init__(self, holder: torch.Tensor | torch.UntypedStorage) -> None:
        super().__init__(holder.device if holder.device.type == "fake_xpu" else None)


def get_device_name(device: Device = None) -> str:
    """Return the name of the device."""
    return get_device_properties(device).name


def get_device_capability(device: Device = None) -> tuple[int, int]:
    """Return the major and minor version of the simulated architecture."""
    get_device_properties(device)  # the device must exist
    return (1, 0)


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Return the properties of the device."""
    from accelkit_fake_xpu import torch_backend

    index = index_of(device)
    total = torch.ops.fake_xpu.memory_info(index)[1]
    return DeviceProperties("fake XPU", total, torch_backend.visible_devices[index])


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    """Return whether one device can copy from another without going through the host. True unless both are the same device."""
    return get_device_properties(device) != get_device_properties(peer_device)  # both must exist


def is_bf16_supported() -> bool:
    """Return True, because bfloat16 is always supported."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes that ``torch.autocast`` supports."""
    return [torch.float16, torch.bfloat16]


def kernel_count(device: Device = None) -> int:
    """Return how many kernels have run on the device since the program started or the counts were reset.

    Copies and views are not counted.
    """
    return int(torch.ops.fake_xpu.kernel_count(index_of(device)))


def reset_kernel_counts() -> None:
    """Reset the kernel counts of all devices to zero."""
    torch.ops.fake_xpu.reset_kernel_counts()
