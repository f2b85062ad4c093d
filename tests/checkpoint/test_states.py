"""States of torch's and others' objects, saved and restored equal."""

from __future__ import annotations

import datetime
import enum
import pathlib
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque

import numpy
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import accelkit
from accelkit import CheckpointError
from accelkit.runtime.checkpoints import checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:the checkpoint will contain no model")


class Colour(enum.Enum):
    RED = "red"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


VALUES = [
    Counter({3: 2, 9: 1}),
    defaultdict(list, a=[torch.ones(2)]),
    defaultdict(None, a=1),
    deque([1, torch.zeros(3)], maxlen=4),
    {1, "two", 3.0},
    frozenset({None, True}),
    OrderedDict(b=1, a=2),
    datetime.datetime(2026, 11, 22, 23, 32, tzinfo=datetime.UTC),
    datetime.date(2026, 11, 22),
    datetime.time(23, 32, 5, 17),
    datetime.timedelta(days=-1, microseconds=3),
    pathlib.Path("some/where"),
    pathlib.PurePath("else/where"),
    Colour.RED,
    numpy.float32(0.1),
    numpy.int64(-3),
    numpy.bool_(True),
    numpy.complex64(1 - 2j),
    numpy.arange(6, dtype="uint8").reshape(2, 3),
    numpy.zeros((0, 2)),
    numpy.array(2.5),
    numpy.arange(6.0)[::2],
    complex("nan-infj"),
]


class Held:
    """An object with a state of one value."""

    def __init__(self, value=None):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def saved_and_loaded(thing, fresh, folder):
    before = accelkit.Runtime(accelerator="cpu")
    before.register_for_checkpointing(thing)
    before.save_state(folder)
    after = accelkit.Runtime(accelerator="cpu")
    after.register_for_checkpointing(fresh)
    after.load_state(folder)
    return fresh


def same(a, b, where="state"):
    assert type(a) is type(b), (where, a, b)
    if isinstance(a, torch.Tensor | numpy.ndarray):
        assert a.dtype == b.dtype, where
        assert a.shape == b.shape, where
        assert numpy.array_equal(numpy.asarray(a), numpy.asarray(b)), (where, a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b), where
        for key in a:
            same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list | tuple | deque):
        assert len(a) == len(b), where
        for index, (one, other) in enumerate(zip(a, b, strict=True)):
            same(one, other, f"{where}.{index}")
    else:
        assert repr(a) == repr(b) or a == b, (where, a, b)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_plain_containers_and_values(value, tmp_path):
    same(value, saved_and_loaded(Held(value), Held(), tmp_path).value)
    if isinstance(value, defaultdict):
        assert saved_and_loaded(Held(value), Held(), tmp_path / "again").value.default_factory is value.default_factory
    if isinstance(value, deque):
        assert saved_and_loaded(Held(value), Held(), tmp_path / "again").value.maxlen == value.maxlen


@pytest.mark.parametrize(
    "value",
    [
        defaultdict(lambda: 0),
        numpy.array(["text"]),
        numpy.array([object()]),
        numpy.zeros(1, dtype=[("a", "f4")]),
        numpy.zeros(2, dtype=">f4"),
        {(1, 2)} | {object()},
        Rights.READ | Rights.WRITE,
    ],
    ids=["factory", "strings", "objects", "records", "byte order", "set", "flags"],
)
def test_what_would_need_code_is_refused(value, tmp_path):
    with pytest.raises(CheckpointError, match="custom_0.value"):
        saved_and_loaded(Held(value), Held(), tmp_path)


def test_an_enumeration_is_looked_up_and_never_imported(tmp_path, monkeypatch, error_text):
    module = types.ModuleType("colours")
    monkeypatch.setitem(sys.modules, "colours", module)
    module.Shade = enum.Enum("Shade", ["DARK", "LIGHT"], module="colours")
    checkpoint.save(tmp_path, {"custom_0": {"shade": module.Shade.DARK}})
    assert checkpoint.load(tmp_path)["custom_0"]["shade"] is module.Shade.DARK
    monkeypatch.delitem(sys.modules, "colours")
    with pytest.raises(CheckpointError, match="colours.Shade.DARK") as caught:
        checkpoint.load(tmp_path)
    assert caught.value == error_text


