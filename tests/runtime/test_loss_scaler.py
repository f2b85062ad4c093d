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
    [("init_scale", 0.0), ("init_scale", float("inf")), ("growth_factor", 1.0), ("backoff_factor", 2.0), ("growth_interval", 0)],
)
def test_options_with_which_the_scale_cannot_adapt_are_refused(name, value, error_text):
    with pytest.raises(accelkit.UsageError) as caught:
        GradScalerOptions(**{name: value})
    assert name in caught.value.what
    assert caught.value == error_text


def test_a_device_without_the_operator_is_refused_at_once(monkeypatch, error_text):
    def missing(*_):
        raise NotImplementedError("Could not run 'aten::_amp_foreach_non_finite_check_and_unscale_' with this device")

    monkeypatch.setattr(torch, "_amp_foreach_non_finite_check_and_unscale_", missing)
    with pytest.raises(accelkit.UnsupportedError) as caught:
        _ = accelkit.Runtime("cpu", precision="16-mixed").precision
    assert "bf16-mixed" in caught.value.hint
    assert caught.value == error_text
