"""Runtime.find_executable_batch_size and seed_everything, in one process. tests/distributed/test_agreement.py has them on two."""

from __future__ import annotations

import numpy
import pytest
import torch

import accelkit

pytestmark = pytest.mark.usefixtures("no_garbage")

TOO_MUCH = 1 << 50


def train(rt, batch_size, fits, sizes):
    """Train a step on 32 samples, and allocate more memory than there is if the batch is larger than ``fits``."""
    sizes.append((batch_size, rt.gradient_accumulation_steps, rt.memory.current))
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    loader = torch.utils.data.DataLoader(torch.arange(128.0).reshape(32, 4) / 128, batch_size=batch_size)
    model, optimizer, loader = rt.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    ballast = torch.ones(1 << 20, device=rt.device)
    for batch in loader:
        with rt.accumulate(model):
            rt.backward(model(batch).square().mean() + 0 * ballast.sum())
            if batch_size > fits:
                torch.empty(TOO_MUCH, device=rt.device)
            optimizer.step()
            optimizer.zero_grad()
    return model.weight.detach().cpu()


def test_the_batch_is_halved_until_it_fits_and_a_step_keeps_its_samples(recwarn):
    rt, sizes = accelkit.Runtime("fake_xpu"), []
    found = rt.find_executable_batch_size(lambda size: train(rt, size, 4, sizes), 16)
    said = [str(warning.message) for warning in recwarn]
    assert ["trying a batch size of 8, with 2 accumulation steps" in said[0], "Tried to allocate" in said[0], len(said)] == [True, True, 2]
    assert [(size, steps) for size, steps, _ in sizes] == [(16, 1), (8, 2), (4, 4)]
    assert sizes[0][2] == sizes[1][2] == sizes[2][2], "an attempt left memory allocated"
    torch.testing.assert_close(found, train(accelkit.Runtime("cpu"), 16, 16, []))


@pytest.mark.filterwarnings("ignore:.*trying a batch size")
def test_a_number_of_numpy_becomes_an_int():
    rt, sizes = accelkit.Runtime("fake_xpu"), []
    rt.find_executable_batch_size(lambda size: train(rt, size, 4, sizes), numpy.int64(8))
    assert [(type(size), type(steps), steps) for size, steps, _ in sizes] == [(int, int, 1), (int, int, 2)]


def test_a_batch_that_fits_is_tried_once():
    rt, sizes = accelkit.Runtime("fake_xpu"), []
    rt.find_executable_batch_size(lambda size: train(rt, size, 16, sizes), 16)
    assert [(size, steps) for size, steps, _ in sizes] == [(16, 1)]


@pytest.mark.filterwarnings("ignore:.*trying a batch size")
def test_no_batch_fits(error_text):
    rt = accelkit.Runtime("fake_xpu")
    with pytest.raises(accelkit.UnsupportedError) as caught:
        rt.find_executable_batch_size(lambda size: torch.empty(TOO_MUCH, device=rt.device), 2)
    assert "Tried to allocate" in caught.value.why
    assert "accelkit-fake-xpu==" in str(caught.value)
    assert caught.value == error_text


def test_other_errors_are_passed_on(error_text):
    rt = accelkit.Runtime("cpu")
    with pytest.raises(ZeroDivisionError):
        rt.find_executable_batch_size(lambda size: size / 0)
    for not_a_size in (0, "128", 12.5):
        with pytest.raises(accelkit.UsageError) as caught:
            rt.find_executable_batch_size(lambda size: size, not_a_size)
        assert repr(not_a_size) in caught.value.what
    assert caught.value == error_text


@pytest.mark.parametrize("seed", ["7", 7.0, 2**64, None])
def test_what_is_not_a_seed_is_an_error(seed, error_text):
    rt, before = accelkit.Runtime("cpu", seed=3), torch.rand(1)
    with pytest.raises(accelkit.UsageError) as caught:
        rt.seed_everything(seed)
    assert f"seed={seed!r}" in caught.value.what
    assert caught.value == error_text
    accelkit.Runtime("cpu", seed=3)
    assert torch.rand(1) == before
    if seed is not None:
        with pytest.raises(accelkit.UsageError, match="is not a seed"):
            accelkit.Runtime("cpu", seed=seed)


@pytest.mark.filterwarnings("ignore:.*trying a batch size")
@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY")])
def test_an_error_without_a_text_or_with_a_drivers_code_is_one_of_memory(error):
    def attempt(size):
        if size > 1:
            raise error
        return size

    assert accelkit.Runtime("cpu").find_executable_batch_size(attempt, 4) == 1


def test_a_plugin_knows_its_own_errors():
    class Own(accelkit.Accelerator):
        device_type = "cpu"

        @classmethod
        def probe(cls):
            return accelkit.Availability.usable()

        def is_out_of_memory(self, error):
            return isinstance(error, KeyError)

    def attempt(size):
        if size > 1:
            raise KeyError("no room in the table")
        return size

    with pytest.warns(UserWarning, match="no room in the table"):
        assert accelkit.Runtime(Own()).find_executable_batch_size(attempt, 2) == 1


def test_a_result_is_not_a_function(error_text):
    with pytest.raises(accelkit.UsageError) as caught:
        accelkit.Runtime("cpu").find_executable_batch_size(None)
    assert "find_executable_batch_size" in caught.value.what
    assert caught.value == error_text


@pytest.mark.parametrize("accelerator", ["cpu", "fake_xpu"])
@pytest.mark.parametrize("is_started", [True, False])
def test_seed_everything_repeats_all_generators(accelerator, is_started):
    rt = accelkit.Runtime(accelerator)
    if is_started:
        assert rt.device

    def draw():
        return torch.rand(3), torch.rand(3, device=rt.device).cpu()

    assert rt.seed_everything(7) == 7
    first = draw()
    rt.seed_everything(7)
    torch.testing.assert_close(draw(), first)
    rt.seed_everything(8)
    assert not torch.equal(draw()[1], first[1])
    assert rt.state.seed == 8
