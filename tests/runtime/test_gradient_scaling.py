"""``16-mixed``: the loss is scaled, gradients are not when anybody looks, and a step that would be infinite is none."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
import torch
from torch import nn

import accelkit
from accelkit_builtin.precisions.autocast import AutocastOptions
from accelkit_builtin.precisions.p16_mixed import Float16Mixed, GradScalerOptions

SMALL = GradScalerOptions(init_scale=1024.0, growth_interval=2)


def made(cls=torch.optim.SGD, *, scaler=SMALL, steps=1, **options):
    torch.manual_seed(0)
    rt = accelkit.Runtime("cpu", precision=Float16Mixed(scaler), gradient_accumulation_steps=steps)
    model = nn.Linear(4, 1)
    optimizer = cls(model.parameters(), lr=0.1, **options)
    return rt, *rt.prepare(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5))


def infinite(model):
    """A loss whose gradient is infinite."""
    return model(torch.full((2, 4), 60000.0)).float().square().sum() * 1e30


def test_the_loss_is_scaled_and_the_step_is_that_of_true_gradients():
    rt, model, optimizer, _ = made()
    twin = copy.deepcopy(model)
    batch = torch.randn(8, 4)
    rt.backward(model(batch).square().mean())
    scaled = model.weight.grad.clone()
    optimizer.step()
    with torch.autocast("cpu", torch.float16):
        twin(batch).float().square().mean().backward()
    torch.testing.assert_close(scaled / 1024, twin.weight.grad, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(model.weight, twin.weight - 0.1 * scaled / 1024)
    assert not rt.optimizer_step_was_skipped


@pytest.mark.parametrize("options", [{}, {"fused": True}])
def test_an_infinite_gradient_skips_optimizer_and_scheduler_and_shrinks_the_scale(options):
    rt, model, optimizer, scheduler = made(torch.optim.AdamW, **options)
    before = model.weight.detach().clone()
    rt.backward(infinite(model))
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    assert rt.optimizer_step_was_skipped
    assert torch.equal(model.weight, before)
    assert not optimizer.state
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert rt.precision.scale == 512.0
    for _ in range(2):
        rt.backward(model(torch.ones(1, 4)).sum())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    assert not rt.optimizer_step_was_skipped
    assert not torch.equal(model.weight, before)
    assert optimizer.param_groups[0]["lr"] == 0.025
    assert rt.precision.scale == 1024.0, "grown after growth_interval steps"


@pytest.mark.parametrize("is_unscaled", [False, True])
def test_clipping_scaled_gradients_with_torch_is_told_once(is_unscaled):
    rt, model, optimizer, _ = made()
    for step in range(2):
        optimizer.zero_grad()
        rt.backward(model(torch.ones(1, 4)).sum())
        rt.backward(model(torch.ones(1, 4)).sum())
        if is_unscaled:
            rt.unscale_gradients(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if is_unscaled or step > 0:
            optimizer.step()
        else:
            with pytest.warns(UserWarning, match="Float16Mixed") as caught:
                optimizer.step()
            (warning,) = [one for one in caught if "clip_grad_norm_" in str(one.message)]
            told = str(warning.message)
            assert warning.filename == __file__, "it points at the program"
            assert all(word in told for word in ("SGD", "Float16Mixed", "rt.clip_grad_norm_(model.parameters(), max_norm)"))


def test_clipping_sees_true_gradients():
    rt, model, optimizer, _ = made()
    rt.backward(3 * model(torch.ones(1, 4)).sum())
    norm = rt.clip_grad_norm_((parameter for parameter in model.parameters()), 1.0)
    torch.testing.assert_close(norm, torch.tensor(45.0).sqrt())
    before = model.weight.detach().clone()
    optimizer.step()
    torch.testing.assert_close(before - model.weight, torch.full((1, 4), 0.1 / 5**0.5))
    optimizer.zero_grad()
    rt.backward(3 * model(torch.ones(1, 4)).sum())
    rt.clip_grad_value_(model.weight, 0.5)
    assert model.weight.grad.tolist() == [[0.5] * 4]
    optimizer.zero_grad()
    rt.backward(3 * model(torch.ones(1, 4)).sum())
    rt.unscale_gradients()
    rt.unscale_gradients(optimizer)
    assert model.weight.grad.tolist() == [[3.0] * 4], "once only"


def test_accumulation_and_scaling_compose(error_text):
    rt, model, optimizer, scheduler = made(steps=2)
    before = model.weight.detach().clone()
    for number in range(4):
        with rt.accumulate(model):
            rt.backward(model(torch.ones(1, 4)).sum() * (number + 1))
            if rt.sync_gradients:
                rt.clip_grad_value_(model.parameters(), 100.0)
            else:
                with pytest.raises(accelkit.UsageError) as caught:
                    rt.clip_grad_norm_(model.parameters(), 1.0)
                assert "rt.sync_gradients" in caught.value.hint
                assert caught.value == error_text
                assert "2" in caught.value.why
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    torch.testing.assert_close(before - model.weight, torch.full((1, 4), 0.1 * 1.5 + 0.05 * 3.5), rtol=1e-3, atol=0)
    assert optimizer.param_groups[0]["lr"] == 0.025


def test_two_optimizers_of_one_backward_pass_share_its_scale():
    """Each had its own update elsewhere: the second's gradients were divided by a scale that they were not multiplied with."""
    rt = accelkit.Runtime("cpu", precision=Float16Mixed(GradScalerOptions(init_scale=1024.0, growth_interval=1)))
    first, second = nn.Linear(2, 1), nn.Linear(2, 1)
    one, two = (torch.optim.SGD(model.parameters(), lr=1.0) for model in (first, second))
    rt.prepare(first, second, one, two)
    for scale in (1024.0, 2048.0):
        before = second.weight.detach().clone()
        rt.backward(first(torch.ones(1, 2)).sum() + second(torch.ones(1, 2)).sum())
        one.step()
        two.step()
        assert second.weight.grad.tolist() == [[1.0, 1.0]]
        torch.testing.assert_close(before - second.weight, torch.ones(1, 2))
        one.zero_grad()
        two.zero_grad()
        assert rt.precision.scale == 2 * scale


