"""``16-mixed`` with optimizers whose gradients were divided by the scale, to clip them, and that have not stepped yet."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import accelkit
from accelkit_builtin.precisions.p16_mixed import Float16Mixed, GradScalerOptions


def two_models():
    """Return a Runtime, and two pairs of a model and an optimizer. The gradients of each are 1."""
    rt = accelkit.Runtime("cpu", precision=Float16Mixed(GradScalerOptions(init_scale=1024.0, growth_interval=1)))
    models = [nn.Linear(2, 1) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1.0) for model in models]
    rt.prepare(*models, *optimizers)
    return rt, list(zip(models, optimizers, strict=True))


def test_gradients_that_were_clipped_before_another_backward_pass_are_divided_once():
    """Otherwise, the first of two models would hardly be trained."""
    rt, pairs = two_models()
    for scale in (1024.0, 2048.0, 4096.0):
        before = [model.weight.detach().clone() for model, _ in pairs]
        for model, _ in pairs:
            rt.backward(model(torch.ones(1, 2)).sum())
            rt.clip_grad_norm_(model.parameters(), 100.0)
        for model, optimizer in pairs:
            assert model.weight.grad.tolist() == [[1.0, 1.0]]
            optimizer.step()
            optimizer.zero_grad()
        for (model, _), weight in zip(pairs, before, strict=True):
            torch.testing.assert_close(weight - model.weight, torch.ones(1, 2))
        assert rt.precision.scale == 2 * scale, "all of it counts as one step"


def test_a_model_that_is_clipped_and_rarely_steps_does_not_stop_the_others():
    rt, ((first, one), (second, two)) = two_models()
    rt.backward(first(torch.ones(1, 2)).sum())
    rt.clip_grad_norm_(first.parameters(), 100.0)
    for step in range(1, 4):
        rt.backward(second(torch.ones(1, 2)).sum())
        two.step()
        two.zero_grad()
        assert rt.precision.scale == 1024.0 * 2**step
    before = first.weight.detach().clone()
    one.step()
    torch.testing.assert_close(before - first.weight, torch.ones(1, 2))
    one.zero_grad()
    rt.backward(first(torch.ones(1, 2)).sum())
    one.step()
    torch.testing.assert_close(before - first.weight, torch.full((1, 2), 2.0))


def test_an_infinite_gradient_of_another_model_does_not_skip_a_step_that_waits():
    rt, ((first, one), (second, two)) = two_models()
    rt.backward(first(torch.ones(1, 2)).sum())
    rt.clip_grad_norm_(first.parameters(), 100.0)
    for factor in (float("inf"), 1.0, 1.0):
        rt.backward(second(torch.ones(1, 2)).sum() * factor)
        two.step()
        two.zero_grad()
    before = first.weight.detach().clone()
    one.step()
    torch.testing.assert_close(before - first.weight, torch.ones(1, 2))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_the_scale_shrinks_even_if_the_program_leaves_out_every_step(set_to_none):
    rt, ((model, optimizer), _) = two_models()
    for _ in range(6):
        rt.backward(model(torch.ones(1, 2)).sum() * float("inf"))
        rt.clip_grad_norm_(model.parameters(), 100.0)
        optimizer.zero_grad(set_to_none=set_to_none)
    rt.backward(model(torch.ones(1, 2)).sum())
    assert model.weight.grad[0, 0].item() <= 1024 / 4


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_after_a_step_that_the_program_left_out_are_divided(set_to_none):
    rt, ((model, optimizer), _) = two_models()
    for factor in (1.0, float("inf")):
        scale = rt.precision.scale
        rt.backward(model(torch.ones(1, 2)).sum() * factor)
        rt.clip_grad_norm_(model.parameters(), 100.0)
        optimizer.zero_grad(set_to_none=set_to_none)
        before = model.weight.detach().clone()
        rt.backward(model(torch.ones(1, 2)).sum())
        optimizer.step()
        optimizer.zero_grad()
        torch.testing.assert_close(before - model.weight, torch.ones(1, 2))
    assert rt.precision.scale <= scale, "the infinite gradient counts"
    rt.backward(model(torch.ones(1, 2)).sum())
    assert rt.precision.scale <= scale
