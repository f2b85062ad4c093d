"""Lengths of schedulers on one process with gradient accumulation. tests/distributed has the same for several processes."""

from __future__ import annotations

import math
import pickle
import warnings

import pytest
import torch
from torch.utils.data import DataLoader

import accelkit


def parts(make, batches=9):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, make(optimizer), DataLoader(torch.ones(batches, 1))


def train(rt, model, optimizer, scheduler, loader):
    for batch in loader:
        with rt.accumulate(model):
            rt.backward(model(batch).mean())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()


def one_cycle(steps):
    return lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)


def test_a_length_in_batches_is_warned_of_when_gradients_accumulate():
    rt = accelkit.Runtime("cpu", gradient_accumulation_steps=2)
    with pytest.warns(UserWarning, match="OneCycleLR") as caught:
        rt.prepare(*parts(one_cycle(18)))
    text = str(caught[0].message)
    for part in ("total_steps=18", "2 x 9", "once every 2 batches", "2 epochs have 10 steps", "math.ceil(len(loader) / rt.gradient_acc"):
        assert part in text
    assert caught[0].filename == __file__


def test_a_cosine_is_warned_of_at_the_second_step_and_its_optimizer_keeps_no_hooks():
    rt = accelkit.Runtime("cpu", gradient_accumulation_steps=2)
    prepared = rt.prepare(*parts(lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9)))
    with pytest.warns(UserWarning, match="CosineAnnealingLR has T_max=9") as caught:
        train(rt, *prepared)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    optimizer = prepared[1]
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    pickle.dumps(optimizer)


@pytest.mark.parametrize("accumulation", [1, 2, 3])
@pytest.mark.parametrize("batches", [1, 6, 7])
@pytest.mark.parametrize("epochs", [1, 2, 6])
def test_a_right_length_is_not_warned_of(accumulation, batches, epochs):
    """Warnings are errors."""
    steps = epochs * math.ceil(batches / accumulation)
    for is_prepared_first in (True, False):
        rt = accelkit.Runtime("cpu", gradient_accumulation_steps=accumulation)
        model, optimizer, scheduler, loader = parts(one_cycle(steps), batches)
        if is_prepared_first:
            loader = rt.prepare(loader)
            len(loader)
        rt.prepare(model, optimizer, scheduler, loader)


def test_loaders_and_schedulers_without_a_length_are_left_alone():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(torch.ones(3, 1))

    rt = accelkit.Runtime("cpu", gradient_accumulation_steps=2)
    model, optimizer, scheduler, _ = parts(one_cycle(9))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rt.prepare(model, optimizer, scheduler, DataLoader(Stream()))
        rt.prepare(*parts(lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)))
