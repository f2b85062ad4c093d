"""prepare: placing, following parameters, returning the same objects."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import accelkit


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x):
        return self.head(self.embed(x)) * self.scale


def train(rt, model, optimizer, steps=3):
    for _ in range(steps):
        rt.backward(model(torch.arange(10)).square().mean())
        optimizer.step()
        optimizer.zero_grad()


def test_the_very_same_objects_come_back_in_the_order_given(rt):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loader = DataLoader(TensorDataset(torch.zeros(4, 2)))
    prepared, *others = rt.prepare(loader, optimizer, scheduler, model)
    assert all(one is other for one, other in zip(others, (optimizer, scheduler, model), strict=True))
    assert prepared.loader is loader, "a loader is wrapped: its position is part of a saved state"
    assert rt.prepare(nn.Linear(1, 1)).__class__ is nn.Linear


class Replacing(accelkit.Precision):
    """Puts modules of its own where linear layers were, as quantising ones do."""

    def __init__(self, weight_name="weight"):
        self.weight_name = weight_name

    def convert_module(self, module):
        for name, layer in module.named_children():
            if type(layer) is nn.Linear:
                other = Other(layer.in_features, layer.out_features)
                with torch.no_grad():
                    other.weight.copy_(layer.weight)
                if self.weight_name != "weight":
                    setattr(other, self.weight_name, other._parameters.pop("weight"))
                setattr(module, name, other)
        return module


class Other(nn.Linear):
    """Another class, with parameters of its own."""


def test_an_optimizer_made_before_trains_the_modules_that_a_precision_put_there(error_text):
    rt = accelkit.Runtime("cpu", precision=Replacing())
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = rt.prepare(model, optimizer)
    assert type(model[0]) is Other
    assert optimizer.param_groups[0]["params"][0] is model[0].weight
    gone = nn.Sequential(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(gone.parameters(), lr=0.1)
    with pytest.raises(accelkit.PrepareError) as caught:
        accelkit.Runtime("cpu", precision=Replacing("packed")).prepare(gone, optimizer)
    assert "parameter 0 of group 0 of SGD" in caught.value.what
    assert "(2, 2)" in caught.value.why
    assert caught.value == error_text


@pytest.mark.usefixtures("parameters_are_made_anew")
@pytest.mark.parametrize("order", ["model first", "optimizer first", "two calls"])
def test_an_optimizer_made_before_trains_the_new_parameters(rt, order):
    model = Tied()
    old = model.head.weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    if order == "model first":
        rt.prepare(model, optimizer, scheduler)
    elif order == "optimizer first":
        rt.prepare(scheduler, optimizer, model)
    else:
        rt.prepare(model)
        rt.prepare(optimizer, scheduler)
    assert model.head.weight is not old, "the device makes new parameters, or this test shows nothing"
    assert model.head.weight is model.embed.weight, "tied parameters stay tied"
    assert optimizer.param_groups[0]["params"][0] is model.head.weight
    before = model.head.weight.detach().clone()
    train(rt, model, optimizer)
    assert not torch.equal(model.head.weight, before)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("accelerator", ["cpu", "fake_xpu"])
def test_lazy_modules_stay_lazy_until_the_first_call_and_are_trained(accelerator, precision):
    rt = accelkit.Runtime(accelerator=accelerator, precision=precision)
    head = nn.LazyLinear(4)
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), head)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = rt.prepare(model, optimizer)
    rt.backward(model(torch.randn(2, 3, 5, 5, device=rt.device)).square().sum())
    before = head.weight.detach().clone()
    optimizer.step()
    assert head.weight.shape == (4, 36)
    assert not torch.equal(head.weight, before)
    assert {tensor.device for tensor in (*model.parameters(), *model.buffers())} == {rt.device}


@pytest.mark.usefixtures("parameters_are_made_anew")
def test_optimizer_state_follows_too(rt):
    torch.manual_seed(0)
    model, twin = Tied(), Tied()
    twin.load_state_dict(model.state_dict())
    optimizer, twins = torch.optim.Adam(model.parameters(), lr=0.1), torch.optim.Adam(twin.parameters(), lr=0.1)
    for one, its in ((model, optimizer), (twin, twins)):
        one(torch.arange(10)).square().mean().backward()
        its.step()
        its.zero_grad()
    rt.prepare(model, optimizer)
    assert optimizer.state[model.head.weight]["step"] == 1
    train(rt, model, optimizer)
    for _ in range(3):
        twin(torch.arange(10)).square().mean().backward()
        twins.step()
        twins.zero_grad()
    torch.testing.assert_close(model.head.weight, twin.head.weight, rtol=0, atol=0)


@pytest.mark.usefixtures("parameters_are_made_anew")
def test_several_models_and_optimizers_and_retain_graph(rt):
    one, two = nn.Linear(2, 2), nn.Linear(2, 2)
    first, second = torch.optim.SGD(one.parameters(), lr=0.1), torch.optim.SGD(two.parameters(), lr=0.1)
    rt.prepare(first, one, second, two)
    loss = two(one(torch.ones(1, 2))).sum()
    rt.backward(loss, retain_graph=True)
    rt.backward(loss)
    before = one.weight.detach().clone(), two.weight.detach().clone()
    first.step()
    second.step()
    assert not torch.equal(one.weight, before[0])
    assert not torch.equal(two.weight, before[1])


def test_an_optimizer_of_foreign_parameters_is_refused(rt, error_text):
    model, other = nn.Linear(2, 3), nn.Linear(2, 3)
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    with pytest.raises(accelkit.PrepareError) as caught:
        rt.prepare(model, optimizer)
    assert "parameter 2 of group 0 of SGD" in caught.value.what
    assert "(3, 2)" in caught.value.why
    assert caught.value == error_text


def test_an_optimizer_that_is_left_out_is_told_at_its_first_step(error_text):
    """On a device whose move makes new parameters. Nobody tells the loss that it does not fall."""
    rt = accelkit.Runtime(accelerator="fake_xpu")
    model = nn.Linear(2, 1)
    forgotten = torch.optim.SGD(model.parameters(), lr=0.1)
    later = torch.optim.Adam(model.parameters(), lr=0.1)
    foreign = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    model = rt.prepare(model)
    rt.backward(model(torch.ones(1, 2, device=rt.device)).sum())
    with pytest.raises(accelkit.PrepareError, match="SGD") as caught:
        forgotten.step()
    assert caught.value == error_text
    later = rt.prepare(later)
    before = model.weight.detach().clone()
    later.step()
    assert not torch.equal(model.weight, before)
    assert not later._optimizer_step_pre_hooks, "it costs one step"
    foreign.step()
    made_afterwards = torch.optim.SGD(model.parameters(), lr=0.1)
    made_afterwards.step()


class Average:
    """An average of weights that keeps the parameters that it was given, as those of older programs do."""

    def __init__(self, parameters, place):
        self.kept = {"list": list, "dict": lambda found: {"all": [tuple(found)]}}[place](parameters)
        self.average = [parameter.detach().clone() for parameter in parameters]


@pytest.mark.parametrize("place", ["list", "dict"])
@pytest.mark.parametrize("at_once", [True, False])
def test_an_object_that_keeps_replaced_parameters_is_told_of_at_the_first_step(place, at_once):
    rt = accelkit.Runtime(accelerator="fake_xpu")
    model = nn.Linear(2, 1)
    average = Average(list(model.parameters()), place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if at_once:
        model, optimizer = rt.prepare(model, optimizer)
    else:
        model = rt.prepare(model)
        optimizer = rt.prepare(optimizer)
    with pytest.warns(UserWarning, match="Average") as caught:
        train_on_ones(rt, model, optimizer)
    assert len(caught) == 1
    assert "model.parameters()" in str(caught[0].message)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train_on_ones(rt, model, optimizer)  # once is enough
    assert not optimizer._optimizer_step_pre_hooks
    assert average.average


@pytest.mark.parametrize("accelerator", ["cpu", "fake_xpu"])
def test_who_keeps_copies_or_new_parameters_is_not_warned(accelerator):
    rt = accelkit.Runtime(accelerator=accelerator)
    model = nn.Linear(2, 1)
    parameters = list(model.parameters())  # a variable
    copies = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model, optimizer, scheduler = rt.prepare(model, optimizer, scheduler)
    average = Average(list(model.parameters()), "list")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train_on_ones(rt, model, optimizer)
        scheduler.step()
    assert parameters
    assert copies
    assert average.kept


def train_on_ones(rt, model, optimizer):
    rt.backward(model(torch.ones(1, 2, device=rt.device)).sum())
    optimizer.step()


def test_an_optimizer_need_not_be_prepared_where_parameters_stay(rt):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rt.prepare(model)
    optimizer.step()
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize("thing", [3, None, torch.zeros(2), {"model": nn.Linear(1, 1)}, nn.Linear])
def test_what_cannot_be_prepared_is_named(rt, thing, error_text):
    with pytest.raises(accelkit.PrepareError) as caught:
        rt.prepare(thing)
    assert "torch.nn.Module" in caught.value.why
    assert "DataLoader" in caught.value.why
    assert caught.value == error_text


def test_device_placement_can_be_left_to_the_user():
    rt = accelkit.Runtime(accelerator="cpu", device_placement=False)
    model = nn.Linear(2, 2, device="meta")
    assert rt.prepare(model).weight.is_meta


def test_device_placement_of_each_object(rt, error_text):
    model, other = nn.Linear(2, 2, device="meta"), nn.Linear(2, 2)
    assert rt.prepare(model, other, device_placement=[False, None]) == (model, other)
    assert model.weight.is_meta
    with pytest.raises(accelkit.PrepareError) as caught:
        rt.prepare(model, other, device_placement=[False])
    assert caught.value == error_text
    on_device = accelkit.Runtime("fake_xpu")
    loaders = on_device.prepare(DataLoader(range(2)), DataLoader(range(2)), device_placement=[False, None])
    assert [next(iter(loader)).device.type for loader in loaders] == ["cpu", "fake_xpu"]


def test_a_model_that_leaves_its_precision():
    rt = accelkit.Runtime("cpu", precision="bf16-mixed")
    model = rt.prepare(Tied())
    inputs = torch.arange(10)
    rounded = model(inputs)
    assert rt.unwrap_model(model) is model
    assert type(model) is not Tied
    assert rt.unwrap_model(model, False) is model, "as Accelerate's second argument"
    assert type(model) is Tied
    assert not torch.equal(model(inputs), rounded)
    assert rt.unwrap_model(model, keep_fp32_wrapper=False) is model
    assert torch.equal(rt.prepare(model)(inputs), rounded)


def test_a_model_whose_class_was_changed_since_cannot_leave_its_precision(error_text):
    rt = accelkit.Runtime("cpu", precision="bf16-mixed")
    model = rt.prepare(Tied())
    model.__class__ = type("Sharded", (type(model),), {})
    with pytest.raises(accelkit.UnsupportedError) as caught:
        rt.unwrap_model(model, keep_fp32_wrapper=False)
    assert caught.value == error_text


def test_unwrap_and_free(rt):
    model = nn.Linear(2, 2)
    compiled = torch.compile(model, backend="eager")
    assert rt.unwrap_model(rt.prepare(model)) is model
    assert rt.unwrap_model(compiled) is compiled
    assert rt.unwrap_model(compiled, keep_torch_compile=False) is model
    assert rt.free_memory(model, compiled) == (None, None)
    with pytest.raises(accelkit.PrepareError):
        rt.prepare(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))