def test_looking_at_the_scale_changes_nothing(tmp_path):
    """Neither between clipping and the step, nor between the steps of two optimizers."""
    rt = accelkit.Runtime("cpu", precision=Float16Mixed(GradScalerOptions(init_scale=1024.0, growth_interval=2)))
    first, second = nn.Linear(2, 1), nn.Linear(2, 1)
    one, two = (torch.optim.SGD(model.parameters(), lr=1.0) for model in (first, second))
    rt.prepare(first, second, one, two)
    for expected in (1024.0, 2048.0, 2048.0, 4096.0):
        rt.backward(first(torch.ones(1, 2)).sum() + second(torch.ones(1, 2)).sum())
        rt.clip_grad_value_(first.parameters(), 10.0)
        assert rt.precision.scale == expected
        rt.save_state(tmp_path)
        one.step()
        assert rt.precision.scale == expected
        two.step()
        for model, optimizer in ((first, one), (second, two)):
            assert model.weight.grad.tolist() == [[1.0, 1.0]]
            optimizer.zero_grad()
        state = rt.precision.state_dict()
        assert state["scale"] == expected
    rt.backward(first(torch.ones(1, 2)).sum())
    assert rt.precision.state_dict() == state, "what was foreseen is what torch makes of it"


@pytest.mark.parametrize(("scale", "factor", "expected"), [(2.0**127, 2.0, 2.0**127), (1000.0, 1.1, 1100.0), (0.1, 1.1, 0.11)])
def test_a_scale_that_is_read_before_it_grows_is_the_one_to_which_torch_lets_it_grow(scale, factor, expected):
    options = GradScalerOptions(init_scale=scale, growth_factor=factor, growth_interval=1)
    rt = accelkit.Runtime("cpu", precision=Float16Mixed(options))
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rt.prepare(model, optimizer)
    rt.backward(model.weight.sum() * 1e-20)
    optimizer.step()
    state = rt.precision.state_dict()
    assert state["scale"] == pytest.approx(expected)
    rt.backward(model.weight.sum() * 1e-20)
    assert rt.precision.state_dict() == state


