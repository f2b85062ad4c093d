"""This process as a member of its job, for the programs of test_collectives.py: ``PROGRAM ACCELERATOR CASE...``."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch

import accelkit

ACCELERATOR = sys.argv[1]
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
rt = accelkit.Runtime(ACCELERATOR)
rank, size = rt.process_index, rt.num_processes
everyone = range(size)


def mine(values, dtype=torch.float32):
    """A tensor on the device, made on the host: the fake XPU makes what it can there too."""
    return torch.tensor(values).to(dtype).to(rt.device)


def same(actual, expected, dtype=None):
    """Equal in value, dtype, shape and place."""
    expected = torch.as_tensor(expected)
    assert actual.dtype == (dtype or expected.dtype), (actual.dtype, expected.dtype)
    assert list(actual.shape) == list(expected.shape), (actual.shape, expected.shape)
    if actual.dtype in FLOAT8:
        actual, expected = actual.cpu().float(), expected.float()
    assert actual.cpu().tolist() == expected.to(actual.dtype).tolist(), (rank, actual, expected)


def raises(kind, call, *words):
    with pytest.raises(kind) as caught:
        call()
    assert all(word in str(caught.value) for word in words), str(caught.value)
    return str(caught.value)


def run(cases):
    """Run the functions that the command line names, one after another."""
    warnings.simplefilter("error")
    for name in sys.argv[2:]:
        cases[name]()
        print(f"done {name}", flush=True)
    rt.teardown()
