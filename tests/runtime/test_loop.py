"""The loop: gradients, accumulation, collectives on one process, seeding, statistics."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import accelkit

# -- gradients --------------------------------------------------------------------------------------------------------


def flags(rt, model, loader):
    """Whether gradients are complete, batch by batch, without training."""
    found = []
    for _ in loader:
        with rt.accumulate(model):
            found.append(rt.sync_gradients)
    return found


def test_accumulating_equals_one_large_batch():
    torch.manual_seed(0)
    data = torch.randn(10, 4)
    model, twin = nn.Linear(4, 1), nn.Linear(4, 1)
    twin.load_state_dict(model.state_dict())
    rt = accelkit.Runtime(accelerator="cpu", gradient_accumulation_steps=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    model, optimizer, scheduler, loader = rt.prepare(model, optimizer, scheduler, DataLoader(TensorDataset(data), batch_size=2))
    synced = []
    validation = rt.prepare(DataLoader(TensorDataset(data), batch_size=5))
    assert len(list(validation)) == 2
    assert not validation.is_at_end, "a loop that is over completes nobody's steps"
    assert [flags(rt, model, loader) for _ in range(2)] == [[False, True, False, True, True]] * 2, "an epoch begins anew"
    for (batch,) in loader:
        with rt.accumulate(model):
            rt.backward(model(batch).square().mean())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            synced.append(rt.sync_gradients)
    assert synced == [False, True, False, True, True], "the last batch of an epoch completes the step"
    assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5**3

    reference = torch.optim.SGD(twin.parameters(), lr=0.1)
    for number, chunk in enumerate((data[:4], data[4:8], data[8:])):
        loss = twin(chunk).square().mean()
        (loss / 2 if number == 2 else loss).backward()
        reference.step()
        reference.zero_grad()
        reference.param_groups[0]["lr"] *= 0.5
    torch.testing.assert_close(model.weight, twin.weight)


def test_a_subclass_may_override_the_methods_of_a_step():
    calls = []

    class Recording(accelkit.Runtime):
        def accumulate(self, *models):
            calls.append("accumulate")
            return super().accumulate(*models)

        def backward(self, loss, **kwargs):
            calls.append("backward")
            super().backward(loss, **kwargs)

    rt = Recording("cpu", gradient_accumulation_steps=2)
    model = rt.prepare(nn.Linear(1, 1))
    for _ in range(2):
        with rt.accumulate(model):
            rt.backward(model(torch.ones(1, 1)).sum())
    assert calls == ["accumulate", "backward"] * 2
    assert model.bias.grad.tolist() == [1.0], "the mean of two"


def test_a_step_outside_accumulate_acts():
    rt = accelkit.Runtime(accelerator="cpu", gradient_accumulation_steps=4)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rt.prepare(model, optimizer)
    before = model.weight.detach().clone()
    rt.backward(model(torch.ones(1, 1)).sum())
    with pytest.warns(UserWarning, match="accumulate"):
        optimizer.step()
    assert not torch.equal(model.weight, before)
    assert isinstance(optimizer, torch.optim.SGD)
    assert rt.gradient_accumulation_steps == 4


def accumulating(*, num_optimizers=1):
    rt = accelkit.Runtime(accelerator="cpu", gradient_accumulation_steps=2)
    model = nn.Linear(1, 1)
    optimizers = [torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()][:num_optimizers]
    return rt, *rt.prepare(model, *optimizers)


@pytest.mark.parametrize("is_first", [True, False])
def test_gradients_that_were_not_divided_are_refused(is_first, error_text):
    rt, model, optimizer = accumulating()
    for _ in range(0 if is_first else 4):
        with rt.accumulate(model):
            rt.backward(model(torch.ones(1, 1)).sum())
            optimizer.step()
            optimizer.zero_grad()
    before = model.weight.detach().clone()
    with rt.accumulate(model):
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
    with rt.accumulate(model):
        model(torch.ones(1, 1)).sum().backward()
        with pytest.raises(accelkit.UsageError) as caught:
            optimizer.step()
    assert "loss.backward()" in caught.value.hint
    assert caught.value == error_text
    assert torch.equal(model.weight, before)


def test_several_optimizers_may_step_after_one_backward_pass():
    rt, model, first, second = accumulating(num_optimizers=2)
    for _ in range(4):
        with rt.accumulate(model):
            rt.backward(model(torch.ones(1, 1)).sum())
            for optimizer in (first, second):
                optimizer.step()
                optimizer.zero_grad()


def test_an_optimizer_without_gradients_or_with_a_closure_may_step():
    rt, model, optimizer = accumulating()

    def closure():
        loss = model(torch.ones(1, 1)).sum()
        rt.backward(loss)
        return loss

    before = model.weight.detach().clone()
    for _ in range(2):
        with rt.accumulate(model):
            optimizer.step()
    assert torch.equal(model.weight, before)
    for _ in range(4):
        with rt.accumulate(model):
            optimizer.step(closure)
    assert not torch.equal(model.weight, before)


def test_without_accumulation_backward_is_torchs_own(rt):
    rt.prepare(nn.Linear(1, 1))
    assert rt.backward is torch.Tensor.backward
    assert rt.sync_gradients
    with rt.accumulate(), rt.no_sync(nn.Linear(1, 1)):
        pass


def test_clipping(rt):
    model = rt.prepare(nn.Linear(3, 1))
    rt.backward(model(torch.full((1, 3), 10.0)).sum())
    norm = rt.clip_grad_norm_(model.parameters(), 1.0)
    torch.testing.assert_close(norm, torch.tensor(301.0).sqrt())
    torch.testing.assert_close(torch.cat([p.grad.flatten() for p in model.parameters()]).norm(), torch.tensor(1.0))
    rt.clip_grad_value_(model.parameters(), 0.1)
    assert max(p.grad.abs().max() for p in model.parameters()) <= 0.1


def test_gradients_of_a_precision_that_does_not_scale_them_are_left_as_they_are(rt):
    model = rt.prepare(nn.Linear(3, 1))
    rt.backward(model(torch.ones(1, 3)).sum())
    rt.unscale_gradients()
    assert model.weight.grad.tolist() == [[1, 1, 1]]


def test_a_strategy_that_cannot_join_uneven_inputs_is_named(error_text):
    class Strict(accelkit.Strategy):
        def join(self, modules):
            return None

    rt = accelkit.Runtime(accelerator="cpu", strategy=Strict())
    with pytest.raises(accelkit.UnsupportedError) as caught:
        rt.join_uneven_inputs([rt.prepare(nn.Linear(1, 1))])
    assert "'Strict'" in caught.value.what
    assert "even_batches=True" in caught.value.hint
    assert caught.value == error_text


def test_the_end_of_an_outer_loop_is_not_the_end_of_the_inner_one():
    """Both loaders are prepared; the outer one is at its last batch all the while, and an evaluation may run inside."""
    rt = accelkit.Runtime(accelerator="cpu", gradient_accumulation_steps=2)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outer, inner, evaluation = (torch.utils.data.DataLoader(torch.ones(size, 1)) for size in (1, 4, 1))
    model, optimizer, outer, inner, evaluation = rt.prepare(model, optimizer, outer, inner, evaluation)
    complete = []
    for _ in outer:
        for batch in inner:
            with rt.accumulate(model):
                rt.backward(model(batch).sum())
                complete.append(rt.sync_gradients)
            for _ in evaluation:
                pass
    assert complete == [False, True, False, True]


# -- one process ------------------------------------------------------------------------------------------------------


def test_on_one_process_the_collectives_are_the_identity(rt, capsys):
    batch = {"a": torch.ones(2), "b": [torch.zeros(1)]}
    for call in (rt.gather, rt.gather_for_metrics, rt.reduce, rt.broadcast, rt.pad_across_processes):
        assert call(batch) is batch
    assert rt.gather_for_metrics(["text"]) == ["text"]
    torch.testing.assert_close(rt.reduce(batch, scale=2.0)["a"], torch.full((2,), 2.0))
    rt.wait_for_everyone()
    assert (rt.num_processes, rt.process_index, rt.local_process_index) == (1, 0, 0)
    assert rt.is_main_process
    assert rt.is_local_main_process
    rt.print("hello", end="!")
    assert capsys.readouterr().out == "hello!"
    assert rt.on_main_process(lambda x: x + 1)(1) == rt.on_main_process()(lambda x: x + 1)(1) == 2
    assert rt.on_local_main_process()(lambda x: x + 1)(1) == 2
    with rt.main_process_first():
        pass


def test_collectives_refuse_what_they_cannot_do(rt, error_text):
    with pytest.raises(TypeError) as caught:
        rt.gather(["text"])
    assert "gather_for_metrics" in str(caught.value)
    assert caught.value == error_text
    with pytest.raises(ValueError, match="'median'") as caught:
        rt.reduce(torch.ones(1), "median")
    assert caught.value == error_text
    with pytest.raises(ValueError, match=r"from_process.*\b1\b") as caught:
        rt.broadcast(torch.ones(1), from_process=1)
    assert caught.value == error_text


# -- the rest ---------------------------------------------------------------------------------------------------------


def test_a_seed_seeds_every_generator():
    import random

    import numpy

    draws = []
    for _ in range(2):
        rt = accelkit.Runtime(accelerator="cpu", seed=5)
        weights = nn.Linear(3, 3).weight.flatten().tolist()
        assert rt.device
        draws.append((weights, random.random(), numpy.random.rand(), torch.rand(9).tolist()))
    assert draws[0] == draws[1], "what is made before the first use of the device is seeded too"
    assert draws[0][0] != draws[0][3], "and the first use does not begin the sequence anew"


def test_device_stats_have_units_and_hooks_add_theirs():
    class Power:
        @accelkit.hookimpl
        def get_device_stats(self, device):
            return {"power.watts": 7.0, "threads.intraop": -1}

    stats = accelkit.Runtime(accelerator="cpu", hooks=[Power()]).device_stats()
    assert stats["memory.resident.bytes"] > 1e6
    assert stats["power.watts"] == 7.0
    assert stats["threads.intraop"] > 0, "the accelerator's own come first"


def test_an_optimizer_that_another_runtime_prepared_belongs_to_the_last_one():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    accelkit.Runtime("cpu", gradient_accumulation_steps=4).prepare(model, optimizer)
    rt = accelkit.Runtime("cpu")
    rt.prepare(model, optimizer)
    before = model.weight.detach().clone()
    rt.backward(model(torch.ones(1, 2)).sum())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
    assert torch.equal(model.weight, before - 1)
