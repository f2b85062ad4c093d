"""``torch.fake_xpu``: the counterpart of ``torch.cuda`` for this device, with the same names."""

from typing import Any

from accelkit_fake_xpu.device_module import faults, memory, random
from accelkit_fake_xpu.device_module.devices import (
    DeviceProperties,
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_amp_supported_dtype,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    kernel_count,
    reset_kernel_counts,
    set_device,
)
from accelkit_fake_xpu.device_module.devices import init as _lazy_init
from accelkit_fake_xpu.device_module.devices import is_in_bad_fork as _is_in_bad_fork
from accelkit_fake_xpu.device_module.faults import fault
from accelkit_fake_xpu.device_module.memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from accelkit_fake_xpu.device_module.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from accelkit_fake_xpu.device_module.streams import (
    Event,
    Stream,
    current_stream,
    default_stream,
    set_stream,
    stream,
    synchronize,
)


def __getattr__(name: str) -> Any:
    if name == "default_generators":
        return random.default_generators()
    if name == "_initialized":  # torch.utils.checkpoint reads this before it saves the random state
        return is_initialized()
    raise AttributeError(f"torch.fake_xpu has no attribute {name!r}")


__all__ = [
    "DeviceProperties",
    "Event",
    "Stream",
    "_is_in_bad_fork",
    "_lazy_init",
    "can_device_access_peer",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "fault",
    "faults",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "kernel_count",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "random",
    "reset_accumulated_memory_stats",
    "reset_kernel_counts",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
]
