"""Tests of the class that need no hardware: what accelkit requires before the class is used."""

from __future__ import annotations

import subprocess
import sys

import accelkit

from {{ cookiecutter.__package }}.accelerator import {{ cookiecutter.__class }}Accelerator

PROBE = """
import sys
from {{ cookiecutter.__package }}.accelerator import {{ cookiecutter.__class }}Accelerator
{{ cookiecutter.__class }}Accelerator.probe()
print("torch" in sys.modules)
"""


def test_the_entry_point_is_the_class() -> None:
    (record,) = [one for one in accelkit.plugins("accelerator") if one.name == "{{ cookiecutter.accelerator }}"]
    assert (record.distribution, record.status) == ("{{ cookiecutter.distribution }}", "available"), record.reason
    assert record.value == "{{ cookiecutter.__package }}.accelerator:{{ cookiecutter.__class }}Accelerator"


def test_importing_and_probing_import_no_torch() -> None:
    assert subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True).stdout == "False\n"


def test_an_instance_needs_no_arguments() -> None:
    assert {{ cookiecutter.__class }}Accelerator().device_type == "{{ cookiecutter.__device_type }}"


def test_it_declares_what_every_device_must() -> None:
    assert {{ cookiecutter.__class }}Accelerator.declared_capabilities["dtype.float32"] != "undeclared"
