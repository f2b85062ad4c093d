"""DeepSpeed inside Accelerate, on two devices: the weights of one CPU that trains on the batches of both."""

from __future__ import annotations

import importlib.util

import pytest
from programs import LAUNCHERS, run

pytestmark = [
    pytest.mark.deepspeed,
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed"),
]


@pytest.mark.parametrize(
    ("name", "mixed", "stage", "options"),
    [
        ("fake_xpu", "fp16", 2, ()),
        ("fake_xpu", "no", 3, ("offload",)),
        *(pytest.param("fake_xpu", mixed, stage, (), marks=pytest.mark.soak) for mixed, stage in (("no", 1), ("no", 2), ("bf16", 3))),
        pytest.param("cpu", "no", 2, (), marks=pytest.mark.soak),
    ],
)
def test_it_trains_and_goes_on_from_a_checkpoint_alike(name, mixed, stage, options, tmp_path):
    program = ("accelerate_deepspeed_program.py", name, mixed, stage, tmp_path, *options)
    ranks = run(*program, launcher=LAUNCHERS["accelkit launch"], name=name)
    assert len(ranks) == 2
    assert all((seen["type"], seen["used"], seen["device"]) == ("DEEPSPEED", name, seen["expected device"]) for seen in ranks)
    assert {seen["dtype"] for seen in ranks} == {{"no": "torch.float32", "fp16": "torch.float16", "bf16": "torch.bfloat16"}[mixed]}
    (main,) = [seen for seen in ranks if seen["main"]]
    assert len(main["differences"]) == 4
    assert max(main["differences"]) < (1e-6 if mixed == "no" else 0.05)
    assert all(seen["resumed alike"] for seen in ranks)
