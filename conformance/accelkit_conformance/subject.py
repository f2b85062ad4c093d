"""What a check is given: the accelerator under test, its devices, and what it declares."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from accelkit import Accelerator, Capabilities, PluginRecord
from accelkit_conformance.expectations import Expectation
from accelkit_conformance.results import NotSupported, WrongError

if TYPE_CHECKING:
    import torch

    from accelkit import Runtime

Input = TypeVar("Input")


@dataclasses.dataclass(slots=True)
class SampleFailure:
    """One input of a check that gave a wrong result."""

    sample: str
    error: BaseException
    reproducer: str
    expectation: Expectation | None


class Subject:
    """The plugin under test, in a worker process.

    Attributes:
        record: Its plugin; ``cls`` is its class.
        accelerator: The instance, loaded and set up where a check needs hardware.
        device: What the worker works on: the worker's own, or that of its rank.
        devices: All of them.
        rank, world_size: Of the processes that run a distributed check together.
        most_samples: How many inputs of an operator are tried.
        announce: Called before an input that is expected to kill this process.
    """

    def __init__(self, record: PluginRecord, cls: type, *, rank: int = 0, world_size: int = 1, most_samples: int = 8) -> None:
        self.record, self.cls = record, cls
        self.rank, self.world_size, self.most_samples = rank, world_size, most_samples
        self.expectations: tuple[Expectation, ...] = ()
        self.failures: list[SampleFailure] = []
        self.passed_though_expected: list[str] = []
        self.num_samples = 0
        self.announce: Callable[[Expectation], None] = lambda expectation: None
        self._accelerator: Accelerator | None = None
        self.devices: list[torch.device] = []

    def use(self, accelerator: Accelerator, slot: int) -> None:
        """Work on this accelerator, which is loaded; ``slot`` spreads workers over its devices."""
        self._accelerator = accelerator
        count = accelerator.auto_device_count()
        self.devices = accelerator.get_parallel_devices(list(range(count)))
        self.device = self.devices[(slot + self.rank) % count]
        accelerator.setup_device(self.device)

    @property
    def accelerator(self) -> Accelerator:
        assert self._accelerator is not None, "this check says needs_hardware=False, and asks for the accelerator"
        return self._accelerator

    @property
    def is_loaded(self) -> bool:
        return self._accelerator is not None

    @property
    def device_type(self) -> str:
        return self.accelerator.device_type

    @property
    def module(self) -> ModuleType:
        """``torch.<device_type>``."""
        return self.accelerator.device_module

    @property
    def capabilities(self) -> Capabilities:
        """What it declares; refined by the device where there is one."""
        if self._accelerator is not None:
            return self._accelerator.capabilities(self.device)
        declared: Capabilities = self.cls.declared_capabilities  # type: ignore[attr-defined]
        return declared

    def second_device(self) -> torch.device:
        """Another device of this kind.

        Raises:
            NotSupported: If there is one only.
        """
        others = [device for device in self.devices if device != self.device]
        if not others:
            raise NotSupported(f"there is one {self.device_type} device here, and this needs two")
        return others[0]

    def runtime(self, **options: Any) -> Runtime:
        """A Runtime on this accelerator and device."""
        from accelkit import Runtime

        return Runtime(accelerator=self.accelerator, devices=[self.devices.index(self.device)], **options)

    def synchronize(self) -> None:
        self.accelerator.synchronize(self.device)

    def compute(self) -> None:
        """Have a device that computes lazily do what it was told, as one program: each result that is read by itself is one more."""
        self.accelerator.step_end()

    def allocated(self) -> float:
        """Bytes that this process holds on the device."""
        return self.accelerator.memory_stats(self.device)["memory.allocated.bytes"]

    def allocated_before(self) -> float:
        """As ``allocated``, without the garbage of earlier tests, which would go at any moment."""
        gc.collect()
        return self.allocated()

    def function(self, name: str) -> Callable[..., Any]:
        """A function of the device's module.

        Raises:
            AssertionError: If it is not there.
        """
        found: Callable[..., Any] | None = getattr(self.module, name, None)
        assert found is not None, f"torch.{self.device_type} has no {name}"
        return found

    def stays(self, *tensors: torch.Tensor) -> None:
        """All of them are on the device: nothing fell back to another one silently."""
        stay_on(self.device, *tensors)

    @contextlib.contextmanager
    def sample(self, description: str, facts: Mapping[str, Any], reproducer: Callable[[], str] | None = None) -> Iterator[None]:
        """One input of a check. What goes wrong inside is kept, and held against what is expected to fail; the check goes on.

        Args:
            description: The input, for people.
            facts: What an expectation's ``sample`` predicate may ask about.
            reproducer: Makes a program that shows the failure.
        """
        self.num_samples += 1
        expectation = next((one for one in self.expectations if one.holds_for(facts)), None)
        if expectation is not None and expectation.is_crash and expectation.sample:
            self.announce(expectation)
        try:
            yield
        except Exception as error:
            matches = expectation if expectation is not None and expectation.explains(error) else None
            self.failures.append(SampleFailure(description, error, reproducer() if reproducer else "", matches))
        else:
            if expectation is not None and expectation.sample:
                self.passed_though_expected.append(description)

    def crashing_last(self, inputs: Iterable[Input], facts: Callable[[Input], Mapping[str, Any]]) -> Iterable[Input]:
        """The inputs of a check, so that those which are expected to kill this process take no other with them."""
        deadly = [one for one in self.expectations if one.is_crash]
        return sorted(inputs, key=lambda one: any(crash.holds_for(facts(one)) for crash in deadly)) if deadly else inputs

    def begin(self, expectations: tuple[Expectation, ...]) -> None:
        """Forget the last check."""
        self.expectations, self.failures, self.passed_though_expected, self.num_samples = expectations, [], [], 0


def stay_on(device: torch.device, *tensors: torch.Tensor) -> None:
    """All of them are there.

    Raises:
        AssertionError: If one is elsewhere.
    """
    for tensor in tensors:
        assert tensor.device == device, f"a result is on {tensor.device}, not on {device}"


@contextlib.contextmanager
def raises(*errors: type[BaseException], about: str = "", doing: str) -> Iterator[None]:
    """An error of one of these classes is due, whose text holds ``about``.

    Raises:
        AssertionError: If none came. WrongError if another one did.
    """
    try:
        yield
    except errors as error:
        if about.lower() not in str(error).lower():
            raise WrongError(f"{doing}: the error says nothing about {about!r}: {error}") from error
    except Exception as error:
        due = " or ".join(one.__name__ for one in errors)
        raise WrongError(f"{doing} raised {type(error).__name__} where {due} is due: {error}") from error
    else:
        raise AssertionError(f"{doing} raised nothing")
