"""The name of a device for people."""

from __future__ import annotations

import torch

from accelkit.device_name import device_name


def test_a_device_without_a_name_has_its_own():
    assert device_name(torch.device("cpu")) == "cpu"


def test_a_name_that_the_driver_does_not_tell_is_no_error():
    name = device_name(torch.device("cuda:99"))  # torch has no CUDA, or there is no such device
    assert name.startswith("cuda:99 (")
    assert "Error: " in name
