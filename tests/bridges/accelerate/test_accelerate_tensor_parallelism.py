"""Tensor parallelism inside Accelerate, on devices of the fake XPU: the weights of one CPU that trains on all batches."""

from __future__ import annotations

import pytest
from programs import LAUNCHERS, run

pytestmark = pytest.mark.newest_peers


@pytest.mark.parametrize(
    ("tensor", "shard", "who"),
    [
        (2, 1, "accelerator"),
        pytest.param(2, 2, "accelerator", marks=pytest.mark.soak),
        pytest.param(2, 1, "trainer", marks=pytest.mark.soak),
        pytest.param(2, 2, "trainer", marks=pytest.mark.soak),
    ],
)
def test_a_model_that_transformers_splits_gets_the_weights_of_one_device(tensor, shard, who, tmp_path):
    count = tensor * shard
    launcher = [word.replace("2", str(count)) for word in LAUNCHERS["accelkit launch"]]
    program = ("tensor_parallel_program.py", tensor, shard, who, tmp_path)
    ranks = sorted(run(*program, launcher=launcher, name="fake_xpu", FAKE_XPU_DEVICES=str(count)), key=lambda seen: seen["rank"])
    assert [seen["devices"] for seen in ranks] == [[f"fake_xpu:{rank}"] for rank in range(count)]
    assert all(seen["shape"] == [32 // count, 16] for seen in ranks), "each has its part of the 32 rows"
    assert all(seen["difference"] < 1e-6 for seen in ranks)
    if who == "accelerator":
        assert all("does not support save_state with tensor parallelism" in seen["refusal"] for seen in ranks)
