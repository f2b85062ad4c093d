"""The language model of examples/transformer.py, on meshes of real processes."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from preloaded import run

sys.path.append(str(Path(__file__).parents[1] / "distributed"))
import ranks

KILLED = str(Path(__file__).with_name("killed_at_step.py"))
SCRIPT = str(Path(__file__).parents[2] / "examples" / "transformer.py")
SMALL = (
    "--max-bytes",
    "30000",
    "--length",
    "64",
    "--width",
    "64",
    "--layers",
    "1",
    "--batch-size",
    "16",
    "--precision",
    "64-true",
    "--epochs",
    "2",
)


def epochs(text: str) -> list[str]:
    return re.findall(r"^epoch .*$", text, re.MULTILINE)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The losses of two epochs on one device, which have 26 steps each, and a plot of them."""
    path = tmp_path_factory.mktemp("plot") / "loss.svg"
    result = run([SCRIPT, *SMALL, "--accelerator", "cpu", "--plot", str(path)], os.environ)
    assert result.returncode == 0, result.stderr
    assert "<svg" in path.read_text()
    assert len(epochs(result.stdout)) == 2
    return epochs(result.stdout)


@pytest.mark.parametrize("accelerator", [pytest.param("cpu", marks=pytest.mark.soak), "fake_xpu"])
def test_a_job_that_was_killed_continues_on_another_mesh_with_the_losses_of_one_device(accelerator, alone, tmp_path):
    job = (SCRIPT, *SMALL, "--accelerator", accelerator, "--checkpoints", str(tmp_path))
    codes, texts = ranks.outcome(KILLED, 4, "30", *job, "--parallel", "shard=2,tensor=2")
    assert codes == [-9] * 4, texts
    (text, _) = ranks.run(job[0], 2, *job[1:], "--parallel", "context=2")
    assert "continued after step 26" in text
    assert epochs(text) == alone[1:]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--parallel", "tensors=2"), "tensors=2 is not the size of a dimension"),
        (("--parallel", "context"), "context= is not the size of a dimension"),
        (("--parallel", "shard=2"), "shard 2 x context 1 x tensor 1 needs 2 processes, and the job has 1"),
        (("--width", "48"), "--width 48 is not a multiple of 32"),
        (("--max-bytes", "1000"), "the text is too short for --batch-size 16"),
    ],
)
def test_a_mistake_is_explained(arguments, said):
    result = run([SCRIPT, *SMALL, "--accelerator", "cpu", *arguments], os.environ)
    assert result.returncode == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_heads_that_cannot_be_divided_among_the_processes_are_an_error_that_names_both():
    _, texts = ranks.outcome(SCRIPT, 2, *SMALL, "--width", "32", "--accelerator", "cpu", "--parallel", "tensor=2,shard=1")
    assert any("--parallel tensor=2,shard=1 does not fit --width 32" in text and "heads in each layer is 1" in text for text in texts), (
        texts
    )
