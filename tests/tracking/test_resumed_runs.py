"""A run that is killed and continues from a checkpoint has one continuous curve in every tracker."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import preloaded
from run_records import events, from_csv, from_jsonl, from_tensorboard

PROGRAM = Path(__file__).with_name("resumed_program.py")


def train(folder: Path, *trackers: str, killed_at: int = -1) -> str:
    """Train in a process of its own. Return the outcome that the trackers were told at its exit; an empty string if it was killed."""
    result = preloaded.run([str(PROGRAM), str(killed_at), *trackers], os.environ, cwd=folder)
    assert result.returncode == (0 if killed_at < 0 else -signal.SIGKILL), result.stderr
    return result.stdout


def test_a_killed_run_continues_its_curves(tmp_path):
    trackers = ("csv", "jsonl", "tensorboard")
    assert train(tmp_path, *trackers, killed_at=7) == ""
    assert train(tmp_path, *trackers) == "finished\n"
    (folder,) = (tmp_path / "runs").iterdir()
    expected = [(step, float(step if step <= 5 else step + 100)) for step in range(10)]
    assert from_csv(folder) == from_jsonl(folder) == expected
    assert from_tensorboard(folder) == expected
    assert from_csv(folder, "accuracy") == from_jsonl(folder, "accuracy") == from_tensorboard(folder, "accuracy")
    assert from_csv(folder, "accuracy") == [(2, 0.5), (5, 0.5), (8, 0.5)]
    recorded = json.loads((folder / "hyperparameters.json").read_text())
    assert recorded["learning_rate"] == 0.5
    assert recorded["accelkit"]["accelerator"] == "cpu"
    content = events(folder).SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"model/depth" in content
    assert b"accelkit/decision" in content


def test_a_run_that_was_killed_before_its_first_checkpoint_is_kept_beside_the_new_one(tmp_path):
    train(tmp_path, "jsonl", killed_at=1)
    train(tmp_path, "jsonl")
    first, second = sorted((tmp_path / "runs").iterdir())
    assert from_jsonl(first) == [(0, 0.0), (1, 1.0)]
    assert from_jsonl(second) == [(step, float(step)) for step in range(10)]
