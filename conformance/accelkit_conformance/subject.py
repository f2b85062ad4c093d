"""The subject, which is passed to every check: the plugin under test, and the accelerator and devices on which the plugin is tested."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from accelkit import Accelerator, AccelkitError, BrokenPluginError, Capabilities, PluginRecord
from accelkit.discovery import loading
from accelkit_conformance.expectations import Expectation
from accelkit_conformance.results import DECLARED_NONE, NotSupported
from accelkit_conformance.worker_cluster import WorkerCluster

if TYPE_CHECKING:
    import torch

    from accelkit import Runtime

Input = TypeVar("Input")


@dataclasses.dataclass(slots=True)
class SampleFailure:
    """One input on which a check failed.

    Attributes:
        sample: A description of the input.
        error: The error that was raised.
        reproducer: A program that reproduces the failure; may be empty.
        expectation: The expected failure that explains the error, if any.
    """

    sample: str
    error: BaseException
    reproducer: str
    expectation: Expectation | None


class Subject:
    """The plugin under test, in a worker process.

    Attributes:
        record: The record of the plugin.
        cls: The class of the plugin.
        accelerator: The accelerator on which the current test runs, loaded and set up; only for checks that need hardware. It is the plugin
            under test, or an accelerator on which a plugin of another kind is tested.
        device: The device on which the current test runs.
        devices: All devices of the accelerator.
        rank: The rank of this process among those that run a distributed check together.
        world_size: The number of processes that run a distributed check together.
        most_samples: The maximum number of inputs with which each operator is tested.
        expectations: The expected failures of the current check.
        failures, passed_though_expected, unsupported, num_samples: What ``sample`` has recorded about the inputs of the current check.
        without_numbers: The names of the accelerators for which a float32 scalar cannot be copied to the device and back.
        first_call_timeout: The additional time in seconds that the device may need to compile kernels when they are first called.
        announce: A function that is called before a check, or one input of a check, that is expected to kill this process.
        tell: A function that sends the runner a message about a call to the plugin. The message has one of two keys. ``doing`` names the
            current call, and is empty after the call. ``hung`` says that the call has exceeded its time limit and cannot be interrupted;
            ``tell`` then ends this process.
    """

    def __init__(self, record: PluginRecord, cls: type, *, rank: int = 0, world_size: int = 1, most_samples: int = 8) -> None:
        self.record, self.cls = record, cls
        self.rank, self.world_size, self.most_samples = rank, world_size, most_samples
        self.expectations: tuple[Expectation, ...] = ()
        self.failures: list[SampleFailure] = []
        self.passed_though_expected: list[str] = []
        self.unsupported: list[NotSupported] = []
        self.num_samples = 0
        self.without_numbers: set[str] = set()
        self.first_call_timeout = 0.0
        self.announce: Callable[[Expectation], None] = lambda expectation: None
        self.tell: Callable[[Mapping[str, str]], None] = lambda message: None
        self._accelerator: Accelerator | None = None
        self.devices: list[torch.device] = []
        self._index = -1

    def use(self, accelerator: Accelerator, index: int | None = None) -> None:
        """Use a loaded accelerator, and set up ``devices[index]``. By default, ``index`` is this process's rank modulo the number of
        devices."""
        if accelerator is not self._accelerator:
            self._accelerator, self._index = accelerator, -1
            self.devices = accelerator.get_parallel_devices(list(range(accelerator.auto_device_count())))
        self.switch_to(self.rank % len(self.devices) if index is None else index)

    def switch_to(self, index: int) -> None:
        """Use the device with this index from now on. The device is set up unless it is already in use."""
        if index != self._index:
            self._index, self.device = index, self.devices[index]
            self.accelerator.setup_device(self.device)

    @property
    def accelerator(self) -> Accelerator:
        assert self._accelerator is not None, "a check with needs_hardware=False uses the accelerator"
        return self._accelerator

    @property
    def is_loaded(self) -> bool:
        return self._accelerator is not None

    @property
    def device_type(self) -> str:
        return self.accelerator.device_type

    @property
    def module(self) -> ModuleType:
        """The module ``torch.<device_type>``."""
        return self.accelerator.device_module

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the device if the accelerator is loaded; otherwise those that the plugin's class declares."""
        if self._accelerator is not None:
            return self._accelerator.capabilities(self.device)
        return getattr(self.cls, "declared_capabilities", Capabilities())

    def lacks(self, dtype: str) -> bool:
        """Return whether the accelerator declares that the device does not have this dtype."""
        return self.capabilities[f"dtype.{dtype}"] == "none"

    def needs(self, *dtypes: str) -> None:
        """Require that the device has these dtypes.

        Raises:
            NotSupported: If the accelerator declares that the device lacks one of these dtypes. The result of the check is then
                ``unsupported``.
        """
        lacking = [f"dtype.{dtype}" for dtype in dtypes if self.lacks(dtype)]
        if lacking:
            raise NotSupported(f"{', '.join(lacking)}: {DECLARED_NONE}")

    def second_device(self) -> torch.device:
        """Return another device of the same type.

        Raises:
            NotSupported: If there is only one device.
        """
        others = [device for device in self.devices if device != self.device]
        if not others:
            raise NotSupported(f"this needs two devices, and there is only one {self.device_type} device")
        return others[0]

    def needs_devices(self, processes: int) -> None:
        """Require a device for each of ``processes`` processes. The CPU supports any number of processes.

        Raises:
            NotSupported: If the accelerator has fewer devices. The result of the check is then ``unsupported``.
        """
        try:
            self.accelerator.parse_devices(processes)
        except AccelkitError as error:
            raise NotSupported(f"{processes} processes need as many devices: {error}") from error

    def plugin(self) -> Any:
        """Return a new instance of the plugin under test."""
        return loading.instantiate(self.cls, self.record)

    def runtime(self, **options: Any) -> Runtime:
        """Return a Runtime that uses the subject's ``accelerator`` and ``device``.

        If the plugin under test is a precision or a strategy, the Runtime uses a new instance of the plugin. If several processes run the
        check together, they are the processes of the Runtime's job.

        Args:
            options: Other arguments of ``Runtime``. They take precedence over the arguments that this method passes for the plugin, the
                devices and the cluster.

        Raises:
            NotSupported: If there are fewer devices than processes.
        """
        from accelkit import Runtime

        if self.record.kind in ("precision", "strategy"):
            options.setdefault(self.record.kind, self.plugin())
        if self.world_size > 1:
            self.needs_devices(self.world_size)
            options = {"cluster": WorkerCluster(self.rank, self.world_size), "devices": self.world_size, **options}
        return Runtime(accelerator=self.accelerator, **{"devices": [self.devices.index(self.device)], **options})

    def synchronize(self) -> None:
        self.accelerator.synchronize(self.device)

    def compute(self) -> None:
        """Make a lazy device run all pending operations as one program. Does nothing on an eager device.

        Without this call, the device would run a separate program for each result that is read.
        """
        self.accelerator.step_end()

    def allocated(self) -> float:
        """Return the number of bytes that this process has allocated on the device.

        Raises:
            NotImplementedError: If the device does not count allocated bytes.
        """
        statistics = self.accelerator.memory_stats(self.device)
        if "memory.allocated.bytes" not in statistics:
            raise NotImplementedError("the device does not say how much memory is allocated")
        return statistics["memory.allocated.bytes"]

    def allocated_before(self) -> float:
        """Collect the garbage of earlier calls, wait until the number of allocated bytes no longer falls, and return this number.

        The autograd engine's thread for the device may free its last tensors only after ``backward`` has returned or raised. If these
        tensors were counted, a leak of the same size would not be noticed.
        """
        allocated, last = self._allocated_after_collection(), math.inf
        while allocated < last:
            time.sleep(0.01)
            allocated, last = self.allocated(), allocated
        return allocated

    def allocated_after(self, expected: float, seconds: float = 5) -> float:
        """Wait until at most ``expected`` bytes are allocated or ``seconds`` have passed, and return the number of allocated bytes.

        The wait is needed for the same reason as in ``allocated_before``. Garbage is collected before allocated bytes are counted.
        """
        deadline = time.monotonic() + seconds
        while (allocated := self._allocated_after_collection()) > expected and time.monotonic() < deadline:
            time.sleep(0.01)
        return allocated

    def _allocated_after_collection(self) -> float:
        gc.collect()
        return self.allocated()

    def function(self, name: str) -> Callable[..., Any]:
        """Return the function ``name`` of the module ``torch.<device_type>``.

        Raises:
            NotImplementedError: If the module does not have the function.
        """
        found: Callable[..., Any] | None = getattr(self.module, name, None)
        if found is None:
            raise NotImplementedError(f"torch.{self.device_type} has no {name}")
        return found

    def optional_function(self, name: str) -> Callable[..., Any] | None:
        """Return a function of the device's module, or None if the module or the function does not exist.

        If the module is missing, checks that use this method do not fail; ``device/module_has_required_functions`` fails instead.
        """
        try:
            return self.function(name)
        except (BrokenPluginError, NotImplementedError):
            return None

    def assert_on_device(self, *tensors: torch.Tensor) -> None:
        """Assert that all tensors are on the device. A tensor on another device shows that an operation has silently fallen back to that
        device."""
        assert_on_device(self.device, *tensors)

    @contextlib.contextmanager
    def sample(self, description: str, facts: Mapping[str, Any], reproducer: Callable[[], str] | None = None) -> Iterator[None]:
        """Context manager for one input of a check. An error raised in the block is recorded and compared with the expected failures; the
        check then continues. If an input raises NotSupported and no input fails, the result of the check is ``unsupported``.

        Args:
            description: A readable description of the input.
            facts: Variables that describe the input, by name. An expectation may select inputs by these variables (``Expectation.sample``).
            reproducer: A function that returns a program which reproduces the failure.
        """
        self.num_samples += 1
        expected = [one for one in self.expectations if one.holds_for(facts)]
        if crash := next((one for one in expected if one.is_crash and one.sample), None):
            self.announce(crash)
        try:
            yield
        except NotSupported as error:
            self.unsupported.append(error)
        except Exception as error:
            matches = next((one for one in expected if one.explains(error)), None)
            self.failures.append(SampleFailure(description, error, reproducer() if reproducer else "", matches))
        else:
            if any(one.sample and not one.is_torch_defect for one in expected):
                self.passed_though_expected.append(description)

    def crashing_last(self, inputs: Iterable[Input], facts: Callable[[Input], Mapping[str, Any]]) -> Iterable[Input]:
        """Return the inputs of a check in another order: the inputs that are expected to kill this process come last."""
        deadly = [one for one in self.expectations if one.is_crash]
        return sorted(inputs, key=lambda one: any(crash.holds_for(facts(one)) for crash in deadly)) if deadly else inputs

    def begin(self, expectations: tuple[Expectation, ...]) -> None:
        """Prepare for the next check: set its expectations and clear the state of the last check."""
        self.expectations, self.failures, self.passed_though_expected, self.unsupported = expectations, [], [], []
        self.num_samples = 0


def device_index(test: str, num_devices: int) -> int:
    """Return the index of the device on which to run a test that needs only one process.

    The index is derived from a hash of the test's id. It depends neither on the number of workers nor on the other tests of the run, so
    that every run of a test uses the same device.
    """
    return int.from_bytes(hashlib.sha256(test.encode()).digest()[:8]) % num_devices


def assert_on_device(device: torch.device, *tensors: torch.Tensor) -> None:
    """Assert that all tensors are on ``device``."""
    for tensor in tensors:
        assert tensor.device == device, f"a result is on {tensor.device}, not on {device}"
