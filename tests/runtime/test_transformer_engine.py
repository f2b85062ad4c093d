"""``transformer-engine`` and ``transformer-engine-float16``: what they say where they cannot run: where there is no NVIDIA GPU."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch
from torch import nn

import accelkit
from accelkit_builtin.accelerators.cuda import CUDAAccelerator
from accelkit_builtin.precisions.transformer_engine import TransformerEngine, TransformerEngineOptions
from accelkit_builtin.precisions.transformer_engine_float16 import TransformerEngineFloat16

CLASSES = {"transformer-engine": TransformerEngine, "transformer-engine-float16": TransformerEngineFloat16}
HAS_ALL = importlib.util.find_spec("transformer_engine") is not None and torch.cuda.is_available()


@pytest.mark.parametrize("accelerator", ["cpu", "fake_xpu"])
@pytest.mark.parametrize("name", CLASSES)
def test_a_device_that_declares_none(accelerator, name, error_text):
    with pytest.raises(accelkit.UnsupportedError) as caught:
        accelkit.Runtime(accelerator, precision=name)
    assert accelerator in caught.value.what
    assert f"'{name}'" in caught.value.what
    assert caught.value == error_text
    assert "transformer_engine" in caught.value.why
    assert "fp8" in caught.value.hint
    assert "transformer" not in caught.value.hint


@pytest.mark.parametrize("name", CLASSES)
def test_a_device_that_declares_nothing(name, error_text):
    class Plain(accelkit.Accelerator):
        device_type = "cpu"

    with pytest.raises(accelkit.UnsupportedError) as caught:
        _ = accelkit.Runtime(Plain(), precision=name).device
    assert name in caught.value.what
    assert caught.value == error_text
    assert all(part in caught.value.why for part in ("CUDA", "cpu"))
    assert all(part in caught.value.hint for part in ("precision='fp8'", "'bf16-mixed'"))


@pytest.mark.parametrize("name", CLASSES)
def test_without_the_package(name, monkeypatch, error_text):
    monkeypatch.setitem(sys.modules, "transformer_engine", None)
    precision = CLASSES[name]()
    precision.name = name
    with pytest.raises(accelkit.UnavailableError) as caught:
        precision.setup(CUDAAccelerator(), torch.device("cuda", 0))
    assert f"'{name}'" in caught.value.what
    assert caught.value == error_text
    assert "transformer-engine" in caught.value.why
    assert caught.value.hint == "pip install --no-build-isolation 'transformer-engine[pytorch]'"


@pytest.mark.parametrize(("name", "dtype"), [("transformer-engine", torch.bfloat16), ("transformer-engine-float16", torch.float16)])
def test_what_is_not_float8_is_in_one_dtype(name, dtype):
    precision = CLASSES[name]()
    assert precision.dtype is dtype
    assert precision.convert_input(torch.ones(1)).dtype is dtype
    assert precision.convert_output(torch.ones(1, dtype=dtype)).dtype is torch.float32
    with precision.module_init_context():
        assert nn.Linear(1, 1).weight.dtype is dtype


def test_the_optimizer_that_float16_cannot_have_is_warned_of(error_text):
    optimizer = torch.optim.AdamW(nn.Linear(1, 1).parameters())
    with pytest.warns(UserWarning, match=r"AdamW\(eps=1e-08\)") as caught:
        TransformerEngineFloat16().check_optimizer(optimizer)
    assert caught[0] == error_text
    TransformerEngine().check_optimizer(optimizer)


@pytest.mark.skipif(not HAS_ALL, reason="a GPU with CUDA, and pip install --no-build-isolation 'transformer-engine[pytorch]'")
@pytest.mark.parametrize("name", CLASSES)
def test_layers_are_replaced_and_train(name):
    rt = accelkit.Runtime("cuda", devices=1, precision=CLASSES[name](TransformerEngineOptions(ignore=["2", "3"])))
    model = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 16), nn.LayerNorm(16))
    before = model[0].weight.detach().clone()
    model = rt.prepare(model)
    optimizer = rt.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    assert [type(layer).__module__.partition(".")[0] for layer in model] == ["transformer_engine", "transformer_engine", "torch", "torch"]
    torch.testing.assert_close(model[0].weight.detach().cpu().float(), before, rtol=0.01, atol=0.01)
    y = model(torch.randn(16, 32, device=rt.device))
    assert y.dtype is torch.float32
    rt.backward(y.square().mean())
    weight = model[0].weight.detach().clone()
    optimizer.step()
    assert not torch.equal(model[0].weight, weight)
