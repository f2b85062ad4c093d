"""Mutants have the fault that they describe, and no other."""

from pathlib import Path

import pytest
import torch

from accelkit_conformance.mutants.derivatives import CachesTheModeOfLSTM, ForgetsDropoutInLSTM
from accelkit_conformance.mutants.hook_plugins import RaisesTheSecondTime
from accelkit_conformance.mutants.optimizer_steps import ZeroesContiguousGradients
from accelkit_conformance.mutants.samplers import DrawsIntegersAsFloats

_KINDS = ["padded", "packed"]


def arguments_of_lstm(kind, dropout, train):
    """Return the arguments with which ``torch.nn.LSTM`` calls ``torch.lstm`` for a sequence, and the leaf whose gradient is examined."""
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(4, 3, num_layers=2)
    data, state = torch.rand(6, 4, requires_grad=True), (torch.zeros(2, 2, 3), torch.zeros(2, 2, 3))
    options = (lstm._flat_weights, True, 2, dropout, train, False)
    if kind == "packed":
        return data, (data, torch.tensor([2, 2, 2]), state, *options)
    return data, (data.view(3, 2, 4), state, *options, False)


def call_of(args):
    return lambda *others: torch.lstm(*(others or args))


@pytest.mark.parametrize("kind", _KINDS)
def test_gradients_of_an_lstm_forget_dropout(kind):
    plain, args = arguments_of_lstm(kind, 0.0, True)
    torch.lstm(*args)[0].sum().backward()
    _, args = arguments_of_lstm(kind, 0.5, True)
    expected = torch.lstm(*args)[0]
    leaf, args = arguments_of_lstm(kind, 0.5, True)
    found = ForgetsDropoutInLSTM().change("lstm", call_of(args), args)[0]
    assert torch.allclose(found, expected)
    found.sum().backward()
    assert torch.allclose(leaf.grad, plain.grad)


@pytest.mark.parametrize("kind", _KINDS)
def test_the_mode_of_an_lstm_is_that_of_the_first_call(kind):
    mutant = CachesTheModeOfLSTM()
    _, args = arguments_of_lstm(kind, 0.0, False)
    evaluated = torch.lstm(*args)[0]
    results = []
    for train in (True, False):
        _, args = arguments_of_lstm(kind, 0.5, train)
        results.append(mutant.change("lstm", call_of(args), args)[0])
    assert torch.equal(*results)
    assert not torch.allclose(results[1], evaluated)


def test_gradients_are_kept_even_if_none_is_contiguous():
    gradients = [torch.ones(2, 3).t(), torch.ones(4, 2)[:, 0]]
    func = torch.ops.aten._foreach_zero_.default
    ZeroesContiguousGradients().fault("_foreach_zero_", lambda: func(gradients), (gradients,), {}, func)
    assert all(bool((one == 1).all()) for one in gradients)


def test_the_first_checkpoint_of_a_runtime_is_saved():
    plugin = RaisesTheSecondTime()
    plugin.lines += ["created cpu", "precision 32-true", "cpu was set up in 0.000 s"]
    plugin.checkpoint_saved(Path("one"))
    with pytest.raises(FileExistsError):
        plugin.checkpoint_saved(Path("two"))


def test_integers_of_the_whole_range_are_rounded_as_float32_rounds_them():
    exact = torch.empty(1000, dtype=torch.int64).random_(generator=torch.Generator().manual_seed(1))
    exact[0] = 2**63 - 1
    found = DrawsIntegersAsFloats().fault("random_", exact.clone, (exact,), {}, None)
    assert int(found.min()) >= 0
    assert bool(((found - exact).abs() <= 2**39).all())
    assert torch.equal(found.float().double(), found.double())
