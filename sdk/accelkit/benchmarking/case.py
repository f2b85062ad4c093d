"""Definitions of measurements that can be made on any device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from accelkit import byte_size
from accelkit.benchmarking.timing import Plan
from accelkit.capabilities import Capabilities
from accelkit.errors import message_in_one_line

if TYPE_CHECKING:
    import torch

_PER_SECOND = {"GB/s": 1e9, "GFLOP/s": 1e9, "samples/s": 1.0}
MEMORY, TO_DEVICE, TO_HOST, PEER = "memory", "host to device", "device to host", "device to device"
BYTES = (MEMORY, TO_DEVICE, TO_HOST, PEER)
"""The resources whose peaks are in bytes per second. All other resources are dtypes, whose peaks are in FLOP per second."""


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A device to measure.

    Attributes:
        device: The device.
        synchronize: A function that waits until the device has finished its work.
        capabilities: The capabilities that the device's plugin declares.
        peer: Another device of the accelerator, or None if the accelerator has only one device.
    """

    device: torch.device
    synchronize: Callable[[], None]
    capabilities: Capabilities
    peer: Target | None = None


class NotSupportedError(Exception):
    """A measurement is not possible on the device, or would take too long. The error message gives the reason."""


def reason_of(error: Exception) -> str:
    """Return the reason why a measurement is missing: the error's class and at most 300 characters of its message, in one line."""
    return f"{type(error).__name__}: {message_in_one_line(error)[:300]}"


def size_as_text(num_bytes: int) -> str:
    """Return a size for the name of a measurement, such as ``64KiB``.

    The size must be a whole number in the largest unit (B, KiB, MiB or GiB) that is not larger than the size. For example, 1536 bytes are
    not allowed: in a name, dots separate the parts, so the code that draws the plots would misread ``1.5KiB``.
    """
    return byte_size.as_text(num_bytes).replace(" ", "").replace(".0", "")


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A measurement.

    Attributes:
        name: The name, as in a ``Result``.
        unit: The unit of the result.
        prepare: A function that creates the tensors on a target and returns the call to measure.
        amount: The number of bytes, FLOP or samples that one call processes.
        work: How much of each resource one call uses, in bytes for ``memory`` and for links such as ``host to device``, and in FLOP for
            dtypes.
        peak_of: The resource whose rate this case measures, or an empty string. The peak rate of a resource is the highest rate that was
            measured for it.
        needs: The capabilities that the case requires. If the plugin declares one of them as ``none``, the case is not measured, and the
            report states the reason. A capability that the plugin does not declare does not prevent the measurement.
        measure: A function that does the whole measurement of a target, including the timing, and returns the samples in ``unit``. Each
            case has either ``prepare`` or ``measure``.
        runs_on_cpu: Whether the case is also measured on the CPU, for comparison.
    """

    name: str
    unit: str
    prepare: Callable[[Target], Callable[[], object]] | None = None
    amount: float = 1.0
    work: Mapping[str, float] = dataclasses.field(default_factory=dict)
    peak_of: str = ""
    needs: tuple[str, ...] = ()
    measure: Callable[[Target, Plan], list[float]] | None = None
    runs_on_cpu: bool = True

    @property
    def is_higher_better(self) -> bool:
        """Whether a larger value is better."""
        return self.unit != "us"

    def value(self, seconds: float) -> float:
        """Return the result, in the unit of the case, for a call that takes ``seconds``."""
        return seconds * 1e6 if self.unit == "us" else self.amount / seconds / _PER_SECOND[self.unit]

    def rate(self, value: float) -> float:
        """Return the rate at which the resource ``peak_of`` was used, in bytes or FLOP per second. ``value`` is the result in ``unit``."""
        return self.work[self.peak_of] * value * _PER_SECOND[self.unit] / self.amount

    def samples(self, target: Target, plan: Plan, peaks: Mapping[str, float]) -> list[float]:
        """Measure a target, and return the samples in the unit of the case.

        Args:
            target: The device to measure.
            plan: How long to measure.
            peaks: The known peak rates of the target, by resource, in bytes or FLOP per second (see ``BYTES``).

        Raises:
            NotSupportedError: If the measurement is not possible on the target, or if one call would take too long.
        """
        for key in self.needs:
            if target.capabilities[key] == "none":
                raise NotSupportedError(f"the plugin declares {key} as none")
        expected = self.shortest(peaks)[0]
        if expected > plan.longest_call:
            raise NotSupportedError(f"not measured: one call is expected to take at least {expected:.2g} s")
        if self.measure is not None:
            return self.measure(target, plan)
        assert self.prepare is not None
        return [self.value(seconds) for seconds in plan.seconds(self.prepare(target), target.synchronize)]

    def limit(self, peaks: Mapping[str, float]) -> tuple[float | None, str]:
        """Return the best value that is possible with these peak rates, and the resource that limits it.

        Return None and "" if no peak applies.

        If the unit is %, the value is the overlap of copies and computation. The limit then does not depend on the peaks: the method
        returns 100.0 and "complete overlap".
        """
        if self.unit == "%":
            return 100.0, "complete overlap"
        seconds, resource = self.shortest(peaks)
        return (self.value(seconds), resource) if seconds else (None, "")

    def shortest(self, peaks: Mapping[str, float]) -> tuple[float, str]:
        """Return the shortest time in seconds that a call can take with these peak rates, and the resource that determines this time.

        This is the roofline model (Williams, Waterman, Patterson, 2009): each resource needs some time for its part of the work, and a call
        takes at least the longest of these times. Return 0 and "" if no peak is known.
        """
        return max(((amount / peaks[name], name) for name, amount in self.work.items() if name in peaks), default=(0.0, ""))
