"""What cannot be done is an error that says so: never the CPU, never full precision, in silence."""

from __future__ import annotations

import subprocess
import sys

import pytest
from programs import start

import accelkit
from accelkit.bridges.accelerate.precision import wanted_precision
from accelkit.bridges.accelerate.versions import check_version

REFUSED = {
    "fsdp": ("UnsupportedError", "FSDP inside Accelerate is not there for fake_xpu", 'accelkit.Runtime(strategy="fsdp")'),
    "installed_fsdp": ("UnsupportedError", "FSDP inside Accelerate is not there for fake_xpu"),
    "deepspeed": ("UnsupportedError", "DeepSpeed inside Accelerate", "ACCELERATE_USE_DEEPSPEED=true asks for it"),
    "megatron": ("UnsupportedError", "Megatron-LM inside Accelerate"),
    "parallelism": ("UnsupportedError", "ParallelismConfig inside Accelerate"),
    "sagemaker": ("UnsupportedError", "SageMaker's data parallelism inside Accelerate", "ACCELERATE_USE_SAGEMAKER=true asks for it"),
    "cpu_affinity": ("UnsupportedError", "setting the CPU affinity inside Accelerate", "ACCELERATE_CPU_AFFINITY=1 asks for it"),
    "fp8": ("UnsupportedError", "mixed_precision=fp8 cannot be done inside Accelerate", "no, fp16, bf16"),
    "fp8_recipe": ("UnsupportedError", "fp8 inside Accelerate", "TERecipeKwargs asks for it"),
    "strategy": ("UnsupportedError", "Accelerate cannot train fake_xpu with the strategy 'fsdp'"),
    "no_float16": ("UnsupportedError", "cannot do precision '16-mixed'", "autocast.float16"),
    "lazy": ("UnsupportedError", "the bridge into Accelerate cannot drive fake_xpu", "traces lazily"),
    "use_cpu": ("ContradictionError", "ACCELERATE_USE_CPU=true and the accelerator 'fake_xpu'"),
    "other_device": ("ContradictionError", "ACCELERATE_TORCH_DEVICE=meta and the accelerator 'fake_xpu'"),
    "cpu": ("ContradictionError", "cpu=True and accelerator='fake_xpu'"),
    "two_devices": ("ContradictionError", "Accelerate runs on fake_xpu:0 in this process, and cpu is asked for"),
    "two_installs": ("ContradictionError", "install('cpu') after install('fake_xpu')", "uninstall()"),
    "two_precisions": ("ValueError", "AcceleratorState has already been initialized", "mixed_precision='fp16'"),
    "absent": ("UnavailableError", "the accelerator 'cuda'"),
    "unknown": ("UnknownNameError", "fake_xpu"),
    "optimizer_left_behind": ("PrepareError", "SGD has parameters on cpu, and the accelerator is fake_xpu:0"),
    "model_elsewhere": ("UnsupportedError", "Linear is on fake_xpu:0, and the accelerator is cpu"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_an_error_that_says_why(what):
    result = start("refused.py", what)
    assert result.stdout, result.stderr
    kind, *texts = REFUSED[what]
    assert result.stdout.startswith(kind), result.stdout
    assert all(text in result.stdout for text in texts), result.stdout


def test_accelerate_launch_for_the_cpu_is_an_error(tmp_path):
    words = ["-m", "accelerate.commands.launch", "--cpu"]
    result = start("on_accelerate.py", "train", "fake_xpu", "no", tmp_path, launcher=words)
    assert result.returncode != 0
    assert "ACCELERATE_USE_CPU=True and the accelerator 'fake_xpu'" in result.stderr


@pytest.mark.parametrize("version", ["1.10.0", "1.12.3", "1.15.0", "1.15.7"])
def test_versions_that_are_known(version):
    check_version(version)


@pytest.mark.parametrize("version", ["1.9.0", "1.10.0rc1", "1.16.0", "1.16.0.dev0", "2.0"])
def test_a_version_that_is_not_known_is_refused(version):
    with pytest.raises(accelkit.UnsupportedError, match=f"accelerate {version} is not known to this accelkit"):
        check_version(version)


def test_without_accelerate_the_bridge_says_what_to_install(tmp_path):
    code = "import sys; sys.modules['accelerate'] = None; import accelkit.bridges.accelerate"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "UnavailableError: the bridge into Accelerate needs Accelerate" in result.stderr
    assert "pip install 'accelkit[accelerate]'" in result.stderr


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
def test_precisions_that_accelerate_does_not_have_are_refused(name):
    with pytest.raises(accelkit.UnsupportedError, match=f"ACCELKIT_PRECISION={name} cannot be done inside Accelerate"):
        wanted_precision(None, {"ACCELKIT_PRECISION": name})
