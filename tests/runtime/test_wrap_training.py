"""A strategy that wraps a module together with its optimizer: the loop stays as it is."""

from __future__ import annotations

import copy

import pytest
import torch

import accelkit


class Engine(torch.nn.Module):
    """Sums up gradients by itself, and steps the optimizer when it is told to."""

    def __init__(self, module, optimizer):
        super().__init__()
        self.module, self.optimizer, self.gradients = module, optimizer, None

    def forward(self, *inputs):
        return self.module(*inputs)

    def backward(self, loss):
        parameters = list(self.module.parameters())
        found = torch.autograd.grad(loss, parameters)
        self.gradients = found if self.gradients is None else [one + other for one, other in zip(self.gradients, found, strict=True)]

    def step(self):
        for parameter, gradient in zip(self.module.parameters(), self.gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        self.gradients = None


class MyEngineStrategy(accelkit.EngineStrategy):
    """Trains by an engine."""

    def wrap_training(self, module, optimizer, settings):
        self.engine, self.settings, self.calls = Engine(module, optimizer), settings, []
        optimizer.zero_grad()  # its own still: an engine may initialise the state
        return self.engine

    def backward(self, loss, **kwargs):
        self.calls.append("backward")
        self.engine.backward(loss)

    def step(self, optimizer):
        self.calls.append("step")
        self.engine.step()
        return True

    def zero_grad(self, optimizer):
        self.calls.append("zero_grad")
        self.engine.gradients = None
        optimizer.zero_grad()  # inside this method, it is the optimizer's own

    def unwrap_module(self, module):
        return module.module if isinstance(module, Engine) else module

    def check_state(self):
        raise accelkit.CheckpointError("an engine saves by itself", hint="engine.save()")


@pytest.mark.parametrize("method", ["wrap_training", "backward", "step", "zero_grad"])
def test_each_method_of_an_engine_is_required(method):
    required = {name: getattr(MyEngineStrategy, name) for name in ("wrap_training", "backward", "step", "zero_grad") if name != method}
    incomplete = type("Incomplete", (accelkit.EngineStrategy,), required)
    with pytest.raises(TypeError, match=f"class Incomplete .*{method}\\b"):
        incomplete()


def made():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    return model, copy.deepcopy(model), torch.randn(6, 5, 3)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def halving(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


@pytest.mark.parametrize("scheduler_is_made", ["before", "after"])
@pytest.mark.parametrize("steps", [1, 2])
def test_the_loop_trains_as_without(steps, scheduler_is_made):
    model, reference, batches = made()
    rt = accelkit.Runtime("cpu", strategy=MyEngineStrategy(), gradient_accumulation_steps=steps)
    optimizer, theirs = sgd(model), sgd(reference)
    other = halving(theirs)
    scheduler = halving(optimizer) if scheduler_is_made == "before" else None
    loader = torch.utils.data.DataLoader(batches, batch_size=2)
    _, same, engine = rt.prepare(loader, optimizer, model)
    assert same is optimizer
    assert isinstance(engine, Engine)
    assert rt.unwrap_model(engine) is model
    assert (rt.strategy.settings.batch_size, rt.strategy.settings.accumulation_steps) == (2, steps)
    scheduler = rt.prepare(scheduler or halving(optimizer))
    for number, batch in enumerate(batches, 1):
        with rt.accumulate(engine):
            rt.backward(engine(batch).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        (reference(batch).square().mean() / steps).backward()
        if number % steps == 0:
            theirs.step()
            theirs.zero_grad()
            other.step()
    assert rt.strategy.calls.count("backward") == 6
    assert rt.strategy.calls.count("step") == rt.strategy.calls.count("zero_grad") == 6 // steps
    assert optimizer.param_groups[0]["lr"] == theirs.param_groups[0]["lr"] < 0.1
    for mine, expected in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-6, atol=1e-7)


def test_a_step_that_the_engine_skips_is_none_of_the_schedulers():
    class Skipping(MyEngineStrategy):
        def step(self, optimizer):
            return len(self.calls) > 1 and super().step(optimizer)

    model, _, batches = made()
    rt = accelkit.Runtime("cpu", strategy=Skipping())
    engine, optimizer = rt.prepare(model, sgd(model))
    scheduler = rt.prepare(halving(optimizer))
    seen = []
    for batch in batches[:2]:
        rt.backward(engine(batch).mean())
        optimizer.step()
        scheduler.step()
        seen.append((rt.optimizer_step_was_skipped, optimizer.param_groups[0]["lr"]))
    assert seen == [(True, 0.1), (False, 0.05)]


def test_hooks_of_the_optimizer_run_once_a_step():
    model, _, batches = made()
    rt = accelkit.Runtime("cpu", strategy=MyEngineStrategy())
    optimizer, seen = sgd(model), []
    optimizer.register_step_post_hook(lambda *_: seen.append("hook"))
    engine, optimizer = rt.prepare(model, optimizer)
    for batch in batches[:2]:
        rt.backward(engine(batch).mean())
        optimizer.step()
    assert seen == ["hook", "hook"]


def test_a_step_outside_of_accumulate_is_told_once():
    model, _, batches = made()
    rt = accelkit.Runtime("cpu", gradient_accumulation_steps=4)
    model, optimizer = rt.prepare(model, sgd(model))
    rt.backward(model(batches[0]).mean())
    with pytest.warns(UserWarning, match=r"gradient_accumulation_steps=4.*with rt.accumulate\(model\)") as caught:
        optimizer.step()
    assert len(caught) == 1
    assert caught[0].filename == __file__
    rt.backward(model(batches[1]).mean())
    optimizer.step()  # a second warning would be an error
    other = accelkit.Runtime("cpu", gradient_accumulation_steps=4)
    model, optimizer = other.prepare(model, sgd(model))
    with other.accumulate(model):
        other.backward(model(batches[0]).mean())
        optimizer.step()


def test_backward_before_anything_else_starts_the_device():
    rt = accelkit.Runtime("cpu")
    weight = torch.ones((), requires_grad=True)
    rt.backward(2 * weight)
    assert weight.grad == 2
    rt.teardown()
    rt.backward(3 * weight)
    assert weight.grad == 5
    assert rt.backward is torch.Tensor.backward


def test_a_module_and_its_optimizer_come_together(error_text):
    model, other, _ = made()
    rt = accelkit.Runtime("cpu", strategy=MyEngineStrategy())
    for given, why in (
        ((model,), "no optimizer of this call trains it, and it has parameters to train"),
        ((sgd(model),), "no module of this call has all of this optimizer's parameters"),
        ((model, sgd(other)), "no module of this call has all of this optimizer's parameters"),
        ((model, sgd(model), sgd(model[0])), "Sequential already has another optimizer"),
    ):
        with pytest.raises(accelkit.PrepareError) as caught:
            rt.prepare(*given)
        assert "'MyEngineStrategy'" in caught.value.what
        assert caught.value == error_text
        assert caught.value.why == why
        assert "model, optimizer = rt.prepare(model, optimizer)" in caught.value.hint
    assert rt.prepare(other.requires_grad_(False)) is other


def test_a_closure_and_a_checkpoint_are_refused(tmp_path, error_text):
    model, _, _ = made()
    rt = accelkit.Runtime("cpu", strategy=MyEngineStrategy())
    _, optimizer = rt.prepare(model, sgd(model))
    with pytest.raises(accelkit.UnsupportedError) as caught:
        optimizer.step(lambda: None)
    assert "SGD.step" in caught.value.what
    assert caught.value == error_text
    assert "closure" in caught.value.hint
    for call in (rt.save_state, rt.load_state):
        with pytest.raises(accelkit.CheckpointError) as caught:
            call(tmp_path)
        assert "engine.save()" in caught.value.hint
        assert caught.value == error_text