SCHEDULERS = {
    "LambdaLR": {"lr_lambda": lambda epoch: 0.9**epoch},
    "MultiplicativeLR": {"lr_lambda": lambda epoch: 0.9},
    "StepLR": {"step_size": 2},
    "MultiStepLR": {"milestones": [2, 2, 4]},
    "ConstantLR": {},
    "LinearLR": {},
    "ExponentialLR": {"gamma": 0.9},
    "PolynomialLR": {},
    "CosineAnnealingLR": {"T_max": 5},
    "CosineAnnealingWarmRestarts": {"T_0": 3},
    "CyclicLR": {"base_lr": 0.01, "max_lr": 0.1},
    "OneCycleLR": {"max_lr": 0.1, "total_steps": 20},
    "ReduceLROnPlateau": {"patience": 1},
    "SequentialLR": {},
    "ChainedScheduler": {},
}


def make_scheduler(name, optimizer):
    cls = getattr(lr_scheduler, name)
    if name == "ChainedScheduler":
        return cls([lr_scheduler.MultiStepLR(optimizer, [2]), lr_scheduler.ExponentialLR(optimizer, 0.9)])
    if name == "SequentialLR":
        return cls(optimizer, [lr_scheduler.MultiStepLR(optimizer, [2]), lr_scheduler.ExponentialLR(optimizer, 0.9)], [3])
    return cls(optimizer, **SCHEDULERS[name])


def test_every_scheduler_of_torchs_is_tested():
    bases = {"LRScheduler", "_LRScheduler"}
    found = {
        name for name, cls in vars(lr_scheduler).items() if isinstance(cls, type) and issubclass(cls, lr_scheduler.LRScheduler)
    } - bases
    assert found == SCHEDULERS.keys()


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_of_torch(name, tmp_path):
    def trained(steps, folder=None):
        torch.manual_seed(0)
        rt = accelkit.Runtime(accelerator="cpu")
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model, optimizer, scheduler = rt.prepare(model, optimizer, make_scheduler(name, optimizer))
        if folder is not None:
            rt.load_state(folder)
        rates = []
        for _ in range(steps):
            optimizer.step()
            scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
            rates.append(optimizer.param_groups[0]["lr"])
        return rt, rates

    rt, first = trained(4)
    rt.save_state(tmp_path)
    assert trained(10)[1] == first + trained(6, tmp_path)[1]


OPTIMIZERS = sorted(
    name
    for name, cls in vars(torch.optim).items()
    if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer) and name != "Optimizer"
)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_of_torch(name, tmp_path):
    def make():
        torch.manual_seed(0)
        model = nn.Embedding(5, 3, sparse=True) if name == "SparseAdam" else nn.Linear(3, 3, bias=False)
        return model, getattr(torch.optim, name)(model.parameters(), lr=0.01)

    def step(model, optimizer):
        data = torch.tensor([1, 3]) if name == "SparseAdam" else torch.ones(2, 3)

        def closure():
            optimizer.zero_grad()
            loss = model(data).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)

    before = accelkit.Runtime(accelerator="cpu")
    model, optimizer = before.prepare(*make())
    step(model, optimizer)
    before.save_state(tmp_path)
    after = accelkit.Runtime(accelerator="cpu")
    other, loaded = after.prepare(*make())
    after.load_state(tmp_path)
    same(optimizer.state_dict(), loaded.state_dict())
    step(model, optimizer)
    step(other, loaded)
    same(model.state_dict(), other.state_dict())


def test_a_scaler_an_average_and_metrics(tmp_path):
    torchmetrics = pytest.importorskip("torchmetrics")
    scaler, fresh = torch.amp.GradScaler("cpu", init_scale=8.0), torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))
    same(scaler.state_dict(), saved_and_loaded(scaler, fresh, tmp_path / "scaler").state_dict())
    model = nn.Linear(2, 2)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    average.update_parameters(model)
    loaded = saved_and_loaded(average, torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2)), tmp_path / "average")
    same(average.state_dict(), loaded.state_dict())
    metrics = torchmetrics.MetricCollection([torchmetrics.MeanMetric(), torchmetrics.CatMetric(), torchmetrics.MaxMetric()])
    fresh = metrics.clone()
    metrics.persistent(True)
    fresh.persistent(True)
    metrics.update(torch.tensor([1.0, 4.0]))
    loaded = saved_and_loaded(metrics, fresh, tmp_path / "metrics")
    same(metrics.state_dict(), loaded.state_dict())


def test_an_error_while_a_layout_is_looked_up_names_the_checkpoint_and_its_cause(tmp_path):
    checkpoint.save(tmp_path, {"model_0": {"weight": torch.ones(2)}})

    def layout(path, size):
        raise LookupError(f"no mesh for {path}")

    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(tmp_path, layout=layout)
    assert str(tmp_path) in caught.value.what
    assert "no mesh for model_0.weight" in caught.value.why