def test_gradients_that_were_not_scaled_are_refused(error_text):
    rt, model, optimizer, _ = made()
    model(torch.ones(1, 4)).sum().backward()
    with pytest.raises(accelkit.UsageError) as caught:
        optimizer.step()
    assert "SGD" in caught.value.what
    assert caught.value == error_text
    assert caught.value.hint == "call rt.backward(loss) instead of loss.backward()"
    with pytest.raises(accelkit.UsageError) as caught:
        rt.clip_grad_norm_(model.parameters(), 1.0)
    assert "SGD" in caught.value.what
    assert "rt.backward(loss)" in caught.value.hint
    assert caught.value == error_text


def test_gradients_that_another_backward_pass_computed_are_not_divided():
    """Otherwise, the second of two models would hardly be trained, and no error would be raised."""
    rt, model, optimizer, _ = made()
    other = nn.Linear(4, 1)
    other, second = rt.prepare(other, torch.optim.SGD(other.parameters(), lr=0.1))
    rt.backward(model(torch.ones(1, 4)).sum())
    optimizer.step()
    other(torch.ones(1, 4)).sum().backward()
    for _ in range(2):
        with pytest.raises(accelkit.UsageError, match="were not scaled"):
            second.step()
    second.zero_grad()
    rt.backward(other(torch.ones(1, 4)).sum())
    second.step()
    assert not rt.optimizer_step_was_skipped


def test_an_optimizer_without_gradients_and_a_second_step():
    rt, model, optimizer, _ = made()
    optimizer.step()
    assert not rt.optimizer_step_was_skipped
    for _ in range(2):
        rt.backward(model(torch.ones(1, 4)).sum())
        before = model.weight.detach().clone()
        optimizer.step()
        optimizer.step()
        torch.testing.assert_close(before - model.weight, torch.full((1, 4), 0.2))
        optimizer.zero_grad()


def test_the_scaler_is_in_the_checkpoint(tmp_path):
    rt, model, optimizer, scheduler = made()
    rt.backward(infinite(model))
    optimizer.step()
    rt.save_state(tmp_path)
    other, *_ = made()
    assert other.precision.scale == 1024.0
    other.load_state(tmp_path)
    assert (other.precision.scale, rt.precision.scale) == (512.0, 512.0)
    plain = accelkit.Runtime("cpu", precision="bf16-mixed")
    twin = nn.Linear(4, 1)
    follower = torch.optim.SGD(twin.parameters(), lr=0.1)
    plain.prepare(twin, follower, torch.optim.lr_scheduler.StepLR(follower, 1))
    plain.load_state(tmp_path)
    plain.save_state(tmp_path)
    other.load_state(tmp_path)
    assert other.precision.scale == 512.0, "there was none to restore"
    scheduler.step()


@pytest.mark.parametrize("is_infinite", [True, False])
def test_steps_before_loading_do_not_change_the_loaded_scale(is_infinite):
    rt, model, optimizer, _ = made()
    saved = rt.precision.state_dict()
    for _ in range(2):  # two steps without infinity would double the scale
        rt.backward(infinite(model) if is_infinite else model(torch.ones(1, 4)).sum())
        optimizer.step()
        optimizer.zero_grad()
    rt.precision.load_state_dict(saved)
    rt.backward(model(torch.ones(1, 4)).sum())
    assert (rt.precision.scale, model.weight.grad[0, 0]) == (1024.0, 1024.0)
    optimizer.step()
    assert not rt.optimizer_step_was_skipped


