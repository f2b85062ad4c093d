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

Lifecycle: class (from the entry point) -> ``probe()`` -> instance -> ``build()`` (only in a child process in which the plugin is tried) ->
``load()`` -> ``check()`` -> ``setup_device(device)`` -> ``teardown()``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from accelkit.capabilities import Capabilities
from accelkit.errors import UnsupportedError, is_out_of_memory
from accelkit.specs import torch_functions
from accelkit.specs.device_parsing import parse_devices
from accelkit.specs.hooks import hookimpl
from accelkit.types import Availability

if TYPE_CHECKING:
    import torch

    from accelkit.specs.precision import Precision

_load_lock = threading.RLock()


class Accelerator:
    """A kind of hardware. Users select an accelerator by the name of its entry point, not by the name of its class.

    A vendor sets these class attributes:

    Attributes:
        device_type: The torch device type, as in ``torch.device("acme", 0)``. Required.
        torch_package: The package whose import adds the device to torch. None if torch itself supports the device.
        process_group_backend: The torch.distributed backend. None selects torch's default for the device. Use ``host`` for a device
            without a backend of its own: tensors are then copied through main memory and communicated by gloo.
        compile_backend: The ``torch.compile`` backend for this device. None selects torch's default.
        visible_devices_variable: The environment variable that limits which devices a process sees, such as ``CUDA_VISIBLE_DEVICES``.
        default_strategy: The strategy used on one device if the user names no strategy.
        default_distributed_strategy: The strategy used on several devices if the user names no strategy.
        first_call_timeout: The additional time in seconds that a conformance test may take in its first run, for a device that compiles
            each kernel when it is first called.
        is_simulated: Whether the device has no hardware behind it. ``auto`` never chooses a simulated device.
        declared_capabilities: The capabilities of the device. The conformance tests check the plugin against them.

    ``name`` and ``plugin`` (``dist==version``) are set when accelkit creates the instance.
    """

    device_type: ClassVar[str] = ""
    torch_package: ClassVar[str | None] = None
    process_group_backend: ClassVar[str | None] = None
    compile_backend: ClassVar[str | None] = None
    visible_devices_variable: ClassVar[str | None] = None
    default_strategy: ClassVar[str] = "single_device"
    default_distributed_strategy: ClassVar[str] = "ddp"
    first_call_timeout: ClassVar[int] = 0
    is_simulated: ClassVar[bool] = False
    declared_capabilities: ClassVar[Capabilities] = Capabilities()

    name: str = ""
    plugin: str = ""

    # -- before torch -------------------------------------------------------------------------------------------------

    @classmethod
    def probe(cls) -> Availability:
        """Return whether this accelerator can be used on this machine.

        Called in any process, possibly in a child process with a time limit. It must not import torch or create a driver context, and it
        must still be possible to fork the process afterwards. The default looks for ``torch_package`` without importing it.
        """
        package = cls.torch_package
        if package is not None and importlib.util.find_spec(package.partition(".")[0]) is None:
            hint = f"pip install {package.replace('_', '-')}" if "." not in package else f"install what provides the module {package}"
            return Availability.absent(f"the package {package} is not installed", hint)
        return Availability.usable(f"{package} is installed" if package else "torch itself supports this device")

    # -- loading and checking -----------------------------------------------------------------------------------------

    def build(self) -> None:
        """Build what the plugin needs on this machine, such as a library for the installed torch. Does nothing by default.

        Called in a child process, before ``load()``, each time the plugin is tried. If everything is already built, the method must return
        immediately. The method has a time limit of its own (ACCELKIT_BUILD_TIMEOUT), and the user is told that the program is waiting for
        the build. ``load()`` must not rely on this method having been called.
        """

    def load(self) -> None:
        """Import ``torch_package``, under a lock. Does not initialise the driver unless that package does.

        Called in each process that uses the device, possibly more than once. Must not rely on an earlier call to ``probe`` in the process.
        """
        if self.torch_package is not None:
            with _load_lock:
                importlib.import_module(self.torch_package)

    def check(self) -> Availability:
        """Return whether the installed torch can compute on this hardware. Initialises the driver.

        Called by the Runtime of each process before ``setup_device``, at the first use of the device. Also called in the child process in
        which the plugin is tried. The default runs an addition on device 0 and compares the result with the expected values.
        """
        import torch

        try:
            device = self.device(0)
            result = (torch.arange(4.0).to(device) + 1).cpu()
            with contextlib.suppress(UnsupportedError):  # the copy to the host has waited for the device already
                self.synchronize(device)
        except Exception as error:  # any error of the backend is reported as the result
            return Availability.broken(f"{type(error).__name__}: {error}")
        if result.tolist() != [1.0, 2.0, 3.0, 4.0]:
            return Availability.broken(f"[0, 1, 2, 3] + 1 gave {result.tolist()} on {device}")
        return Availability.usable(f"{device} computes")

    @hookimpl
    def setup_device(self, device: torch.device) -> None:
        """Make ``device`` current. Initialises the driver. Called each time a Runtime starts the device, before anything is placed on it.

        Raises:
            UnsupportedError: If torch cannot select devices and ``device`` is not device 0. Device 0 is current from the start.
        """
        torch_functions.set_device(self, device)

    @hookimpl
    def teardown(self) -> None:
        """Release what ``setup_device`` and training acquired. Called by ``Runtime.teardown``. The default calls ``empty_cache``."""
        self.empty_cache()

    # -- devices ------------------------------------------------------------------------------------------------------

    def device(self, index: int) -> torch.device:
        """Return the torch device with this index. Called after ``load()``. Must not initialise the driver."""
        import torch

        return torch.device(self.device_type, index)

    def parse_devices(self, devices: int | str | Sequence[int]) -> list[int]:
        """Convert ``devices`` (``n`` for the first n devices, ``-1`` or ``"auto"`` for all, a list, or ``"0,2"``) to device indices.

        Called by the constructor of a Runtime, and by a launcher, which may fork after the call. Must not initialise the driver.

        Returns:
            The indices in the order in which processes use them. There is at least one index, and no index occurs twice.

        Raises:
            DevicesError: If the argument cannot be parsed or names devices that do not exist.
        """
        return parse_devices(devices, self.auto_device_count(), self.name or self.device_type)

    def get_parallel_devices(self, devices: Sequence[int]) -> list[torch.device]:
        """Return the torch devices with these indices. Called only by the Lightning bridge."""
        return [self.device(index) for index in devices]

    def auto_device_count(self) -> int:
        """Return the number of devices that this process can use. Must not create a driver context: the process may fork after the call."""
        return int(self.device_module.device_count())

    @property
    def device_module(self) -> ModuleType:
        """The torch module of this device type, ``torch.<device_type>``. Available after ``load()``. Does not initialise the driver.

        Raises:
            BrokenPluginError: If torch has no such module because the vendor's package did not register one.
        """
        return torch_functions.device_module(self)

    def synchronize(self, device: torch.device) -> None:
        """Wait until all work queued on ``device`` has finished. Called by ``check``, Runtime, DeepSpeed, benchmarks and conformance tests.

        Raises:
            UnsupportedError: If neither ``torch.accelerator`` nor the device's module can wait for the device.
        """
        torch_functions.call(self, "synchronize", device)

    # -- memory and statistics ----------------------------------------------------------------------------------------

    def empty_cache(self) -> None:
        """Release the cached memory of the device's allocator, if the allocator has a cache. Called by ``teardown`` and the Runtime."""
        torch_functions.empty_cache(self)

    def memory_stats(self, device: torch.device) -> dict[str, float]:
        """Return ``memory.allocated.bytes`` and ``memory.peak.bytes`` of this process on ``device``.

        A value that neither ``torch.accelerator`` nor the device's module reports is left out. Called after the device was set up.
        """
        return torch_functions.memory_stats(self, device)

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        """Reset the memory peak to the bytes allocated now, if a peak is recorded. Called by the Runtime, DeepSpeed and conformance tests.

        Raises:
            UnsupportedError: If the device records a peak that cannot be reset.
        """
        torch_functions.reset_peak_memory_stats(self, device)

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Return whether ``error`` says that memory ran out. Called by ``rt.find_executable_batch_size``.

        The default returns True for a MemoryError and for an error whose message contains a text such as ``out of memory``.
        """
        return is_out_of_memory(error)

    @hookimpl
    def get_device_stats(self, device: torch.device) -> dict[str, Any]:
        """Return statistics of ``device``. Each key names the unit of its value, as in ``memory.allocated.bytes``.

        Called by the Runtime, the Lightning bridge and ``accelkit monitor``. The default returns the result of ``memory_stats``.
        """
        return self.memory_stats(device)

    @hookimpl
    def doctor_checks(self) -> Mapping[str, Availability]:
        """Return the results of the checks that ``accelkit doctor`` shows, as a mapping from the name of each check to its result.

        Called in a child process before ``load()``. The default returns an empty dict.
        """
        return {}

    # -- random state -------------------------------------------------------------------------------------------------

    def manual_seed(self, seed: int) -> None:
        """Seed the generators of all devices of this kind. Called by ``Runtime.seed_everything``, by a Runtime with a seed, and by bridges.

        Raises:
            UnsupportedError: If the device's module has neither ``manual_seed_all`` nor ``manual_seed``. The Runtime then only warns.
        """
        torch_functions.manual_seed(self, seed)

    def get_rng_state(self, device: torch.device) -> torch.Tensor | None:
        """Return the device's generator state as a CPU uint8 tensor, to be saved or synchronised. None if the device has no generator."""
        getter = getattr(self.device_module, "get_rng_state", None)
        state: torch.Tensor | None = getter(device) if getter is not None else None
        return state

    def set_rng_state(self, state: torch.Tensor, device: torch.device) -> None:
        """Restore a generator state returned by ``get_rng_state``.

        Raises:
            UnsupportedError: If the device's module has no ``set_rng_state``.
        """
        setter = getattr(self.device_module, "set_rng_state", None)
        if setter is None:
            raise UnsupportedError(f"{self.name or self.device_type} has no random state to set", plugin=self.plugin)
        setter(state, device)

    # -- computing ----------------------------------------------------------------------------------------------------

    @property
    def autocast_device_type(self) -> str:
        """The device type to pass to ``torch.autocast``."""
        return self.device_type

    @hookimpl
    def make_precision(self, name: str, device: torch.device) -> Precision | None:
        """Return this device's own implementation of the precision ``name``, or None to use the precision plugin of that name.

        Called on each process: by the Runtime whenever it has set up the device, and by the bridges to Lightning and Accelerate.
        """
        return None

    def step_end(self) -> None:
        """Execute the traced operations, on devices that trace lazily. The default does nothing. An override need not wait for the device.

        An override is called after each backward pass and each optimizer step, and before a prepared loader yields a batch.
        """

    def upload(self, batches: Iterator[list[torch.Tensor]], device: torch.device) -> Iterator[list[torch.Tensor]] | None:
        """Return an iterator that uploads the batches of an epoch ahead of time, for devices with their own upload mechanism.

        Args:
            batches: The tensors of each batch, on the host. Only one thread may read them, for example a thread that this method starts.
            device: The device of this process.

        Returns:
            The iterator over the batches on ``device``, in the same order and structure. An override must not return None. The iterator
            must raise the errors that ``batches`` raises. If the iterator has a method ``close``, the runtime calls it when the user's loop
            ends early. If ``upload`` is not overridden, or if rank 0 reads the data for all processes, the runtime copies the batches
            itself and does not call ``upload``.
        """
        return None

    def capabilities(self, device: torch.device | None = None) -> Capabilities:
        """Return the capabilities of ``device``. If ``device`` is None, return the capabilities that all devices of this kind have.

        The constructor of a Runtime calls this method without a device. In that case, the method must not initialise the driver.
        """
        return self.declared_capabilities

    def __repr__(self) -> str:
        return f"<accelerator {self.name or type(self).__name__} ({self.plugin or 'not from a plugin'})>"
