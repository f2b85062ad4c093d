{% set is_library = cookiecutter.__torch_package == "torch" and cookiecutter.__torch_device != "torch:cpu" %}
"""Tests of the probe, which must always return a result, with a reason and a hint."""

from __future__ import annotations

{% if cookiecutter.__has_backend %}
from pathlib import Path

{% endif %}
import pytest
from accelkit import Availability

{% if is_library %}
from {{ cookiecutter.__package }} import accelerator
{% endif %}
from {{ cookiecutter.__package }}.accelerator import {{ cookiecutter.__class }}Accelerator


def test_it_answers_and_says_why() -> None:
    answer = {{ cookiecutter.__class }}Accelerator.probe()
    assert isinstance(answer, Availability)
    assert answer.reason
    assert answer.is_usable or answer.hint


def test_what_it_calls_usable_computes(device_status: str) -> None:
    if not {{ cookiecutter.__class }}Accelerator.probe().is_usable:
        pytest.skip({{ cookiecutter.__class }}Accelerator.probe().reason)
    assert device_status == "usable"
{% if is_library %}


def test_without_the_driver_it_says_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "LIBRARY", "libnowhere.so.7")
    answer = {{ cookiecutter.__class }}Accelerator.probe()
    assert answer.status == "absent"
    assert "libnowhere.so.7" in answer.reason
    assert "driver" in answer.hint
{% elif cookiecutter.__has_backend %}


def test_without_a_compiler_it_says_what_would_help(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("{{ cookiecutter.accelerator.upper() }}_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "compiler_that_is_nowhere")
    answer = {{ cookiecutter.__class }}Accelerator.probe()
    assert answer.status == "absent"
    assert "compiler_that_is_nowhere" in answer.reason
    assert "install a C++ compiler" in answer.hint
{% elif cookiecutter.__torch_device != "torch:cpu" %}


def test_without_the_package_it_says_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
{% if cookiecutter.__device_type == "xla" %}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
{% else %}
    monkeypatch.setattr({{ cookiecutter.__class }}Accelerator, "torch_package", "package_that_is_nowhere")
{% endif %}
    answer = {{ cookiecutter.__class }}Accelerator.probe()
    assert answer.status == "absent"
    assert answer.hint
{% endif %}
