"""The benchmarks of a conformance run."""

import accelkit
from accelkit_conformance import benchmarks


def rates_of_collectives(cls):
    accelerator = cls()
    accelerator.name = "cpu"
    accelerator.load()
    return benchmarks._collectives(accelerator)["rows"]


def test_collectives_are_not_measured_if_two_processes_would_share_a_device():
    cpu = type(accelkit.select("cpu").accelerator)

    class OneDevice(cpu):
        """The CPU as one device that belongs to one process, as a GPU does."""

        parse_devices = accelkit.Accelerator.parse_devices

    assert rates_of_collectives(OneDevice) == []


def test_collectives_are_measured_with_two_processes_on_the_cpu():
    (row,) = rates_of_collectives(type(accelkit.select("cpu").accelerator))
    assert row["value"] > 0
