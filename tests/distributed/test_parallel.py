"""Strategy ``parallel`` on real processes: what they compute is what one process computes, and checkpoints change the mesh."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import ranks
import torch

HYBRID, LAYERS, COPIES = "replicate=2 shard=2", "shard=2 tensor=2", "replicate=2 tensor=2 shard=1"
CUBE, FOUR = "replicate=2 shard=2 tensor=2", "shard=1 tensor=4"
PARTS, PARTS_OF_LAYERS, COPIED_PARTS = "shard=2 context=2", "context=2 tensor=2", "replicate=2 shard=2 context=2"
LAYOUTS = {  # and their numbers of processes
    HYBRID: 4,
    LAYERS: 4,
    COPIES: 4,
    "shard=4": 4,
    "replicate=4 shard=1": 4,
    FOUR: 4,
    CUBE: 8,
    "replicate=1 shard=4 tensor=2": 8,
    "replicate=2 shard=4": 8,
    "shard=8": 8,
    "shard=1 tensor=2 plan=sequence": 2,
    f"{LAYERS} plan=sequence": 4,
    f"{COPIES} plan=sequence": 4,
    f"{CUBE} plan=sequence": 8,
    PARTS: 4,
    PARTS_OF_LAYERS: 4,
    COPIED_PARTS: 8,
    "context=2": 2,
    "shard=1 context=4": 4,
    "context=2 tensor=2 plan=sequence": 4,
}


def named(sizes):
    return sizes.replace(" ", "-")


@pytest.mark.smoke
def test_a_checkpoint_of_copied_shards_is_loaded_into_shards_of_parts_of_layers(tmp_path):
    run("fake_xpu", tmp_path, 4, f"trains {HYBRID}", f"loads {named(HYBRID)} {LAYERS}")


@pytest.mark.parametrize("accelerator", [pytest.param("cpu", marks=pytest.mark.soak), "fake_xpu"])
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


@pytest.mark.parametrize("accelerator", [pytest.param("cpu", marks=pytest.mark.soak), "fake_xpu"])
def test_steps_with_parts_of_sequences_are_those_of_one_process_and_a_checkpoint_changes_the_mesh(accelerator, tmp_path):
    cases = [f"trains {PARTS}", f"loads {named(PARTS)} shard=4", f"loads {named(PARTS)} {HYBRID}"]
    run(accelerator, tmp_path, 4, *cases, f"trains {PARTS_OF_LAYERS}", f"loads {named(PARTS)} {PARTS_OF_LAYERS}")
    run(accelerator, tmp_path, 1, f"loads {named(PARTS)}", f"loads {named(PARTS_OF_LAYERS)}")


def test_layers_in_four_parts(tmp_path):
    run("cpu", tmp_path, 4, f"trains {FOUR}", f"loads {named(FOUR)} {LAYERS}")


def test_three_dimensions_on_eight_processes(tmp_path):
    """Two copies of two shards of two parts of each layer, and their checkpoint without parts of layers."""
    run("fake_xpu", tmp_path, 8, f"trains {CUBE}", f"loads {named(CUBE)} replicate=2 shard=4")


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("accelerator", ["cpu", "fake_xpu"])
def test_every_checkpoint_can_be_loaded_in_every_layout(accelerator, tmp_path):
    for layout, size in LAYOUTS.items():
        run(accelerator, tmp_path, size, f"trains {layout}")
    for layout, size in LAYOUTS.items():
        run(accelerator, tmp_path, size, *(f"loads {named(saved)} {layout}" for saved in LAYOUTS))
    run(accelerator, tmp_path, 1, *(f"loads {named(saved)}" for saved in LAYOUTS))


@pytest.mark.parametrize(("layout", "size"), [(LAYERS, 4), ("context=2", 2)])
def test_a_killed_rank_costs_no_bit(layout, size, tmp_path):
    killed(tmp_path, "fake_xpu", layout, size, victim=size - 1)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("accelerator", ["cpu", "fake_xpu"])
def test_a_killed_rank_costs_no_bit_in_any_layout(accelerator, tmp_path):
    for number, (layout, size) in enumerate(LAYOUTS.items()):
        victim = number % size
        killed(tmp_path / named(layout), accelerator, layout, size, victim)
        print(f"rank {victim} of {size} of {layout} killed on {accelerator}: the same weights", flush=True)


def killed(folder: Path, accelerator: str, layout: str, size: int, victim: int) -> None:
    """Kill a rank one batch after a checkpoint, start the job again, and compare its weights with those of an undisturbed job."""
    found = []
    for name, kills in (("undisturbed", "-"), ("killed", f"{victim}@7")):
        (folder / name).mkdir(parents=True)
        arguments = ["recovery_program.py", size, str(folder / name), layout, kills]
        environ = {"ACCELKIT_ACCELERATOR": accelerator}
        if kills != "-":
            codes, texts = ranks.outcome(*arguments, environ=environ)
            assert codes[victim] == -signal.SIGKILL, texts[victim]
            assert all(codes), texts[codes.index(0)]
        texts = ranks.run(*arguments, environ=environ | {"TORCHELASTIC_RESTART_COUNT": "1"})
        assert ("resumed after step 6" in texts[0]) == (kills != "-"), texts[0]
        found.append(torch.load(folder / name / "weights.pt"))
    assert found[0].keys() == found[1].keys()
    different = [name for name in found[0] if not torch.equal(found[0][name], found[1][name])]
    assert not different, f"{layout} on {accelerator}"


def run(accelerator, folder, size, *cases):
    texts = ranks.run("parallel_program.py", size, accelerator, str(folder), *cases, seconds=600)
    assert all(text.count("done") == len(cases) for text in texts)
    lines = [line for line in texts[0].splitlines() if line.startswith(("LARGEST", "done"))]
    print(f"{size} processes on {accelerator}:", *lines, sep="\n  ", flush=True)


def test_loaders_and_plans(tmp_path, error_text):
    """Samples of a tensor-parallel group, sequences, torch's layers, tied parameters, norms, the meta device, and what is refused."""
    cases = ["reads shard=2 tensor=2", "reads shard=2 context=2", "reads shard=1 tensor=4", "plans shard=2 tensor=2"]
    cases += [f"trains {LAYERS} plan=sequence", f"layers {LAYERS}"]
    texts = ranks.run("parallel_program.py", 4, "cpu", str(tmp_path), *cases)
    assert all(text.count("done") == len(cases) for text in texts)
    for line in dict.fromkeys(line for line in texts[0].splitlines() if line.startswith("REFUSED")):
        assert line == error_text
