"""The loss scale of ``16-mixed``: it changes as that of torch's GradScaler, and divides every kind of gradient."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import accelkit
from accelkit_builtin.precisions.p16_mixed import Float16Mixed, GradScalerOptions

OPTIONS = {"init_scale": 1000.0, "growth_factor": 1.7, "backoff_factor": 0.3, "growth_interval": 2}


@pytest.mark.parametrize("seed", range(3))
def test_scale_state_and_parameters_are_those_of_torchs_scaler(seed):
    generator = torch.Generator().manual_seed(seed)
    factors = torch.tensor([1.0, 1.0, 1.0, float("inf"), float("nan")])[torch.randint(5, (40,), generator=generator)].tolist()
    rt = accelkit.Runtime("cpu", precision=Float16Mixed(GradScalerOptions(**OPTIONS)))
    torch.manual_seed(seed)
    mine, theirs = nn.Linear(4, 2), nn.Linear(4, 2)
    theirs.load_state_dict(mine.state_dict())
    first, second = (torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (mine, theirs))
    rt.prepare(mine, first)
    scaler = torch.amp.GradScaler("cpu", **OPTIONS)
    for factor in factors:
        batch = torch.randn(3, 4, generator=generator)
        rt.backward(mine(batch).square().mean() * factor)
        first.step()
        first.zero_grad()
        with torch.autocast("cpu", torch.float16):
            result = theirs(batch)
        scaler.scale(result.float().square().mean() * factor).backward()
        scaler.step(second)
        scaler.update()
        second.zero_grad()
        assert rt.precision.state_dict() == scaler.state_dict()
        assert torch.equal(mine.weight, theirs.weight)
        assert len(first.state) == len(second.state)
    assert {1.0, float("inf")} <= set(factors), "there were steps to take and to skip"


def test_the_state_of_torchs_scaler_can_be_loaded():
    scaler = torch.amp.GradScaler("cpu", **OPTIONS)
    rt = accelkit.Runtime("cpu", precision="16-mixed")
    rt.precision.load_state_dict(scaler.state_dict())
    assert rt.precision.state_dict() == scaler.state_dict()


@pytest.mark.parametrize("is_infinite", [False, True])
def test_sparse_gradients_are_divided_and_checked(is_infinite):
    rt = accelkit.Runtime("cpu", precision="16-mixed")
    model = nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rt.prepare(model, optimizer)
    before = model.weight.detach().clone()
    rt.backward(model(torch.tensor([1, 1, 3])).sum() * (float("inf") if is_infinite else 1.0))
    optimizer.step()
    assert rt.optimizer_step_was_skipped is is_infinite
    expected = torch.tensor([[0.0, 0.0], [2.0, 2.0], [0.0, 0.0], [1.0, 1.0]])
    torch.testing.assert_close(before - model.weight, torch.zeros_like(expected) if is_infinite else expected)


def test_gradients_with_a_graph_are_divided():
    rt = accelkit.Runtime("cpu", precision="16-mixed")
    model = nn.ParameterList([nn.Parameter(torch.tensor([2.0]))])
    weight, optimizer = model[0], torch.optim.SGD(model.parameters(), lr=1.0)
    rt.prepare(model, optimizer)
    rt.backward(weight.sum())
    (weight.grad,) = torch.autograd.grad((weight**3).sum() * rt.precision.scale, weight, create_graph=True)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.tensor([2.0 - 12.0]))


def test_gradients_in_float16_are_refused(error_text):
    rt = accelkit.Runtime("cpu", precision="16-mixed")
    model = nn.Linear(2, 1).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rt.prepare(model, optimizer)
    rt.backward(model(torch.ones(1, 2)).sum())
    gradient = model.weight.grad.clone()
    with pytest.raises(accelkit.UsageError) as caught:
        optimizer.step()
    assert "16-true" in caught.value.hint
    assert caught.value == error_text
    assert torch.equal(model.weight.grad, gradient)


@pytest.mark.parametrize(
    ("name", "value"),
    [("init_scale", 1e-46), ("init_scale", 1e39), ("growth_factor", 1.0), ("backoff_factor", 2.0), ("growth_interval", 0)],
)
def test_options_with_which_the_scale_cannot_adapt_are_refused(name, value, error_text):
    with pytest.raises(accelkit.UsageError) as caught:
        GradScalerOptions(**{name: value})
    assert name in caught.value.what
    assert caught.value == error_text


def test_the_first_use_may_be_in_inference_mode():
    """A program may evaluate before it trains. Autograd does not accept tensors that inference mode has created."""
    rt = accelkit.Runtime("cpu", precision=Float16Mixed(GradScalerOptions(**OPTIONS)))
    model = nn.Linear(2, 1)
    with torch.inference_mode():
        model.to(rt.device)(torch.ones(1, 2, device=rt.device))
        rt.precision.pre_backward(torch.ones(()))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rt.prepare(model, optimizer)
    before = model.weight.detach().clone()
    rt.backward(model(torch.ones(1, 2)).sum())
    optimizer.step()
    torch.testing.assert_close(before - model.weight, torch.ones(1, 2))


def test_a_loss_that_stays_nan_skips_every_step():
    """The scale becomes so small that its reciprocal is not a number in float32, and then 0."""
    rt = accelkit.Runtime("cpu", precision="16-mixed")
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rt.prepare(model, optimizer)
    before = model.weight.detach().clone()
    for _ in range(200):
        rt.backward(model(torch.ones(1, 2)).sum() * float("nan"))
        optimizer.step()
        optimizer.zero_grad()
        assert rt.optimizer_step_was_skipped
    assert torch.equal(model.weight, before)
    assert rt.precision.scale == 0.0


def test_changing_scaled_sparse_gradients_warns():
    rt = accelkit.Runtime("cpu", precision="16-mixed")
    model = nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rt.prepare(model, optimizer)
    rt.backward(model(torch.tensor([1, 1, 3])).sum())
    gradient = model.weight.grad
    gradient.mul_(0.5)
    with pytest.warns(UserWarning, match="were changed between backward and step"):
        optimizer.step()
    assert model.weight.grad is gradient


def test_a_state_that_torch_accepts_can_be_loaded():
    """A scale that never grows is not an option, but older checkpoints may contain one. A failed load changes nothing."""
    rt = accelkit.Runtime("cpu", precision=Float16Mixed(GradScalerOptions(**OPTIONS)))
    state = torch.amp.GradScaler("cpu", init_scale=1000.1, growth_interval=0).state_dict()
    rt.precision.load_state_dict(state | {"scale": 1000.1})
    assert rt.precision.state_dict() == state | {"scale": torch.tensor(1000.1).item()}
    with pytest.raises(KeyError, match="growth_factor"):
        rt.precision.load_state_dict({"scale": 1.0, "_growth_tracker": 0})
    assert rt.precision.scale == torch.tensor(1000.1).item()
