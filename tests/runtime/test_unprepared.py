"""Training with a model or an optimizer that was not passed to ``prepare``, and losses that are not tensors, are errors."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import accelkit
from accelkit_builtin.precisions.p16_mixed import Float16Mixed, GradScalerOptions


def scaling():
    return Float16Mixed(GradScalerOptions(init_scale=1024.0))


def made(**options):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    rt = accelkit.Runtime("cpu", precision=scaling(), **options)
    return rt, model, torch.optim.SGD(model.parameters(), lr=0.1)


def loss_of(model):
    return model(torch.ones(2, 4)).float().square().mean()


# -- precisions that scale gradients ----------------------------------------------------------------------------------


@pytest.mark.parametrize("prepared", ["nothing", "the loader", "the model"])
@pytest.mark.parametrize("steps", [1, 2])
def test_scaled_gradients_need_a_prepared_optimizer(prepared, steps, error_text):
    rt, model, _ = made(gradient_accumulation_steps=steps)
    if prepared == "the loader":
        rt.prepare(DataLoader(range(4)))
    elif prepared == "the model":
        rt.prepare(model)
    for _ in range(2):
        with pytest.raises(accelkit.UsageError) as caught:
            rt.backward(loss_of(model))
    assert "multiplies gradients by a scale" in caught.value.why
    assert caught.value == error_text
    assert model.weight.grad is None


def test_after_the_first_backward_pass_nothing_more_is_checked():
    rt, model, optimizer = made()
    rt.prepare(model)
    rt.prepare(optimizer)
    for _ in range(2):
        rt.backward(loss_of(model))
        assert rt.backward is rt._session.backward
        optimizer.step()
        optimizer.zero_grad()


def test_a_forgotten_second_optimizer_does_not_step(error_text):
    rt = accelkit.Runtime("cpu", precision=scaling())
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model, optimizer = rt.prepare(model, torch.optim.SGD(model[0].parameters(), lr=0.1))
    second = torch.optim.AdamW(model[1].parameters())
    before = model[1].weight.detach().clone()
    rt.backward(loss_of(model))
    optimizer.step()
    for _ in range(2):
        with pytest.raises(accelkit.UsageError) as caught:
            second.step()
    assert caught.value.what.startswith("AdamW")
    assert caught.value == error_text
    assert torch.equal(model[1].weight, before)
    rt.prepare(second).step()
    assert not torch.equal(model[1].weight, before)


def test_an_optimizer_that_wraps_a_prepared_one_may_step():
    class Outer(torch.optim.Optimizer):
        def __init__(self, inner):
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure=None):
            self.inner.step(closure)

    rt, model, optimizer = made()
    rt.prepare(model, optimizer)
    outer = Outer(optimizer)
    before = model.weight.detach().clone()
    rt.backward(loss_of(model))
    outer.step()
    assert 0 < (model.weight - before).abs().max() < 1


def test_an_optimizer_of_a_model_that_is_not_prepared_may_step():
    rt, model, optimizer = made()
    rt.prepare(model, optimizer)
    other = nn.Linear(4, 1)
    others = torch.optim.SGD(other.parameters(), lr=0.1)
    before = other.weight.detach().clone()
    rt.backward(loss_of(model))
    loss_of(other).backward()
    others.step()
    assert not torch.equal(other.weight, before)


def test_an_optimizer_that_never_steps_keeps_no_model_alive(no_garbage):
    rt, model, optimizer = made()
    rt.prepare(model, optimizer)
    other = nn.Linear(4, 1)
    others = torch.optim.SGD(other.parameters(), lr=0.1)
    rt.backward(loss_of(model))
    alive = weakref.ref(model)
    del rt, model, optimizer
    gc.collect()
    assert alive() is None
    assert others.param_groups


# -- losses -----------------------------------------------------------------------------------------------------------


class Lazy(accelkit.Accelerator):
    """A device that traces lazily."""

    device_type = "cpu"

    @classmethod
    def probe(cls):
        return accelkit.Availability.usable()

    def step_end(self):
        pass


@pytest.mark.parametrize("options", [{}, {"precision": "16-mixed"}, {"gradient_accumulation_steps": 2}, {"accelerator": Lazy()}])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_number_is_not_a_loss(options, is_first, error_text):
    rt = accelkit.Runtime(**({"accelerator": "cpu"} | options))
    model = nn.Linear(4, 1)
    model, optimizer = rt.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    if is_first:
        rt.teardown()
    else:
        rt.backward(loss_of(model))
    if rt.backward is torch.Tensor.backward:
        return
    with pytest.raises(accelkit.UsageError) as caught:
        rt.backward(loss_of(model).item())
    assert "float" in caught.value.what
    assert caught.value == error_text
    assert optimizer.param_groups
