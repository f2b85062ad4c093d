"""Strategies on real processes: what they compute is what one process computes on the whole batch."""

from __future__ import annotations

import pytest
import ranks


@pytest.mark.parametrize(
    ("accelerator", "strategy"),
    [
        pytest.param("cpu", "ddp", marks=pytest.mark.smoke),
        ("cpu", "fsdp"),
        ("fake_xpu", "ddp"),
        pytest.param("fake_xpu", "fsdp", marks=pytest.mark.smoke),
    ],
)
def test_gradients_and_weights_are_those_of_one_process(accelerator, strategy):
    cases = [f"{name}={strategy}" for name in ("gradients", "accumulation", "reduced_once")]
    for text in ranks.run("strategies_program.py", 2, accelerator, *cases):
        assert text.count("done") == 3


def test_three_processes():
    for text in ranks.run("strategies_program.py", 3, "cpu", "gradients=ddp", "gradients=fsdp", "accumulation=fsdp"):
        assert text.count("done") == 3


def test_options_of_ddp_and_a_wrapper_of_ones_own():
    for text in ranks.run("strategies_program.py", 2, "cpu", "ddp_options", "own_wrapper"):
        assert text.count("done") == 2


def test_attributes_and_methods_of_a_wrapped_model():
    for text in ranks.run("strategies_program.py", 2, "fake_xpu", "attributes"):
        assert "done attributes" in text


@pytest.mark.parametrize(
    ("accelerator", "strategy"),
    [
        ("cpu", "ddp"),
        ("fake_xpu", "fsdp"),
        pytest.param("cpu", "fsdp", marks=pytest.mark.soak),
        pytest.param("fake_xpu", "ddp", marks=pytest.mark.soak),
    ],
)
def test_an_infinite_gradient_of_one_process_skips_the_step_of_all(accelerator, strategy):
    for text in ranks.run("strategies_program.py", 2, accelerator, f"scaling={strategy}"):
        assert "done scaling" in text


def test_processes_with_different_numbers_of_batches_are_joined():
    for text in ranks.run("uneven_batches_program.py", 2, "fake_xpu"):
        assert "done" in text


def test_batch_norm_over_processes():
    """On the fake XPU, for torch's SyncBatchNorm refuses the CPU."""
    for text in ranks.run("strategies_program.py", 2, "fake_xpu", "batch_norm"):
        assert "done batch_norm" in text


@pytest.mark.parametrize("accelerator", ["cpu", "fake_xpu"])
def test_options_of_fsdp(accelerator):
    for text in ranks.run("strategies_program.py", 2, accelerator, "fsdp_options"):
        assert "done fsdp_options" in text


def test_a_model_from_the_meta_device_is_the_same_on_any_number_of_processes():
    jobs = [("cpu", 1), ("cpu", 2), ("fake_xpu", 3)]
    weights = {
        line
        for accelerator, size in jobs
        for line in ranks.run("strategies_program.py", size, accelerator, "meta")[0].splitlines()
        if line.startswith("weights")
    }
    assert len(weights) == 1, weights
