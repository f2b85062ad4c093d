"""The accelerator specification: what a vendor implements for a kind of hardware.

A complete accelerator for a device that follows PyTorch's conventions (``torch.accelerator``, ``torch.<device_type>``)::

    from accelkit import Accelerator, Availability

    class AcmeAccelerator(Accelerator):
        \"\"\"Acme NPU.\"\"\"

        device_type = "acme"
        torch_package = "torch_acme"

        @classmethod
        def probe(cls):
            return Availability.from_library("libacme.so", hint="install the ACME driver")

Life: class (from the entry point) -> ``probe()`` -> instance -> ``build()`` (where it is tried) -> ``load()`` -> ``check()`` ->
``setup_device(device)`` -> ``teardown()``.
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from accelkit.errors import BrokenPluginError, UnsupportedError
from accelkit.specs.device_parsing import parse_devices
from accelkit.specs.hooks import hookimpl
from accelkit.types import Availability, Capabilities

if TYPE_CHECKING:
    import torch

    from accelkit.specs.precision import Precision

_load_lock = threading.RLock()


class Accelerator:
    """A kind of hardware, selected by name. The name is the entry point's, not the class's.

    Class attributes that a vendor sets:

    Attributes:
        device_type: The torch device type, as in ``torch.device("acme", 0)``. Required.
        torch_package: The package whose import adds the device to torch; None if torch has the device itself.
        process_group_backend: The torch.distributed backend; None asks torch for its default. ``host`` for a device that has none:
            tensors travel through main memory, by gloo.
        compile_backend: The ``torch.compile`` backend that serves this device; None is torch's default.
        visible_devices_variable: The environment variable that limits what a process sees, as ``CUDA_VISIBLE_DEVICES``.
        default_strategy: The strategy used on one device when the user names none.
        default_distributed_strategy: The one used on several.
        is_simulated: No hardware is behind it, so ``auto`` never chooses it.
        declared_capabilities: What the device can do; conformance holds the plugin to it.

    ``name`` and ``plugin`` (``dist==version``) are set by whoever loaded the class.
    """

    device_type: ClassVar[str] = ""
    torch_package: ClassVar[str | None] = None
    process_group_backend: ClassVar[str | None] = None
    compile_backend: ClassVar[str | None] = None
    visible_devices_variable: ClassVar[str | None] = None
    default_strategy: ClassVar[str] = "single_device"
    default_distributed_strategy: ClassVar[str] = "ddp"
    is_simulated: ClassVar[bool] = False
    declared_capabilities: ClassVar[Capabilities] = Capabilities()

    name: str = ""
    plugin: str = ""

    # -- before torch -------------------------------------------------------------------------------------------------

    @classmethod
    def probe(cls) -> Availability:
        """Whether this can be used here. Imports no torch, creates no driver context; ``fork`` must work afterwards.

        Called on any process, possibly in a child with a time limit. The default finds ``torch_package`` without importing it.
        """
        package = cls.torch_package
        if package is not None and importlib.util.find_spec(package.partition(".")[0]) is None:
            distribution = package.replace("_", "-")
            return Availability.absent(f"the package {package} is not installed", f"pip install {distribution}")
        return Availability.usable(f"{package} is installed" if package else "torch has this device itself")

    # -- loading and checking -----------------------------------------------------------------------------------------

    def build(self) -> None:
        """Make what is needed once on this machine, such as a library compiled for the installed torch. Nothing by default.

        Called before ``load()`` where a plugin is tried, in a child process, each time: it must return at once if all is there. It has a
        time limit of its own (ACCELKIT_BUILD_TIMEOUT), and the user is told what is being waited for. ``load()`` must not rely on it.
        """

    def load(self) -> None:
        """Import ``torch_package``, once per process and under a lock. Initialises no driver unless that package does.

        Also the first thing in launched processes and DataLoader workers.
        """
        if self.torch_package is not None:
            with _load_lock:
                importlib.import_module(self.torch_package)

    def check(self) -> Availability:
        """Whether this torch drives this hardware: adds on the device and compares with the CPU. Initialises the driver."""
        import torch

        try:
            device = self.device(0)
            result = (torch.arange(4.0).to(device) + 1).cpu()
            self.synchronize(device)
        except Exception as error:  # whatever the backend raises is the answer
            return Availability.broken(f"{type(error).__name__}: {error}")
        if result.tolist() != [1.0, 2.0, 3.0, 4.0]:
            return Availability.broken(f"[0, 1, 2, 3] + 1 gave {result.tolist()} on {device}")
        return Availability.usable(f"{device} computes")

    @hookimpl
    def setup_device(self, device: torch.device) -> None:
        """Make ``device`` the current one of this process. Initialises the driver."""
        if device.index is not None and hasattr(self.device_module, "set_device"):
            self.device_module.set_device(device.index)

    @hookimpl
    def teardown(self) -> None:
        """Give back what ``setup_device`` and training took: by default the allocator's cache."""
        self.empty_cache()

    # -- devices ------------------------------------------------------------------------------------------------------

    def device(self, index: int) -> torch.device:
        """The torch device of this index. Initialises no driver."""
        import torch

        return torch.device(self.device_type, index)

    def parse_devices(self, devices: int | str | Sequence[int]) -> list[int]:
        """Device indices from what the user wrote: an int, ``-1``, ``"auto"``, a list, ``"0,2"``.

        Raises:
            DevicesError: If it cannot be read, or asks for what does not exist.
        """
        return parse_devices(devices, self.auto_device_count(), self.name or self.device_type)

    def get_parallel_devices(self, devices: Sequence[int]) -> list[torch.device]:
        """The torch devices of these indices."""
        return [self.device(index) for index in devices]

    def auto_device_count(self) -> int:
        """How many devices there are. Must not create a driver context."""
        return int(self.device_module.device_count())

    def is_available(self) -> bool:
        """Whether the device can be used now; never raises."""
        try:
            return type(self).probe().is_usable and self.auto_device_count() > 0
        except Exception:  # Lightning's contract: an answer, never an error. probe() has the reason.
            return False

    @property
    def device_module(self) -> ModuleType:
        """``torch.<device_type>``.

        Raises:
            BrokenPluginError: If torch has no such module: the vendor's package did not register one.
        """
        import torch

        try:
            module: ModuleType = torch.get_device_module(self.device_type)
            return module
        except RuntimeError as error:
            raise BrokenPluginError(
                f"torch has no module for the device type {self.device_type!r}",
                plugin=self.plugin,
                why=str(error),
                hint="call load() first; the vendor's package must call torch._register_device_module",
            ) from error

    def synchronize(self, device: torch.device) -> None:
        """Wait until everything that was queued on ``device`` has run."""
        if hasattr(self.device_module, "synchronize"):
            self.device_module.synchronize(device)

    # -- memory and statistics ----------------------------------------------------------------------------------------

    def empty_cache(self) -> None:
        """Give the allocator's unused memory back to the device, where the device has such a thing."""
        if hasattr(self.device_module, "empty_cache"):
            self.device_module.empty_cache()

    def memory_stats(self, device: torch.device) -> dict[str, float]:
        """``memory.allocated.bytes`` and ``memory.peak.bytes`` of this process on ``device``; empty if the device does not say."""
        module = self.device_module
        found: dict[str, float] = {}
        if hasattr(module, "memory_allocated"):
            found["memory.allocated.bytes"] = float(module.memory_allocated(device))
        if hasattr(module, "max_memory_allocated"):
            found["memory.peak.bytes"] = float(module.max_memory_allocated(device))
        return found

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        """Start a new peak. Does nothing where the device keeps none."""
        if hasattr(self.device_module, "reset_peak_memory_stats"):
            self.device_module.reset_peak_memory_stats(device)

    @hookimpl
    def get_device_stats(self, device: torch.device) -> dict[str, Any]:
        """Quantities with their unit in the key, for logging. The default is ``memory_stats``."""
        return self.memory_stats(device)

    @hookimpl
    def doctor_checks(self) -> Mapping[str, Availability]:
        """More checks for ``accelkit doctor``, by name. None by default."""
        return {}

    # -- random state -------------------------------------------------------------------------------------------------

    def manual_seed(self, seed: int) -> None:
        """Seed the generators of all devices of this kind."""
        module = self.device_module
        seed_all = getattr(module, "manual_seed_all", None) or getattr(module, "manual_seed", None)
        if seed_all is not None:
            seed_all(seed)

    def get_rng_state(self, device: torch.device) -> torch.Tensor | None:
        """The state of the device's generator as a CPU uint8 tensor; None where the device has no generator of its own."""
        getter = getattr(self.device_module, "get_rng_state", None)
        state: torch.Tensor | None = getter(device) if getter is not None else None
        return state

    def set_rng_state(self, state: torch.Tensor, device: torch.device) -> None:
        """Restore what ``get_rng_state`` returned."""
        setter = getattr(self.device_module, "set_rng_state", None)
        if setter is None:
            raise UnsupportedError(f"{self.name or self.device_type} has no random state to set", plugin=self.plugin)
        setter(state, device)

    # -- computing ----------------------------------------------------------------------------------------------------

    @property
    def autocast_device_type(self) -> str:
        """The device type that ``torch.autocast`` is given."""
        return self.device_type

    @hookimpl
    def make_precision(self, name: str, device: torch.device) -> Precision | None:
        """A precision of this device's own for ``name``, or None for the named plugin. Called once, at first use."""
        return None

    def step_end(self) -> None:
        """For devices that trace lazily: run what was traced. It need not wait for the device.

        Called after each backward pass and each optimizer's step, and before a prepared loader hands out a batch. Never where it is not
        overridden.
        """

    def upload(self, batches: Iterator[list[torch.Tensor]], device: torch.device) -> Iterator[list[torch.Tensor]] | None:
        """For devices with a way of their own to upload ahead: the batches of an epoch on ``device``, in their order, alike in structure.

        Args:
            batches: On the host. It may be read in one thread; an error that it raises must be raised by what is returned.
            device: This process's.

        Returns:
            An iterator, which is closed when the loop ends early; None where the runtime is to copy, on a stream if the device has streams.
        """
        return None

    def capabilities(self, device: torch.device | None = None) -> Capabilities:
        """What the device can do. ``device`` may refine it (a newer chip); without it, what the kind of device can do."""
        return self.declared_capabilities

    def __repr__(self) -> str:
        return f"<accelerator {self.name or type(self).__name__} ({self.plugin or 'not from a plugin'})>"
