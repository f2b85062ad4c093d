"""What cannot be done is an error that says so: never the CPU, never full precision, in silence."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
from programs import LAUNCHERS, start

import accelkit
from accelkit.bridges.accelerate.compat import check_version, import_accelerate
from accelkit.bridges.accelerate.precision import wanted_precision

REFUSED = {
    "fsdp1": ("UnsupportedError", "FSDP", "fake_xpu", "fsdp_version=2"),
    "installed_fsdp1": ("UnsupportedError", "FSDP", "fake_xpu", "--fsdp_version 2"),
    "fsdp1_by_variable": ("UnsupportedError", "FSDP", "fake_xpu", "fsdp_version=2"),
    "fsdp_on_the_cpu": ("UnsupportedError", "FSDP", "cpu", "Runtime(strategy='fsdp')"),
    "fsdp_in_fp16": ("UnsupportedError", "FSDP", "fake_xpu", "mixed_precision='bf16'"),
    "deepspeed": ("UnavailableError", "DeepSpeed", "pip install 'accelkit[deepspeed]'"),
    "megatron": ("UnsupportedError", "Megatron-LM"),
    "megatron_by_argument": ("UnsupportedError", "Megatron-LM", "megatron_lm_plugin="),
    "tensor_parallelism_by_plugin": ("UnsupportedError", "torch_tp_plugin=", "ParallelismConfig(tp_size=...)"),
    "tensor_parallelism_and_fsdp": ("UnsupportedError", "request no FSDP", "DistributedConfig(tp_size=2, fsdp_size=2)"),
    "tensor_parallelism_and_deepspeed": ("UnsupportedError", "DeepSpeed splits models in its own way", "deepspeed_plugin="),
    "tensor_parallelism_on_the_cpu": ("UnsupportedError", "only on accelerators", "Runtime(strategy='parallel')"),
    "tensor_parallelism_in_fp16": ("UnsupportedError", "gradient scaler", "mixed_precision='bf16'"),
    "tensor_parallelism_in_an_older_accelerate": ("UnsupportedError", "accelerate 1.14.0", "1.15.0"),
    "tensor_parallelism_in_one_process": ("ContradictionError", "2 devices", "1 process"),
    "model_that_is_not_sharded": ("UnsupportedError", "not sharded", "averages its gradients"),
    "split_model_elsewhere": ("UnsupportedError", "on cpu", "meta", "LOCAL_RANK"),
    "context_parallelism": ("UnsupportedError", "ParallelismConfig(cp_size=2)", "attention operators of CUDA"),
    "sequence_parallelism": ("UnsupportedError", "ParallelismConfig(sp_size=2)", "DeepSpeed"),
    "sagemaker": ("UnsupportedError", "SageMaker", "ACCELERATE_USE_SAGEMAKER=true"),
    "cpu_affinity": ("UnsupportedError", "CPU affinity", "ACCELERATE_CPU_AFFINITY=1"),
    "fp8": ("UnsupportedError", "mixed_precision=fp8", "no, fp16, bf16"),
    "fp8_recipe": ("UnsupportedError", "fp8", "TERecipeKwargs"),
    "strategy": ("UnsupportedError", "fake_xpu", "'fsdp'"),
    "no_float16": ("UnsupportedError", "'16-mixed'", "autocast.float16"),
    "no_bfloat16": ("UnsupportedError", "'bf16-mixed'", "autocast.bfloat16"),
    "own_precision": ("UnsupportedError", "'bf16-mixed'", "its own precision of that name"),
    "lazy": ("UnsupportedError", "Accelerate", "fake_xpu"),
    "use_cpu": ("ContradictionError", "ACCELERATE_USE_CPU=true", "'fake_xpu'"),
    "other_device": ("ContradictionError", "ACCELERATE_TORCH_DEVICE=meta", "'fake_xpu'"),
    "cpu": ("ContradictionError", "cpu=True", "accelerator='fake_xpu'"),
    "two_devices": ("ContradictionError", "Accelerate", "fake_xpu:0", "cpu"),
    "two_installs": ("ContradictionError", "install('cpu')", "install('fake_xpu')", "uninstall()"),
    "two_precisions": ("ValueError", "AcceleratorState has already been initialized", "mixed_precision='fp16'"),
    "absent": ("UnavailableError", "'cuda'"),
    "unknown": ("UnknownNameError", "fake_xpu"),
    "optimizer_left_behind": ("PrepareError", "SGD", "cpu", "fake_xpu:0"),
    "forked": ("UsageError", "rank 0 of 2", "fake_xpu:0", "notebook_launcher"),
    "model_elsewhere": ("UnsupportedError", "Linear", "fake_xpu:0", "cpu"),
}


OURS = {"strategy", "no_float16", "no_bfloat16", "own_precision", "two_installs", "absent", "unknown"}
"""Refused before Accelerate is called."""
NEWER = {f"tensor_parallelism_{how}" for how in ("by_plugin", "and_fsdp", "and_deepspeed", "on_the_cpu", "in_fp16", "in_one_process")} | {
    "tensor_parallelism_in_an_older_accelerate",  # its text names a version, which the snapshot hides only where that version is installed
    "model_that_is_not_sharded",
    "split_model_elsewhere",
    "sequence_parallelism",
}
"""What the oldest Accelerate does not have, or what is refused with it only because of its version."""


def marks(what):
    return [pytest.mark.smoke] * (what == "no_bfloat16") + [pytest.mark.newest_peers] * (what in OURS | NEWER)


@pytest.mark.parametrize("what", [pytest.param(what, marks=marks(what)) for what in REFUSED])
def test_it_is_an_error_that_says_why(what, error_text):
    result = start("accelerate_errors_program.py", what)
    assert result.stdout, result.stderr
    kind, *texts = REFUSED[what]
    assert result.stdout.startswith(kind), result.stdout
    assert all(text in result.stdout for text in texts), result.stdout
    assert kind == "ValueError" or result.stdout == error_text, "a ValueError is Accelerate's own"


def test_a_second_accelerator_that_shards_unlike_the_first_is_an_error():
    """Accelerate itself would ignore the request."""
    result = start("accelerate_errors_program.py", "fsdp_too_late", launcher=LAUNCHERS["accelkit launch"], name="fake_xpu")
    assert result.stdout.count("ContradictionError FSDP was requested, but an earlier Accelerator of this process does not shard") == 2
    assert result.stdout.count("pass fsdp_plugin to the first Accelerator") == 2


def test_accelerate_launch_for_the_cpu_is_an_error(tmp_path):
    words = ["-m", "accelerate.commands.launch", "--cpu"]
    result = start("accelerate_program.py", "train", "fake_xpu", "no", tmp_path, launcher=words)
    assert result.returncode != 0
    assert "ContradictionError" in result.stderr
    assert "ACCELERATE_USE_CPU=True" in result.stderr


def test_accelerate_refuses_a_device_map_also_on_devices_that_are_not_numbered_as_the_ranks():
    words = ["-m", "accelkit", "launch", "--accelerator", "fake_xpu", "--devices", "1,0"]
    result = start("accelerate_errors_program.py", "device_map", launcher=words)
    assert result.stdout.count("ValueError You can't train a model that has been loaded with `device_map='auto'`") == 2, result.stderr


@pytest.mark.parametrize("version", ["1.10.0", "1.12.3", "1.15.0", "1.15.7"])
def test_versions_that_are_known(version):
    check_version(version)


@pytest.mark.parametrize("version", ["1.9.0", "1.10.0rc1", "1.16.0", "1.16.0.dev0", "2.0"])
def test_a_version_that_is_not_known_is_refused(version, error_text):
    with pytest.raises(accelkit.UnsupportedError) as caught:
        check_version(version)
    assert f"accelerate {version}" in caught.value.what
    assert caught.value == error_text


def test_an_accelerate_with_another_shared_state_is_refused(monkeypatch, error_text):
    """Another Accelerate is stood in for by this one, in which an entry has another name."""
    state = importlib.import_module("accelerate.state").PartialState
    renamed = ["local_rank" if name == "local_process_index" else name for name in state._known_attrs]
    monkeypatch.setattr(state, "_known_attrs", renamed)
    with pytest.raises(accelkit.UnsupportedError) as caught:
        import_accelerate()
    assert "these entries differ: local_process_index, local_rank" in caught.value.why
    assert caught.value == error_text


def test_without_accelerate_the_bridge_says_what_to_install(error_text):
    code = "import sys; sys.modules['accelerate'] = None; import accelkit.bridges.accelerate"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    error = result.stderr[result.stderr.index("accelkit.errors.UnavailableError: ") :]
    assert "pip install 'accelkit[accelerate]'" in error
    assert error == error_text


@pytest.mark.parametrize(
    ("argument", "environ", "expected"),
    [
        (None, {}, "no"),
        ("fp16", {"ACCELKIT_PRECISION": "bf16-mixed"}, "fp16"),
        (None, {"ACCELKIT_PRECISION": "bf16-mixed", "ACCELERATE_MIXED_PRECISION": "no"}, "bf16"),
        (None, {"ACCELERATE_MIXED_PRECISION": "fp16"}, "fp16"),
        (None, {"ACCELKIT_PRECISION": "32"}, "no"),
    ],
)
def test_which_precision_is_wanted(argument, environ, expected):
    assert wanted_precision(argument, environ) == expected


@pytest.mark.parametrize("name", ["16-true", "fp8", "transformer-engine"])
def test_precisions_that_accelerate_does_not_have_are_refused(name, error_text):
    with pytest.raises(accelkit.UnsupportedError) as caught:
        wanted_precision(None, {"ACCELKIT_PRECISION": name})
    assert f"ACCELKIT_PRECISION={name}" in caught.value.what
    assert caught.value == error_text


class Stored(accelkit.Precision):
    """A precision that the program made."""


@pytest.mark.newest_peers
@pytest.mark.parametrize("how", ["argument", "qualified", "variable", "instance"])
def test_a_precision_of_a_plugin_is_refused(how, plugin_site, error_text):
    source = "from accelkit import Precision\nclass Scaled(Precision):\n    pass\n"
    plugin_site.install("vendor-acme", source, entry_points="[accelkit.precisions]\nacme-scaled = vendor_acme:Scaled")
    argument = {"argument": "acme-scaled", "qualified": "vendor-acme:acme-scaled", "instance": Stored()}.get(how)
    with pytest.raises(accelkit.UnsupportedError) as caught:
        wanted_precision(argument, {"ACCELKIT_PRECISION": "acme-scaled"})
    assert caught.value.plugin == ("(code)==test_accelerate_errors" if how == "instance" else "vendor-acme==1.0")
    assert "cannot be given an accelkit Precision" in caught.value.why
    assert "accelkit.bridges.lightning" in caught.value.hint
    assert caught.value == error_text


@pytest.mark.newest_peers
def test_a_precision_that_does_not_exist_is_refused(error_text):
    with pytest.raises(accelkit.UnsupportedError) as caught:
        wanted_precision("acme", {})
    assert "it supports no, fp16, bf16" in caught.value.why
    assert caught.value == error_text
