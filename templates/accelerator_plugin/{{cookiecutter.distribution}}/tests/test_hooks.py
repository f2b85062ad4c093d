"""Tests of the hook plugin in a Runtime on the CPU."""

from __future__ import annotations

import logging
from pathlib import Path

import accelkit
import pytest
import torch


def test_it_logs_the_set_up_of_the_device_and_the_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with accelkit.Runtime(accelerator="cpu", hooks=["{{ cookiecutter.accelerator }}_hooks"]) as rt:
        rt.prepare(torch.nn.Linear(2, 1))
        rt.save_state(tmp_path)
    messages = [record.getMessage() for record in caplog.records if record.name.endswith(".hooks")]
    assert len(messages) == 2
    assert messages[0].startswith("cpu was set up in ")
    assert messages[1] == f"saved {tmp_path / 'step-0'}"
