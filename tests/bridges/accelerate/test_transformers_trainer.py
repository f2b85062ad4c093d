"""transformers.Trainer with a tiny model that is made here, on the CPU and on the fake XPU."""

from __future__ import annotations

import pytest
from programs import LAUNCHERS, run, start

DEVICES = {"cpu": "cpu", "fake_xpu": "fake_xpu:0"}


@pytest.mark.parametrize(
    ("name", "mixed"),
    [
        ("fake_xpu", "fp16"),
        *(pytest.param("fake_xpu", mixed, marks=pytest.mark.newest_peers) for mixed in ("no", "bf16")),
        pytest.param("cpu", "no", marks=pytest.mark.newest_peers),
        *(pytest.param("cpu", mixed, marks=pytest.mark.soak) for mixed in ("fp16", "bf16")),  # Accelerate's own, without the bridge
    ],
)
def test_it_trains_evaluates_and_goes_on_from_a_checkpoint_alike(name, mixed, tmp_path):
    (seen,) = run("transformers_trainer_program.py", name, mixed, tmp_path, ACCELERATE_MIXED_PRECISION=mixed)
    assert (seen["device"], seen["devices"]) == (DEVICES[name], [DEVICES[name]])
    assert (seen["mixed"], seen["scaler"]) == (mixed, mixed == "fp16")
    assert seen["tied"]
    assert seen["losses"][-1] < seen["losses"][0] / 1.5
    assert seen["evaluated"] < seen["losses"][0] / 1.5
    assert seen["resumed alike"], "weights, optimizer, scale, data order, and dropout on the device"


def test_it_trains_on_two_devices_and_sharded_alike(tmp_path):
    losses = []
    for kind, wrapped in ([], "DistributedDataParallel"), (["fsdp"], "FSDPGPT2LMHeadModel"):
        program = ("transformers_trainer_program.py", "-", "no", tmp_path / wrapped, *kind)
        ranks = run(*program, launcher=LAUNCHERS["accelkit launch"], name="fake_xpu")
        assert {(seen["device"], *seen["devices"], seen["wrapped"], seen["sharded"]) for seen in ranks} == {
            (device, device, wrapped, bool(kind)) for device in ("fake_xpu:0", "fake_xpu:1")
        }
        assert {seen["steps"] for seen in ranks} == {12}
        assert all(seen["resumed alike"] and seen["tied"] for seen in ranks)
        losses += [seen["losses"] for seen in ranks]
    for others in losses[1:]:
        assert others == pytest.approx(losses[0], rel=1e-5)


def test_arguments_that_ask_for_the_cpu_are_an_error():
    result = start("accelerate_errors_program.py", "trainer_cpu")
    assert "ContradictionError" in result.stdout
    assert "cpu=True" in result.stdout
    assert "accelerator='fake_xpu'" in result.stdout


def test_arguments_that_were_made_before_install_are_an_error():
    result = start("accelerate_errors_program.py", "too_late")
    assert "ContradictionError" in result.stdout
    assert "Accelerate" in result.stdout
    assert "cpu" in result.stdout
