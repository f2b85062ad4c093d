"""Fixtures of the runtime's tests."""

from __future__ import annotations

import gc

import accelkit_fake_xpu.torch_backend  # noqa: F401 # before this process's first backward pass, at which torch counts the devices
import pytest
import torch

import accelkit


@pytest.fixture
def rt():
    return accelkit.Runtime(accelerator="cpu")


@pytest.fixture
def no_garbage():
    """Free the tensors of earlier tests, which would otherwise be freed at any time during this one."""
    gc.collect()


@pytest.fixture
def parameters_are_made_anew():
    """``Module.to`` makes new Parameters, as on XLA and PrivateUse1: torch's own switch for that."""
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    yield
    torch.__future__.set_overwrite_module_params_on_conversion(False)
