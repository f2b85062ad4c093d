"""Real training inside Accelerate, on the CPU and on the fake XPU."""

from __future__ import annotations

import pytest
from programs import LAUNCHERS, run

COMPUTED_IN = {"no": "torch.float32", "fp16": "torch.float16", "bf16": "torch.bfloat16"}
DEVICES = {"cpu": "cpu", "fake_xpu": "fake_xpu:0"}
# Mixed precision on the CPU is Accelerate's own autocast, without a device that it does not know: soak.
JOBS = [
    *(("fake_xpu", mixed) for mixed in COMPUTED_IN),
    pytest.param("cpu", "no", marks=pytest.mark.newest_peers),
    *(pytest.param("cpu", mixed, marks=pytest.mark.soak) for mixed in ("fp16", "bf16")),
]


@pytest.mark.parametrize(("name", "mixed"), JOBS)
def test_a_model_trains_and_its_checkpoint_goes_on_alike(name, mixed, tmp_path):
    (seen,) = run("accelerate_program.py", "train", name, mixed, tmp_path)
    assert seen["losses"][-1] < seen["losses"][0] / 2
    assert seen["devices"] == seen["optimizer state"] == [DEVICES[name]], "parameters, gradients, batches, losses and moments are there"
    assert seen["computed in"] == COMPUTED_IN[mixed]
    assert seen["tied"]
    assert [file for file in seen["files"] if file.startswith("model")] == ["model.safetensors"]
    assert seen["repeated"], "weights, moments, data order and dropout are restored"
    assert seen["scaler"] == (["GradScaler", name] if mixed == "fp16" else None)
    assert seen["scaler restored"]


@pytest.mark.parametrize("name", [pytest.param("cpu", marks=pytest.mark.newest_peers), "fake_xpu"])
def test_an_infinite_gradient_skips_the_step_and_halves_the_scale(name, tmp_path):
    (seen,) = run("accelerate_program.py", "overflow", name, "fp16", tmp_path)
    scale = seen["first scale"]
    assert seen["steps"] == [[True, False, scale / 2], [False, True, scale / 2]]


@pytest.mark.parametrize(
    ("launcher", "name"),
    [
        ("accelerate launch", "fake_xpu"),
        *(pytest.param(launcher, "fake_xpu", marks=pytest.mark.newest_peers) for launcher in ("accelkit launch", "torchrun")),
        pytest.param("accelkit launch", "cpu", marks=pytest.mark.newest_peers),
        *(pytest.param(launcher, "cpu", marks=pytest.mark.soak) for launcher in ("torchrun", "accelerate launch")),
    ],
)
def test_ddp_on_two_devices(launcher, name, tmp_path):
    how = ["install"] if launcher == "accelerate launch" else []
    ranks = sorted(
        run("accelerate_program.py", "job", name, "fp16", tmp_path, *how, launcher=LAUNCHERS[launcher], name=name),
        key=lambda seen: seen["rank"],
    )
    assert [seen["rank"] for seen in ranks] == [0, 1]
    devices = ["cpu", "cpu"] if name == "cpu" else ["fake_xpu:0", "fake_xpu:1"]
    assert [seen["device"] for seen in ranks] == devices
    for seen, device in zip(ranks, devices, strict=True):
        assert seen["devices"] == [device]
        assert "cpu:gloo" in seen["group"]
        assert name == "cpu" or "fake_xpu:fxccl" in seen["group"]
        assert [file for file in seen["files"] if file.startswith("model")] == ["model.safetensors"]
        assert (seen["model"], seen["batches"]) == ("DistributedDataParallel", 4)
        assert seen["gathered"] == [1, 2]
        assert seen["objects"] == [0, 1]
        assert (seen["sum"], seen["mean"], seen["padded"]) == (3, 1.5, [2])
        assert seen["alike"]
        assert seen["reloaded"]
        assert name == "cpu" or {"random_states_fake_xpu_0.pkl", "random_states_fake_xpu_1.pkl"} <= set(seen["files"])


def test_ddp_on_devices_that_are_not_numbered_as_the_ranks(tmp_path):
    words = ["-m", "accelkit", "launch", "--accelerator", "fake_xpu", "--devices", "2,1"]
    ranks = run("accelerate_program.py", "job", "-", "-", tmp_path, launcher=words, FAKE_XPU_DEVICES="3")
    assert {seen["rank"]: seen["devices"] for seen in ranks} == {0: ["fake_xpu:2"], 1: ["fake_xpu:1"]}
    assert all(seen["alike"] for seen in ranks)


def test_accelerate_launch_of_one_process(tmp_path):
    words = LAUNCHERS["accelerate launch, one process"]
    (seen,) = run("accelerate_program.py", "train", "fake_xpu", "bf16", tmp_path, "install", launcher=words)
    assert seen["devices"] == ["fake_xpu:0"]
    assert seen["computed in"] == "torch.bfloat16"


@pytest.mark.smoke
def test_name_and_precision_come_from_accelkits_variables(tmp_path):
    (seen,) = run("accelerate_program.py", "train", "-", "-", tmp_path, ACCELKIT_ACCELERATOR="fake_xpu", ACCELKIT_PRECISION="16-mixed")
    assert (seen["devices"], seen["computed in"]) == (["fake_xpu:0"], "torch.float16")


@pytest.mark.newest_peers
def test_profile_records_the_device(tmp_path):
    (seen,) = run("accelerate_program.py", "profiled", "fake_xpu", "no", tmp_path)
    assert {"mm_kernel", "addmm_kernel"} <= set(seen["kernels"])


def test_the_devices_generator_is_seeded_and_what_a_checkpoint_lacks_is_said(tmp_path):
    (seen,) = run("accelerate_program.py", "seeds", "fake_xpu", "no", tmp_path)
    assert seen["alike"]
    (warning,) = seen["warnings"]
    assert "has no random state for fake_xpu:0" in warning


@pytest.mark.parametrize("mixed", ["no", "fp16"])
def test_what_accelerate_can_pickle_can_be_pickled(mixed, tmp_path):
    (seen,) = run("accelerate_program.py", "pickled", "fake_xpu", mixed, tmp_path)
    assert set(seen["types"].values()) == {True}
    assert seen["state"]
    assert seen["runtime"], "a copy in the same process has the same Runtime"
    assert seen["weights"]
    assert seen["batches"] == [8, "fake_xpu"]
    (elsewhere,) = run("accelerate_program.py", "unpickled", "-", "-", tmp_path)
    assert elsewhere["device"] == "fake_xpu:0"
    assert "fake_xpu" in elsewhere["runtime"]
    assert elsewhere["outputs"] == ["fake_xpu:0"] * 8


@pytest.mark.parametrize(
    ("variable", "afterwards"),
    [
        pytest.param({}, "cpu", marks=pytest.mark.smoke),
        pytest.param({"ACCELERATE_TORCH_DEVICE": "fake_xpu:1"}, "fake_xpu:1", marks=pytest.mark.newest_peers),
    ],
)
def test_install_is_undone(variable, afterwards, tmp_path):
    (seen,) = run("accelerate_program.py", "cleaned", "fake_xpu", "no", tmp_path, **variable)
    assert seen["pickled"] == [True, "mine", "fake_xpu:0", True]
    assert seen["mine"] == ["mine", "fake_xpu:0", "Mine", True, True]
    assert (seen["again"], seen["state"]) == ("fake_xpu:0", "fake_xpu:0")
    assert seen["all replaced"]
    assert seen["restored"]
    assert seen["afterwards"] == ["Accelerator", afterwards]
