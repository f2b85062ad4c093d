"""Strategy ``parallel`` on four real processes: what they compute is what one process computes, and checkpoints change the mesh."""

from __future__ import annotations

import pytest
import ranks

HYBRID, LAYERS, COPIES = "replicate=2 shard=2", "shard=2 tensor=2", "replicate=2 tensor=2 shard=1"


def named(sizes):
    return sizes.replace(" ", "-")


@pytest.mark.parametrize("accelerator", ["cpu", pytest.param("fake_xpu", marks=pytest.mark.smoke)])
def test_steps_are_those_of_one_process_and_a_checkpoint_changes_the_mesh(accelerator, tmp_path):
    cases = [
        f"trains {HYBRID}",
        f"loads {named(HYBRID)} {LAYERS}",
        f"trains {LAYERS}",
        f"loads {named(LAYERS)} shard=4",
        f"trains {COPIES}",
        f"loads {named(COPIES)} {HYBRID}",
    ]
    for text in ranks.run("parallel_program.py", 4, accelerator, str(tmp_path), *cases):
        assert text.count("done") == len(cases)
    alone = [f"loads {named(sizes)}" for sizes in (HYBRID, LAYERS, COPIES)]
    (text,) = ranks.run("parallel_program.py", 1, accelerator, str(tmp_path), *alone)
    assert text.count("done") == len(alone)


def test_loaders_and_plans(error_text):
    """Samples of a tensor-parallel group, tied parameters, norms, models from the meta device, and what is refused."""
    cases = ["reads shard=2 tensor=2", "reads shard=1 tensor=4", "plans shard=2 tensor=2"]
    texts = ranks.run("parallel_program.py", 4, "cpu", "-", *cases)
    assert all(text.count("done") == len(cases) for text in texts)
    for line in dict.fromkeys(line for line in texts[0].splitlines() if line.startswith("REFUSED")):
        assert line == error_text
