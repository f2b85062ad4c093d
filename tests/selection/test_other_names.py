"""Names that are used elsewhere, or were: each leads to what replaced it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import accelkit
import accelkit_builtin
from accelkit.discovery import catalog

NAMES = tomllib.loads((Path(accelkit_builtin.__file__).parent / "other_names.toml").read_text("utf-8"))
TABLE = NAMES["strategy"]

REPLACED_BY = {
    "dp": "use strategy='ddp'",
    "ddp2": "use strategy='ddp'",
    "ddp_spawn": "strategy='ddp', and start the processes with Runtime.launch(function)",
    "ddp_fork": "strategy='ddp', and start the processes with Runtime.launch(function)",
    "ddp_notebook": "strategy='ddp', and start the processes from the notebook with Runtime.launch(function)",
    "ddp_sharded": "strategy='fsdp'",
    "ddp_sharded_spawn": "strategy='fsdp', and start the processes with Runtime.launch(function)",
    "ddp_fully_sharded": "strategy='fsdp'",
    "ddp_cpu": "accelerator='cpu', strategy='ddp'",
    "ddp_find_unused_parameters_false": "use strategy='ddp'",
    "ddp_find_unused_parameters_true": "strategy=DDPStrategy(DDPOptions(find_unused_parameters=True))",
    "fsdp_native": "strategy='fsdp'",
    "fsdp2": "strategy='fsdp'",
    "fsdp_cpu_offload": "strategy=FSDPStrategy(FSDPOptions(cpu_offload=True))",
    "deepspeed_stage_1": "strategy=DeepSpeedStrategy(DeepSpeedOptions(stage=1))",
    "deepspeed_stage_2": "strategy='deepspeed'",
    "deepspeed_stage_2_offload": "strategy=DeepSpeedStrategy(DeepSpeedOptions(stage=2, offload_optimizer=True))",
    "deepspeed_stage_3": "strategy=DeepSpeedStrategy(DeepSpeedOptions(stage=3))",
    "deepspeed_stage_3_offload": "strategy=DeepSpeedStrategy(DeepSpeedOptions(stage=3, offload_optimizer=True, offload_parameters=True))",
    "horovod": "strategy='ddp'",
    "tpu_spawn": "accelerator='xla'",
    "single_tpu": "accelerator='xla', devices=1",
    "single_xla": "accelerator='xla', devices=1",
}


def test_the_table_is_what_is_tested():
    assert TABLE.keys() == REPLACED_BY.keys()


@pytest.mark.parametrize("name", REPLACED_BY)
def test_a_former_name_leads_to_what_replaced_it(name, error_text):
    with pytest.raises(accelkit.UnknownNameError) as caught:
        accelkit.Runtime("cpu", strategy=name)
    assert f"'{name}'" in str(caught.value)
    assert caught.value == error_text
    assert REPLACED_BY[name] in caught.value.hint
    assert caught.value.why == TABLE[name]["reason"]


def test_every_other_spelling_is_of_a_name_that_is_there():
    for kind, names in NAMES["alias"].items():
        for name, spelled in names.items():
            assert catalog.find(kind, name) == catalog.find(kind, spelled)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (16, "16-mixed"),
        ("16", "16-mixed"),
        ("fp16", "16-mixed"),
        ("bf16", "bf16-mixed"),
        (32, "32-true"),
        ("no", "32-true"),
        (64, "64-true"),
    ],
)
def test_precisions_are_spelled_as_elsewhere(given, name, monkeypatch):
    rt = accelkit.Runtime("cpu", precision=given)
    assert (rt.state.precision, rt.precision.name) == (name, name)
    monkeypatch.setenv("ACCELKIT_PRECISION", str(given))
    assert accelkit.Runtime("cpu").state.precision == name


@pytest.mark.parametrize("name", NAMES["precision"])
def test_a_precision_that_is_no_more_leads_to_another(name, error_text):
    with pytest.raises(accelkit.UnknownNameError) as caught:
        accelkit.Runtime("cpu", precision=name)
    assert f"'{name}'" in str(caught.value)
    assert caught.value == error_text
    assert caught.value.why == NAMES["precision"][name]["reason"]
    for named in re.findall(r"'([\w-]+)'", caught.value.hint):
        assert any(
            catalog.plugins(kind) and named in {record.name for record in catalog.plugins(kind)} for kind in ("precision", "strategy")
        )


@pytest.mark.parametrize("value", [True, 17, 3.5, "half", None.__class__])
def test_what_is_no_precision(value):
    with pytest.raises(accelkit.UsageError):
        accelkit.Runtime("cpu", precision=value)


@pytest.mark.parametrize("name", [name for name in TABLE if "import" in TABLE[name]["hint"]])
def test_what_an_error_says_to_write_runs(name):
    scope = {}
    code = TABLE[name]["hint"]
    exec(code, scope)
    assert isinstance(scope["strategy"], accelkit.Strategy)


def test_the_variable_and_a_distribution_that_offers_such_a_name(monkeypatch, error_text):
    monkeypatch.setenv("ACCELKIT_STRATEGY", "dp")
    with pytest.raises(accelkit.UnknownNameError) as caught:
        accelkit.Runtime("cpu")
    assert "'dp'" in caught.value.what
    assert "use strategy='ddp'" in str(caught.value)
    assert caught.value == error_text

    class Horovod(accelkit.Strategy):
        """Somebody's own."""

    monkeypatch.setattr(catalog, "_registered", {})
    accelkit.register("horovod", Horovod)
    assert isinstance(accelkit.Runtime("cpu", strategy="horovod").strategy, Horovod)
    monkeypatch.undo()
    accelkit.refresh()


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"precision": "BF16-mixed"}, "did you mean 'bf16-mixed'?"),
        ({"precision": "FP16"}, "did you mean '16-mixed'?"),
        ({"precision": "bfloat16"}, "use precision='bf16-mixed', or 'bf16-true' to store the parameters in bfloat16 too"),
        ({"precision": "float16"}, "use precision='16-mixed', or '16-true' to store the parameters in float16 too"),
        ({"precision": "Half"}, "use precision='16-mixed', or '16-true' to store the parameters in float16 too"),
        ({"precision": "double"}, "use precision='64-true'"),
        ({"strategy": "FSDP"}, "did you mean 'fsdp'?"),
        ({"strategy": "DDP_Spawn"}, "use strategy='ddp'"),
        ({"accelerator": "FAKE_XPU"}, "did you mean 'fake_xpu'?"),
        ({"accelerator": "GPU"}, "did you mean 'gpu'?"),
        ({"accelerator": "rocm"}, "use accelerator='cuda'"),
        ({"accelerator": "amd"}, "use accelerator='cuda'"),
        ({"accelerator": "NVIDIA"}, "use accelerator='cuda'"),
    ],
)
def test_what_a_user_may_have_meant(arguments, hint):
    with pytest.raises(accelkit.UnknownNameError) as caught:
        accelkit.Runtime(**({"accelerator": "cpu"} | arguments))
    assert caught.value.hint.startswith(hint)


def test_the_index_of_a_device_is_separate(error_text):
    with pytest.raises(accelkit.UnknownNameError) as caught:
        accelkit.device("fake_xpu:1")
    assert "accelkit.device('fake_xpu', 1)" in caught.value.hint
    assert caught.value == error_text
