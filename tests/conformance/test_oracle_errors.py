"""Errors of a device inside the suite's checks, and machines on which a check cannot run."""

from __future__ import annotations

import socket

import pytest
import torch
from free_port import free_port
from torch.overrides import TorchFunctionMode

import accelkit
from accelkit.selection import resolve
from accelkit_conformance.oracle.aliases import check_dlpack
from accelkit_conformance.oracle.free_ports import free_ports
from accelkit_conformance.oracle.samplers import check_discrete_draws
from accelkit_conformance.results import NotSupported
from accelkit_conformance.subject import Subject


class _Device(TorchFunctionMode):
    """Inside the block, ``function`` raises an error or returns a result that is changed by ``change``."""

    def __init__(self, function, change):
        super().__init__()
        self._function, self._change = function, change

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return self._change(result) if func is self._function else result


@pytest.fixture
def subject():
    accelerator = accelkit.select("cpu").accelerator
    accelerator.load()
    found = Subject(resolve("cpu"), type(accelerator))
    found.use(accelerator)
    return found


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("Unknown device type acme for Dlpack"), NotSupported),
        (BufferError("Cannot pack tensors on acme:0"), NotSupported),
        (RuntimeError("Cannot pack tensors on acme:0"), NotSupported),
        (NotImplementedError("getDeviceFromPtr"), NotSupported),
        (RuntimeError("acme: invalid pointer"), RuntimeError),
        (torch.AcceleratorError("acme: the device was lost"), torch.AcceleratorError),
        (AttributeError("'NoneType' object has no attribute 'handle'"), AttributeError),
    ],
)
def test_only_errors_that_say_so_mean_that_dlpack_is_not_supported(subject, error, expected, monkeypatch):
    def fail(result):
        raise error

    monkeypatch.setattr(torch, "from_dlpack", fail)  # for capsules, which a TorchFunctionMode does not see
    with pytest.raises(expected) as raised, _Device(torch.Tensor.__dlpack_device__, fail):
        check_dlpack(subject)
    assert type(raised.value) is expected


@pytest.mark.parametrize("wrong", [-1, 5, 2**40])
def test_a_number_outside_of_the_distribution_is_named(subject, wrong):
    def change(result):
        result[7] = wrong
        return result

    with pytest.raises(AssertionError, match=f"randint drew {wrong}$"), _Device(torch.randint, change):
        check_discrete_draws(subject, "randint", 1000)


def test_too_few_free_ports_are_an_error():
    port = free_port()
    assert free_ports(1, range(port, port + 1)) == [port]
    with socket.create_server(("", port)), pytest.raises(OSError, match=f"only 0 of the ports {port} to {port} are free; 1 are needed"):
        free_ports(1, range(port, port + 1))
