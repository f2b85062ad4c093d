"""``torch.{{ cookiecutter.accelerator }}``: the functions of the device for torch and programs, with the names of ``torch.cuda``."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, NamedTuple

import torch

Device = torch.device | str | int | None
_operators = torch.ops.{{ cookiecutter.accelerator }}


def index_of(device: Device = None) -> int:
    """Return the index of a device given as ``torch.device``, ``"{{ cookiecutter.accelerator }}:1"``, int, or None for the current device.

    Raises:
        ValueError: If the device is of another type.
    """
    if device is None:
        return current_device()
    if isinstance(device, int):
        return current_device() if device < 0 else device
    device = torch.device(device)
    if device.type != "{{ cookiecutter.accelerator }}":
        raise ValueError(f"Expected a device of type {{ cookiecutter.accelerator }}, but got: {device}")
    return current_device() if device.index is None else device.index


# -- devices ---------------------------------------------------------------------------------------------------------------------------


def is_available() -> bool:
    """Return whether there is a device; False if the driver cannot count its devices. Initialises nothing."""
    return bool(_operators.is_available())


def device_count() -> int:
    """Return the number of devices. Initialises nothing.

    Raises:
        RuntimeError: If the driver cannot count its devices.
    """
    return int(_operators.device_count())


def init() -> None:
    """Initialise the driver now instead of at the first use. Processes forked afterwards cannot use the devices."""
    _operators.init()


_lazy_init = init  # torch calls it by this name


def is_initialized() -> bool:
    """Return whether a device has been used in this process."""
    return bool(_operators.is_initialized())


def _is_in_bad_fork() -> bool:
    """Return whether this process was forked from a process that had used a device."""
    return bool(_operators.is_in_bad_fork())


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


class DeviceProperties(NamedTuple):
    """The name that the driver gives to a device, and its memory in bytes."""

    name: str
    total_memory: int


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Return the properties of the device."""
    return DeviceProperties(*_operators.device_properties(index_of(device)))


def get_device_name(device: Device = None) -> str:
    """Return the name of the device."""
    return get_device_properties(device).name


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes that ``torch.autocast`` supports."""
    return [torch.float16, torch.bfloat16]


# -- streams and events ----------------------------------------------------------------------------------------------------------------


class Stream(torch.Stream):
    """A queue of work on a device. The constructor returns the device's streams in turn."""

    def __new__(cls, device: Device = None, priority: int = 0, **identity: Any) -> Stream:
        if identity:  # stream_id, device_index, device_type: an existing stream
            return super().__new__(cls, **identity)
        return super().__new__(cls, device=torch.device("{{ cookiecutter.accelerator }}", index_of(device)), priority=priority)


class Event:
    """A ``torch.Event`` of this device type, created as ``Event(enable_timing=True)``."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False) -> torch.Event:  # type: ignore[misc]
        return torch.Event("{{ cookiecutter.accelerator }}", enable_timing=enable_timing, blocking=blocking)


class stream:  # has the name of torch.cuda.stream
    """Context manager that makes ``stream`` the current stream of its device, and that device the current device. None has no effect."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *exc_info: Any) -> None:
        if self.stream is not None:
            self.stream.__exit__(*exc_info)


def current_stream(device: Device = None) -> torch.Stream:
    """Return the current stream of this thread on ``device``."""
    current = torch.accelerator.current_stream(index_of(device))
    return Stream(stream_id=current.stream_id, device_index=current.device_index, device_type=current.device_type)


def default_stream(device: Device = None) -> torch.Stream:
    """Return the stream of ``device`` that is current until another stream is made current."""
    current = torch.accelerator.current_stream(index_of(device))
    return Stream(stream_id=0, device_index=current.device_index, device_type=current.device_type)


def set_stream(stream: torch.Stream) -> None:
    """Make ``stream`` the current stream of its device, and its device the current device."""
    torch.accelerator.set_stream(stream)


def synchronize(device: Device = None) -> None:
    """Wait until all work that was queued on ``device`` has run."""
    torch.accelerator.synchronize(index_of(device))


# -- memory, in bytes -------------------------------------------------------------------------------------------------------------------


def memory_allocated(device: Device = None) -> int:
    """Return the number of bytes that tensors now hold on the device."""
    return torch.accelerator.memory_allocated(index_of(device))


def max_memory_allocated(device: Device = None) -> int:
    """Return the largest number of bytes that tensors held since the start or the last ``reset_peak_memory_stats``."""
    return torch.accelerator.max_memory_allocated(index_of(device))


def memory_reserved(device: Device = None) -> int:
    """Return the number of bytes that torch holds of the device's memory, including what it caches."""
    return torch.accelerator.memory_reserved(index_of(device))


def memory_stats(device: Device = None) -> dict[str, Any]:
    """Return all statistics, in the form of ``torch.accelerator.memory_stats``."""
    return dict(torch.accelerator.memory_stats(index_of(device)))


def reset_peak_memory_stats(device: Device = None) -> None:
    """Reset the peak to the memory that is allocated now."""
    torch.accelerator.reset_peak_memory_stats(index_of(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Return the free and the total memory."""
    free, total = _operators.memory_info(index_of(device))
    return free, total


def empty_cache() -> None:
    """Return cached memory to the driver."""
    torch.accelerator.empty_cache()


# -- random numbers: each device has a generator, which torch.manual_seed seeds too ------------------------------------------------------


def manual_seed(seed: int) -> None:
    """Seed the generator of the current device."""
    _operators.manual_seed(index_of(), _as_int64(seed))


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all devices."""
    for index in range(device_count()):
        _operators.manual_seed(index, _as_int64(seed))


def seed() -> None:
    """Seed the generator of the current device with a random number."""
    manual_seed(torch.Generator().seed())


def seed_all() -> None:
    """Seed the generators of all devices with the same random number."""
    manual_seed_all(torch.Generator().seed())


def initial_seed() -> int:
    """Return the seed of the current device's generator."""
    return int(_operators.initial_seed(index_of())) % (1 << 64)


def get_rng_state(device: Device = "{{ cookiecutter.accelerator }}") -> torch.Tensor:
    """Return the state of the device's generator, a CPU tensor of 16 bytes: seed and offset."""
    state: torch.Tensor = _operators.get_rng_state(index_of(device))
    return state


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the states of all devices' generators."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state(new_state: torch.Tensor, device: Device = "{{ cookiecutter.accelerator }}") -> None:
    """Restore a state that ``get_rng_state`` returned."""
    _operators.set_rng_state(index_of(device), new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Restore the states that ``get_rng_state_all`` returned."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def _as_int64(seed: int) -> int:
    seed = int(seed) % (1 << 64)
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def __getattr__(name: str) -> Any:
    if name == "default_generators":
        return tuple(_operators.default_generator(index) for index in range(device_count()))
    if name == "_initialized":  # torch.utils.checkpoint reads this before it saves the random state
        return is_initialized()
    raise AttributeError(f"torch.{{ cookiecutter.accelerator }} has no attribute {name!r}")
