"""The deepspeed strategy on real processes, and what it tells DeepSpeed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import types

import preloaded
import pytest
import ranks

import accelkit
from accelkit import EngineSettings
from accelkit_builtin.precisions.bf16_mixed import BFloat16Mixed
from accelkit_builtin.precisions.p16_mixed import Float16Mixed, GradScalerOptions
from accelkit_builtin.precisions.p32_true import Float32
from accelkit_builtin.precisions.p64_true import Float64
from accelkit_builtin.strategies.deepspeed import DeepSpeedOptions, DeepSpeedStrategy
from accelkit_builtin.strategies.deepspeed_checkpoint import save
from accelkit_builtin.strategies.deepspeed_config import configuration
from accelkit_builtin.strategies.deepspeed_float16 import EngineScaledFloat16
from accelkit_builtin.strategies.deepspeed_package import check_package

IS_INSTALLED = importlib.util.find_spec("deepspeed") is not None
on_deepspeed = [
    pytest.mark.deepspeed,
    pytest.mark.skipif(not IS_INSTALLED, reason="DS_BUILD_OPS=0 DS_ACCELERATOR=cpu pip install --no-build-isolation deepspeed"),
]


@pytest.mark.parametrize("stage", [pytest.param(stage, marks=on_deepspeed) for stage in (1, 2, 3)])
def test_weights_are_those_of_one_process(stage, tmp_path):
    names = ("behaved", "plain", "loader", "everything", "clipped_twice", "offloaded", "several_backwards", "mixed", "kept")
    cases = [f"{name}={stage}" for name in names]
    for text in ranks.run("deepspeed_program.py", 2, *cases, environ={"FOLDER": str(tmp_path)}):
        assert text.count("done") == len(cases)


@pytest.mark.deepspeed
@pytest.mark.skipif(not IS_INSTALLED, reason="deepspeed is not installed")
def test_weights_on_a_plugins_device_are_those_of_one_process_on_the_cpu(tmp_path):
    cases = ["plain=1", "everything=2", "mixed=2", "scaled=2", "offloaded=3", "mixed=3", "kept=3"]
    for text in ranks.run("deepspeed_program.py", 2, *cases, environ={"FOLDER": str(tmp_path), "ON": "fake_xpu"}):
        assert text.count("done") == len(cases)


@pytest.mark.parametrize("stage", [pytest.param(stage, marks=on_deepspeed) for stage in (1, 2, 3)])
def test_losses_are_scaled_by_the_engine(stage):
    for text in ranks.run("deepspeed_program.py", 2, f"scaled={stage}", environ={"DS_ACCELERATOR": "cpu"}):
        assert text.count("done") == 1


@pytest.mark.deepspeed
@pytest.mark.skipif(not IS_INSTALLED, reason="deepspeed is not installed")
def test_stage_3_trains_in_a_program_without_a_launcher(tmp_path):
    names = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}
    environ = {name: value for name, value in os.environ.items() if name not in names} | {"ON": "fake_xpu", "OMP_NUM_THREADS": "1"}
    command = [preloaded.programs() / "python", str(ranks.HERE / "deepspeed_program.py"), "behaved=3", "plain=3"]
    job = subprocess.run(command, check=False, env=environ, capture_output=True, text=True, timeout=120)
    assert job.stdout.count("done") == 2, job.stderr


@pytest.mark.parametrize("size", [pytest.param(size, marks=on_deepspeed) for size in (1, 2)])
def test_what_cannot_be_done_says_what_to_do(size):
    for text in ranks.run("deepspeed_program.py", size, "errors=2", "elsewhere=2"):
        assert text.count("done") == 2


def settings(precision=Float32, **options):
    made = precision()
    made.name = {Float64: "64-true"}.get(precision, "as it is called")
    return EngineSettings(device=None, precision=made, num_processes=2, **options)


def test_options_are_deepspeeds_configuration():
    options = DeepSpeedOptions(stage=3, offload_optimizer=True, offload_parameters=True)
    told = configuration(options, settings(accumulation_steps=4, batch_size=8), "")
    assert told["zero_optimization"] == {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    assert (told["train_micro_batch_size_per_gpu"], told["gradient_clipping"], told["bf16"]) == (8, 0.0, {"enabled": False})
    assert (told["gradient_accumulation_steps"], told["managed_gradient_accumulation"]) == (1, False)
    assert configuration(DeepSpeedOptions(), settings(BFloat16Mixed), "")["bf16"] == {"enabled": True}


def test_a_file_wins_and_auto_is_filled(tmp_path):
    path = tmp_path / "ds_config.json"
    zero = {"stage": 1, "reduce_bucket_size": "auto", "overlap_comm": False}
    given = {"zero_optimization": zero, "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}, "gradient_accumulation_steps": "auto"}
    path.write_text(json.dumps(given | {"train_batch_size": 16, "gradient_clipping": 0.5, "wall_clock_breakdown": True}))
    told = configuration(DeepSpeedOptions(config=path), settings(BFloat16Mixed, accumulation_steps=2), "")
    assert told["zero_optimization"] == {"stage": 1, "overlap_comm": False}
    assert (told["bf16"], told["fp16"], told["gradient_clipping"]) == ({"enabled": True}, {"enabled": False}, 0.5)
    assert (told["train_micro_batch_size_per_gpu"], told["wall_clock_breakdown"]) == (4, True)
    assert "train_batch_size" not in told
    assert json.loads(path.read_text())["gradient_accumulation_steps"] == "auto"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps=4"),
        (
            {"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2},
            "train_batch_size=7",
        ),
        ({"bf16": {"enabled": True}}, "'as it is called'"),
        ({"fp16": {"enabled": True}}, "fp16.enabled=true"),
        ({"optimizer": {"type": "AdamW"}}, "'optimizer'"),
        ({"scheduler": {"type": "WarmupLR"}}, "'scheduler'"),
        ({"managed_gradient_accumulation": True}, "managed_gradient_accumulation"),
    ],
)
def test_a_configuration_that_contradicts_the_runtime(config, text, error_text):
    with pytest.raises(accelkit.ContradictionError, match="DeepSpeed") as caught:
        configuration(DeepSpeedOptions(config=config), settings(), "")
    assert text in str(caught.value)
    assert caught.value.hint
    assert caught.value == error_text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (DeepSpeedOptions(stage=0), "strategy='ddp'"),
        (DeepSpeedOptions(config={"zero_optimization": {"stage": 4}}), "4"),
        (DeepSpeedOptions(stage=2, offload_parameters=True), "DeepSpeedOptions(stage=3, offload_parameters=True)"),
        (DeepSpeedOptions(config={"zero_optimization": 2}), "zero_optimization=2"),
        (DeepSpeedOptions(config={"bf16": True}), "bf16=True"),
        (DeepSpeedOptions(config={"zero_optimization": {"offload_param": {"device": "nvme"}}}), "cannot offload parameters"),
        (DeepSpeedOptions(config="nowhere.json"), "nowhere.json"),
        (DeepSpeedOptions(config=3), "config=3"),
    ],
)
def test_options_that_cannot_be_used(options, text, error_text):
    with pytest.raises(accelkit.UsageError) as caught:
        configuration(options, settings(), "")
    assert text in str(caught.value)
    assert caught.value.hint
    assert caught.value == error_text


@pytest.mark.parametrize("offload", [None, {"device": "none"}, {}])
def test_a_configuration_that_offloads_no_parameters_works_in_each_stage(offload):
    for stage in (1, 2, 3):
        told = configuration(DeepSpeedOptions(stage, config={"zero_optimization": {"offload_param": offload}}), settings(), "")
        assert told["zero_optimization"] == {"stage": stage, "offload_param": offload}


def test_precisions_that_deepspeed_has_not(error_text):
    with pytest.raises(accelkit.UnsupportedError, match="precision '64-true'") as caught:
        configuration(DeepSpeedOptions(), settings(Float64), "")
    assert all(part in caught.value.hint for part in ("32-true", "bf16-mixed", "16-mixed", "strategy='fsdp'"))
    assert caught.value == error_text


def scaled(**options):
    return EngineScaledFloat16(Float16Mixed(GradScalerOptions(**options)), lambda: None)


def test_the_scaler_is_deepspeeds():
    told = configuration(DeepSpeedOptions(), settings(lambda: scaled(init_scale=1024.0, growth_interval=50)), "")
    assert told["bf16"] == {"enabled": False}
    expected = {"enabled": True, "loss_scale": 0, "initial_scale_power": 10, "loss_scale_window": 50, "hysteresis": 1}
    assert told["fp16"] == expected
    told = configuration(DeepSpeedOptions(config={"fp16": {"enabled": "auto", "min_loss_scale": 2}}), settings(scaled), "")
    assert (told["fp16"]["enabled"], told["fp16"]["min_loss_scale"], told["fp16"]["initial_scale_power"]) == (True, 2, 16)
    with pytest.raises(accelkit.ContradictionError, match="bf16.enabled=true"):
        configuration(DeepSpeedOptions(config={"bf16": {"enabled": True}}), settings(scaled), "")


@pytest.mark.parametrize(
    ("options", "why"),
    [({"init_scale": 1000.0}, "init_scale=1000.0"), ({"growth_factor": 3.0}, "")],
)
def test_a_scaler_that_deepspeed_has_not(options, why, error_text):
    with pytest.raises(accelkit.UnsupportedError, match="DeepSpeed") as caught:
        scaled(**options).configuration()
    assert why in caught.value.why
    assert caught.value == error_text


@pytest.mark.parametrize("name", ["offload_optimizer", "offload_param"])
def test_files_on_nvme_are_not_saved(name, tmp_path, error_text):
    engine = types.SimpleNamespace(config={"zero_optimization": {"stage": 3, name: {"device": "nvme"}}})
    with pytest.raises(accelkit.UnsupportedError, match="NVMe") as caught:
        save(engine, tmp_path, "plugin")
    assert caught.value == error_text


def test_options_must_be_options():
    with pytest.raises(accelkit.UsageError, match="DeepSpeedOptions"):
        DeepSpeedStrategy({"stage": 3})


def test_without_the_package_the_line_that_installs_it(monkeypatch, error_text):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(accelkit.UnavailableError, match="deepspeed") as caught:
        accelkit.Runtime("cpu", strategy="deepspeed")
    assert caught.value == error_text
    assert caught.value.plugin == f"accelkit=={accelkit.__version__}"
    assert caught.value.hint == "DS_BUILD_OPS=0 DS_ACCELERATOR=cpu pip install --no-build-isolation deepspeed"


@pytest.mark.skipif(IS_INSTALLED, reason="the installed deepspeed has metadata")
def test_a_package_without_metadata_counts_as_new_enough(monkeypatch, tmp_path):
    (tmp_path / "deepspeed" / "accelerator").mkdir(parents=True)
    (tmp_path / "deepspeed" / "__init__.py").touch()
    (tmp_path / "deepspeed" / "accelerator" / "cpu_accelerator.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    check_package(accelkit.select("cpu").accelerator, "plugin")


@pytest.mark.deepspeed
@pytest.mark.skipif(not IS_INSTALLED, reason="deepspeed is not installed")
def test_a_package_that_is_too_old(monkeypatch, tmp_path, error_text):
    folder = tmp_path / "deepspeed-0.18.2.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.18.2\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(accelkit.UnavailableError, match=r"deepspeed 0\.18\.2 .* 0\.19\.8 ") as caught:
        accelkit.Runtime("cpu", strategy="deepspeed")
    assert caught.value == error_text


@pytest.mark.deepspeed
@pytest.mark.skipif(not IS_INSTALLED, reason="deepspeed is not installed")
def test_a_variable_that_names_another_device(monkeypatch, error_text):
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    with pytest.raises(accelkit.ContradictionError, match="DS_ACCELERATOR=cuda.*'cpu'") as caught:
        accelkit.Runtime("cpu", strategy="deepspeed")
    assert caught.value == error_text
