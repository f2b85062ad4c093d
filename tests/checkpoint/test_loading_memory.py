"""Loading takes at most 64 MiB of main memory besides the tensors that it restores."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch
from packaging.version import Version

import accelkit

MIB = 1 << 20
PART = 48  # MiB of a tensor, which is so large that malloc returns its memory to the system at once
LIMIT = 64

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or Version(torch.__version__) < Version("2.13"),
    reason="/proc shows the memory of a process, and torch 2.13 says where elements are",
)


def memory():
    """Return the memory of this process in MiB, without the pages of files that it has mapped."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (kib,) = [line.split()[1] for line in lines if line.startswith("RssAnon")]
    return int(kib) / 1024


@contextlib.contextmanager
def sampled(found):
    """Add the memory of this process to the list ``found``, every millisecond until the end of the ``with`` block."""
    is_over = threading.Event()

    def sample():
        while not is_over.wait(0.001):
            found.append(memory())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def prepared(accelerator, found, *, has_state):
    """Return a Runtime, a model of 96 MiB and an optimizer that has 96 MiB of state after a step."""
    runtime = accelkit.Runtime(accelerator)
    module = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(PART * MIB // 4)) for _ in range(2)])
    model, optimizer = runtime.prepare(module, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9))
    if has_state:
        for number, parameter in enumerate(model.parameters()):
            parameter.grad = torch.full_like(parameter, number + 1)
        optimizer.step()
        optimizer.zero_grad()
    for thing in (module, optimizer):  # at this moment, everything that was read is in memory
        thing.register_load_state_dict_pre_hook(lambda *_: found.append(memory()))
    return runtime, model, optimizer


@pytest.mark.parametrize("verify", ["full", "lazy"])
@pytest.mark.parametrize(("accelerator", "has_state"), [("cpu", True), ("fake_xpu", False)])
def test_loading_needs_no_second_copy_of_the_tensors(tmp_path, accelerator, has_state, verify):
    found = []
    runtime, _, _ = prepared(accelerator, found, has_state=True)
    runtime.save_state(tmp_path)
    del runtime, _
    runtime, model, optimizer = prepared(accelerator, found, has_state=has_state)
    gc.collect()
    created = 0 if has_state else 2 * PART  # the memory of the fake XPU is memory of this process
    before = memory()
    with sampled(found):
        runtime.load_state(tmp_path, verify=verify)
        runtime.get_state_dict(model)
    assert max(found) - before - created <= LIMIT
    assert [float(state["momentum_buffer"].mean()) for state in optimizer.state.values()] == [1.0, 2.0]
    assert str(tmp_path) not in Path("/proc/self/maps").read_text(), "nothing that was loaded depends on the file"


class WithOwnLoading(torch.optim.SGD):
    """Optimizer that keeps what it loads in an attribute."""

    def load_state_dict(self, state_dict):
        self.loaded = state_dict["state"]
        super().load_state_dict(state_dict)


@pytest.mark.parametrize("verify", ["full", "lazy"])
@pytest.mark.parametrize("cls", [torch.optim.SGD, WithOwnLoading])
def test_no_state_of_an_optimizer_is_a_mapping_of_the_file(tmp_path, cls, verify):
    def make():
        runtime, module = accelkit.Runtime("cpu"), torch.nn.Linear(2, 2)
        return runtime, *runtime.prepare(module, cls(module.parameters(), lr=0.1, momentum=0.9))

    runtime, model, optimizer = make()
    runtime.backward(model(torch.ones(2)).sum())
    optimizer.step()
    tied = torch.full((3,), 4.0)
    own = {"recent": deque([{"value": torch.ones(3)}], maxlen=2), "seen": {torch.ones(())}, "array": np.full(3, 5.0), "tied": [tied, tied]}
    optimizer.state["own"] = own
    runtime.save_state(tmp_path)
    runtime, model, optimizer = make()
    runtime.load_state(tmp_path, verify=verify)
    runtime.get_state_dict(model)
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    loaded = optimizer.state["own"]
    assert loaded["recent"].maxlen == 2
    assert loaded["recent"][0]["value"].tolist() == [1.0] * 3
    assert loaded["array"].tolist() == [5.0] * 3
    assert loaded["tied"][0] is loaded["tied"][1]
    assert len(optimizer.state) == 3
