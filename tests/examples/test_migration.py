"""The scripts of examples/migration: each computes the same before and after its move to accelkit, and survives being killed."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from preloaded import run

sys.path.append(str(Path(__file__).parents[1] / "distributed"))
import ranks

FOLDER = Path(__file__).parents[2] / "examples" / "migration"
KILLED = Path(__file__).with_name("killed_at_step.py")
ON_CPU = ("--accelerator", "cpu")


def losses(text: str) -> list[str]:
    """The lines with results, which show every bit of them."""
    return re.findall(r"^(?:epoch|batch|best) .*$", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("before", "arguments", "after"),
    [
        ("cnn_plain_pytorch.py", (), "cnn_accelkit.py"),
        ("transformer_accelerate.py", (), "transformer_accelkit.py"),
        ("gan_fabric.py", ON_CPU, "gan_accelkit.py"),
    ],
    ids=["cnn", "transformer", "gan"],
)
def test_the_moved_script_computes_the_same_numbers(before, arguments, after, tmp_path):
    texts = []
    for script, rest in ((before, arguments), (after, ON_CPU)):
        result = run([str(FOLDER / script), "--epochs", "3", *rest], os.environ | {"ACCELERATE_USE_CPU": "true"}, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        texts.append(losses(result.stdout))
    assert len(texts[0]) >= 3
    assert texts[0] == texts[1]


SOAK = pytest.mark.soak


@pytest.mark.parametrize(
    ("script", "killed_at", "size"),
    [
        ("transformer_accelkit.py", 21, 2),  # its last checkpoint is that of the end of an epoch
        pytest.param("transformer_accelkit.py", 25, 1, marks=SOAK),
        pytest.param("cnn_accelkit.py", 20, 2, marks=SOAK),
        pytest.param("cnn_accelkit.py", 40, 1, marks=SOAK),
        pytest.param("gan_accelkit.py", 45, 2, marks=SOAK),
        pytest.param("gan_accelkit.py", 90, 1, marks=SOAK),
    ],
)
def test_a_run_that_was_killed_ends_with_the_same_losses(script, killed_at, size, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = (str(FOLDER / script), "--accelerator", "fake_xpu")
    undisturbed = losses(ranks.run(job[0], size, *job[1:], "--checkpoint", "undisturbed")[0])
    codes, texts = ranks.outcome(str(KILLED), size, str(killed_at), *job, "--checkpoint", "killed")
    assert codes == [-9] * size, texts
    resumed = losses(ranks.run(job[0], size, *job[1:], "--checkpoint", "killed")[0])
    assert 0 < len(resumed) < len(undisturbed)
    assert resumed == undisturbed[-len(resumed) :]
