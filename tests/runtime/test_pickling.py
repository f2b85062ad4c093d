"""A Runtime stands for its process and refuses pickle; what it prepared can be pickled, and prepared where it is loaded."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import accelkit
from accelkit.runtime.dynamic_subclass import restore_class, swap_class

LOAD = """
import pickle, sys
import accelkit
rt = accelkit.Runtime("fake_xpu", precision="16-mixed", gradient_accumulation_steps=2)
assert rt.device
with open(sys.argv[1], "rb") as file:
    model, optimizer, loader, scheduler = rt.prepare(*pickle.load(file))
assert rt.unwrap_model(model) is model
ends = []
for inputs, in loader:
    with rt.accumulate(model):
        before = model.weight.clone()
        rt.backward(model(inputs).mean())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        ends.append(not model.weight.equal(before))
print(str(model.weight.device), ends, loader.epoch, optimizer.param_groups[0]["lr"])
"""


@pytest.fixture
def prepared():
    rt = accelkit.Runtime("fake_xpu", precision="16-mixed", gradient_accumulation_steps=2)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=8.0)
    loader = DataLoader(TensorDataset(torch.ones(6, 4)), batch_size=2)
    return rt, rt.prepare(model, optimizer, loader, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5))


def test_a_runtime_refuses_and_says_what_to_do(rt, error_text):
    for pack in (pickle.dumps, copy.copy, lambda one: pickle.dumps({"inside": [one]})):
        with pytest.raises(accelkit.UnsupportedError) as caught:
            pack(rt)
    assert "rt.launch(function)" in caught.value.hint
    assert caught.value == error_text
    assert pickle.loads(pickle.dumps(rt.state)) == rt.state


def test_a_deep_copy_of_what_holds_a_runtime_has_the_same_one(rt):
    assert copy.deepcopy({"rt": rt})["rt"] is rt


def test_what_was_prepared_goes_on_in_another_process(prepared, tmp_path):
    rt, things = prepared
    model, _, loader, _ = things
    assert len(list(loader)) == 3
    (tmp_path / "things.pkl").write_bytes(pickle.dumps(things))
    result = subprocess.run([sys.executable, "-c", LOAD, str(tmp_path / "things.pkl")], capture_output=True, text=True, check=False)
    assert result.stdout.split("\n")[0] == "fake_xpu:0 [False, True, True] 2 2.0", result.stderr
    assert model(torch.ones(1, 4, device=rt.device)).shape == (1, 1)


def doubling(cls):
    """A behaviour of ``swap_class``."""
    return {"step": lambda self: 2 * cls.step(self)}


class Plain:
    def __init__(self, size):
        self.size = size

    def step(self):
        return self.size


class Keyed(Plain):
    """Its copies are made by ``__new__`` with a keyword argument."""

    def __new__(cls, *args, size):
        return super().__new__(cls)

    def __init__(self, *, size):
        super().__init__(size)

    def __getnewargs_ex__(self):
        return (), {"size": self.size}


class Typed(Plain):
    """Its copies are made by a call to their type."""

    def __reduce__(self):
        return type(self), (self.size,)


class Rebuilt(Plain):
    """Its copies are made by a call to its own."""

    def __reduce__(self):
        return Rebuilt, (self.size,)


class Named(Plain):
    """There is one, and a pickle of it is its name."""

    def __reduce__(self):
        return "ONE"


ONE = Named(3)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_of_an_object_with_a_swapped_class_is_made_as_its_class_says(copied):
    twin = copied(swap_class(Plain(3), doubling))
    assert (twin.step(), restore_class(twin, doubling), type(twin), twin.step()) == (6, True, Plain, 3)
    assert type(copied(swap_class(Rebuilt(3), doubling))) is Rebuilt
    swap_class(ONE, doubling)
    assert copied(ONE) is ONE
    assert restore_class(ONE, doubling)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("make", [Plain, Typed, Keyed])
def test_an_object_with_a_swapped_class_is_pickled_with_every_protocol(make, protocol):
    twin = pickle.loads(pickle.dumps(swap_class(make(size=3), doubling), protocol))
    assert (twin.step(), restore_class(twin, doubling), type(twin), twin.step()) == (6, True, type(make(size=3)), 3)


def test_a_copied_loader_is_the_runtimes_when_it_is_prepared(prepared):
    rt, (model, optimizer, loader, _) = prepared
    assert rt.prepare(loader) is loader
    twin = rt.prepare(pickle.loads(pickle.dumps(loader)))
    ends = []
    for _ in twin:
        with rt.accumulate(model):
            ends.append(rt.sync_gradients)
    assert ends == [False, True, True], "its end completes a step"
    assert optimizer.param_groups[0]["lr"] == 8.0