def test_a_skipped_step_is_forgotten_with_its_optimizer():
    rt, model, optimizer, scheduler = made()
    rt.backward(infinite(model))
    optimizer.step()
    assert rt.optimizer_step_was_skipped
    rt.free_memory()
    del optimizer, scheduler
    gc.collect()
    assert not rt.optimizer_step_was_skipped


@pytest.mark.parametrize("numbers", [(1, 2), (2, 1)])
def test_an_optimizer_belongs_to_the_runtime_that_prepared_it_last(numbers):
    first, model, optimizer, _ = made(steps=numbers[0])
    second = accelkit.Runtime("cpu", precision=Float16Mixed(SMALL), gradient_accumulation_steps=numbers[1])
    assert second.prepare(model, optimizer) == (model, optimizer)
    has_gradients = []
    for _ in range(2):
        with first.accumulate(model), second.accumulate(model):
            second.backward(model(torch.ones(1, 4)).sum())
            optimizer.step()
            optimizer.zero_grad()
            has_gradients.append(model.weight.grad is not None)
    assert has_gradients == [numbers[1] == 2, False]
    assert [cls.__name__ for cls in type(optimizer).__mro__].count("SGD") == 2, "its class is swapped only once"


def test_a_copy_in_the_middle_has_a_scaler_of_its_own():
    rt, model, optimizer, _ = made()
    rt.backward(model(torch.ones(1, 4)).sum())
    rt.unscale_gradients()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin(torch.ones(1, 4)).dtype is torch.float32
    optimizer.step()
    twin = copy.deepcopy(rt.precision)
    twin.pre_backward(torch.ones(()))
    assert (twin.scale, rt.precision.scale) == (1024.0, 1024.0)


def test_a_closure_is_refused(error_text):
    _, _, optimizer, _ = made(torch.optim.LBFGS)
    with pytest.raises(accelkit.UnsupportedError) as caught:
        optimizer.step(lambda: None)
    assert "LBFGS.step" in caught.value.what
    assert caught.value == error_text
    assert "bf16-mixed" in caught.value.hint


def test_a_copied_optimizer_steps_by_itself():
    rt, model, optimizer, scheduler = made(steps=2)
    twin = copy.deepcopy(model)
    mine = copy.deepcopy(optimizer)
    mine.param_groups[0]["params"] = list(twin.parameters())
    twin(torch.ones(1, 4)).sum().backward()
    before = twin.weight.detach().clone()
    seen = []
    mine.register_step_post_hook(lambda *_: seen.append("hook"))
    mine.step()
    mine.zero_grad()
    assert not torch.equal(twin.weight, before)
    assert seen == ["hook"]
    assert pickle.loads(pickle.dumps(scheduler)).state_dict() == scheduler.state_dict()
    assert rt.sync_gradients


def test_a_scheduler_that_waits_can_be_saved(tmp_path):
    rt, _, _, scheduler = made(steps=2)
    rt.save_state(tmp_path)
    scheduler.last_epoch = 7
    rt.load_state(tmp_path)
    assert scheduler.last_epoch == 0


def test_a_device_without_autocast_or_scaler_says_so(error_text):
    class Lacking(accelkit.Accelerator):
        device_type = "cpu"

        @property
        def autocast_device_type(self):
            return "meta"

    with pytest.raises(accelkit.UnsupportedError) as caught:
        _ = accelkit.Runtime(Lacking(), precision="16-mixed").precision
    assert "16" in caught.value.what
    assert caught.value == error_text
    assert "torch.autocast('meta', torch.float16) failed" in caught.value.why


def test_autocast_can_be_told_not_to_keep_casts():
    for is_kept in (True, False):
        rt = accelkit.Runtime("cpu", precision=Float16Mixed(autocast=AutocastOptions(cache_enabled=is_kept)))
        with rt.autocast():
            assert torch.is_autocast_cache_enabled() is is_kept
