"""Precisions of optional packages on several processes."""

from __future__ import annotations

import importlib.util

import pytest
import ranks
from free_port import free_port

import accelkit


def needing(package, extra):
    is_absent = importlib.util.find_spec(package) is None
    return [getattr(pytest.mark, package), pytest.mark.skipif(is_absent, reason=f"pip install 'accelkit[{extra}]'")]


@pytest.mark.parametrize(
    "precision",
    [
        pytest.param("fp8", marks=needing("torchao", "fp8")),
        pytest.param("bitsandbytes-4bit", marks=needing("bitsandbytes", "bitsandbytes")),
    ],
)
def test_gradients_are_the_same_under_ddp_and_fsdp(precision):
    for text in ranks.run("optional_precisions_program.py", 2, precision):
        assert text.count("done") == 1


@pytest.mark.bitsandbytes
@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="pip install 'accelkit[bitsandbytes]'")
def test_int8_weights_are_not_sharded(monkeypatch, error_text):
    for name, value in ranks.variables(0, 1, free_port()).items():
        monkeypatch.setenv(name, value)
    rt = accelkit.Runtime("cpu", strategy="fsdp", precision="bitsandbytes-8bit")
    with pytest.raises(accelkit.UnsupportedError, match="'fsdp'.*'bitsandbytes-8bit'") as caught:
        _ = rt.device
    assert all(part in caught.value.hint for part in ("precision='bitsandbytes-4bit'", "strategy='ddp'"))
    assert caught.value == error_text
