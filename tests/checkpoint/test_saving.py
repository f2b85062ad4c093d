"""Saving through a Runtime of one process: in the background, keeping the last few, and what older versions wrote."""

from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

import accelkit
from accelkit import CheckpointError, UsageError, hookimpl
from accelkit.runtime.checkpoints import checkpoint, loading, step_dirs
from accelkit.runtime.checkpoints.atomic_io import FilePart

HERE = Path(__file__).parent


class Saved:
    """Notes what was saved, and can refuse."""

    def __init__(self):
        self.paths = []

    @hookimpl
    def checkpoint_saved(self, path):
        assert (path / "manifest.json").exists()
        self.paths.append(path.name)


def runtime(*hooks):
    return accelkit.Runtime(accelerator="cpu", strategy="single_device", hooks=hooks)


def test_in_the_background_what_is_written_is_what_was_there(tmp_path):
    hook = Saved()
    rt = runtime(hook)
    model = rt.prepare(nn.Linear(1500, 1500))
    for value in range(3):
        with torch.no_grad():
            model.weight.fill_(value)
        assert rt.save_state(tmp_path, is_async=True) == tmp_path / f"step-{value}"
        with torch.no_grad():
            model.weight.fill_(7)
    rt.load_state(tmp_path)
    assert model.weight.unique().tolist() == [2], "loading waits for the save"
    assert hook.paths == ["step-0", "step-1", "step-2"]
    for value in range(3):
        assert checkpoint.load(tmp_path / f"step-{value}")["model_0"]["weight"].unique().tolist() == [value]


@pytest.mark.parametrize("notices", ["wait_for_saves", "save_state", "load_state"])
def test_an_error_in_the_background_is_raised_where_it_is_noticed_and_once(tmp_path, notices, error_text):
    rt = runtime()
    rt.prepare(nn.Linear(2, 2))
    rt.save_state(tmp_path)
    (tmp_path / "LATEST.tmp").mkdir()  # where the last file of a save is written
    rt.save_state(tmp_path, is_async=True)
    with pytest.raises(CheckpointError) as caught:
        getattr(rt, notices)(*() if notices == "wait_for_saves" else (tmp_path,))
    assert "IsADirectoryError" in caught.value.why
    assert caught.value == error_text
    assert step_dirs.find(tmp_path) == tmp_path / "step-0"
    (tmp_path / "LATEST.tmp").rmdir()
    rt.wait_for_saves()
    assert rt.save_state(tmp_path) == tmp_path / "step-2"
    rt.load_state(tmp_path)


class Unsafe:
    def state_dict(self):
        return {"names": object()}

    def load_state_dict(self, state):
        raise AssertionError(state)


def test_what_cannot_be_saved_is_refused_before_the_background(tmp_path, error_text):
    rt = runtime()
    rt.register_for_checkpointing(Unsafe())
    with pytest.raises(CheckpointError) as caught:
        rt.save_state(tmp_path, is_async=True)
    assert "custom_0.names" in caught.value.what
    assert caught.value == error_text
    rt.wait_for_saves()


def test_trackers_are_closed_even_if_the_last_save_fails(tmp_path):
    closed = []

    class Recorder(accelkit.tracking.Tracker):
        def log(self, values, step):
            pass

        def close(self, outcome):
            closed.append(outcome)

    rt = accelkit.Runtime(accelerator="cpu", trackers=[Recorder()])
    rt.prepare(nn.Linear(2, 2))
    rt.log({"loss": 1.0}, step=0)
    (tmp_path / "LATEST.tmp").mkdir()  # where the last file of a save is written
    rt.save_state(tmp_path, is_async=True)
    with pytest.raises(CheckpointError):
        rt.teardown()
    assert closed == ["finished"]


PROGRAM = """
import atexit, sys, torch, accelkit
rt = accelkit.Runtime(accelerator="cpu", strategy="single_device")
rt.prepare(torch.nn.Linear(1500, 1500))
atexit.register(print, "the last words")
rt.save_state(sys.argv[1], is_async=True)
"""
IN_A_FUNCTION = f"""
def main():
{textwrap.indent(PROGRAM, "    ")}
main()
"""


@pytest.mark.parametrize("program", [PROGRAM, IN_A_FUNCTION], ids=["module", "function"])
@pytest.mark.parametrize("ends", ["well", "fails"])
def test_the_programs_end_waits(tmp_path, program, ends, error_text):
    if ends == "fails":
        (tmp_path / "LATEST.tmp").mkdir()
    result = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=False)
    assert result.returncode == int(ends == "fails"), "a scheduler sees that the last checkpoint is missing"
    assert result.stdout == "the last words\n", "functions of the program that run at exit have run, and the output is flushed"
    if ends == "well":
        assert result.stderr == ""
        assert checkpoint.load(tmp_path)["model_0"]["weight"].shape == (1500, 1500)
    else:
        assert result.stderr.startswith("accelkit: ")
        assert result.stderr.splitlines()[0] == error_text
        assert "IsADirectoryError" in result.stderr


def left(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_last_few_are_kept(tmp_path):
    rt = runtime()
    rt.prepare(nn.Linear(2, 2))
    for _ in range(4):
        rt.save_state(tmp_path)
    rt.save_state(tmp_path, keep_last=2)
    assert left(tmp_path) == ["LATEST", "step-3", "step-4"]
    rt.save_state(tmp_path, keep_last=1)
    assert left(tmp_path) == ["LATEST", "step-5"]
    rt.save_state(tmp_path, is_async=True, keep_last=7)
    rt.wait_for_saves()
    assert left(tmp_path) == ["LATEST", "step-5", "step-6"]
    for wrong in (0, -1, True, "2", 1.5):
        with pytest.raises(UsageError, match=f"keep_last must be a whole number of at least 1, got {wrong!r}"):
            rt.save_state(tmp_path, keep_last=wrong)


def test_the_one_just_saved_stays_whatever_its_number(tmp_path):
    for number in (7, 5, 9):
        checkpoint.save(tmp_path, {}, step=number)
    checkpoint.save(tmp_path, {}, step=1, keep_last=2)
    assert left(tmp_path) == ["LATEST", "step-1", "step-9"]


@pytest.mark.skipif(sys.platform == "win32", reason="files are not locked there")
def test_one_that_somebody_loads_is_not_removed(tmp_path):
    for _ in range(3):
        checkpoint.save(tmp_path, {})
    with step_dirs.in_use(tmp_path / "step-0"):
        checkpoint.save(tmp_path, {}, keep_last=1)
        assert left(tmp_path) == ["LATEST", "step-0", "step-3"]
    checkpoint.save(tmp_path, {}, keep_last=1)
    assert left(tmp_path) == ["LATEST", "step-4"]


@pytest.mark.skipif(sys.platform == "win32", reason="files are not locked there")
def test_the_newer_one_that_replaces_one_just_removed_is_not_removed_either(tmp_path, monkeypatch):
    """Another process saves and removes the step that a load has found, just before the load locks it."""
    import fcntl

    checkpoint.save(tmp_path, {})
    flock = fcntl.flock

    def late(file, operation):
        if operation == fcntl.LOCK_SH:
            monkeypatch.setattr(fcntl, "flock", flock)
            checkpoint.save(tmp_path, {}, keep_last=1)
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with contextlib.ExitStack() as stack:
        assert loading._find_and_hold(tmp_path, stack) == tmp_path / "step-1"
        checkpoint.save(tmp_path, {}, keep_last=1)
        assert left(tmp_path) == ["LATEST", "step-1", "step-2"]


def test_one_that_cannot_be_removed_is_said_and_the_new_one_is_there(tmp_path, error_text):
    checkpoint.save(tmp_path, {})
    (tmp_path / "step-0.tmp").mkdir()
    (tmp_path / "step-0.tmp" / "file").write_text("")
    with pytest.warns(UserWarning, match="step-0") as caught:
        step_dirs.keep_last(tmp_path, tmp_path / "step-1", 1)
    assert caught[0] == error_text
    assert (tmp_path / "step-0" / "manifest.json").exists()


def test_what_the_first_format_wrote_loads(tmp_path):
    """``format_1`` was written by the first version: a linear layer after one step of AdamW, with random state."""
    rt = runtime()
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    model, optimizer = rt.prepare(model, optimizer)
    before = random.getstate()
    rt.load_state(HERE / "format_1")
    assert torch.allclose(model.weight, torch.full((2, 2), 2 * (1 - 0.001) - 0.1))
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert optimizer.state[model.weight]["exp_avg"].shape == (2, 2)
    assert torch.rand(1).item() == pytest.approx(0.7719, abs=1e-4)
    assert random.getstate() != before


def test_two_values_whose_paths_look_alike_are_both_saved(tmp_path):
    state = {"a.b": torch.zeros(2), "a": {"b": torch.ones(2)}, 1: torch.full((2,), 2.0), "1": torch.full((2,), 3.0)}
    checkpoint.save(tmp_path, {"custom_0": state})
    loaded = checkpoint.load(tmp_path)["custom_0"]
    assert [loaded["a.b"][0], loaded["a"]["b"][0], loaded[1][0], loaded["1"][0]] == [0, 1, 2, 3]


def test_a_part_of_a_file_is_a_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    with path.open("rb", buffering=0) as file:
        part = FilePart(file, 10, 30)
        assert part.seek(-2, os.SEEK_END) == 28
        assert part.read() == bytes([38, 39])
        assert (part.tell(), part.read(), part.read(5)) == (30, b"", b"")
        part.seek(0)
        assert part.read(4) == bytes([10, 11, 12, 13])
        assert part.seek(3, os.SEEK_CUR) == 7
        part.seek(50)
        assert part.read(1) == b""
        with io.BufferedReader(FilePart(file, 10, 30)) as buffered:  # asks the part whether it can be read and sought
            buffered.seek(2)
            assert buffered.read(2) == bytes([12, 13])
        part.seek(0)
        part.close()
        file.seek(0)
        assert file.read(1) == b"\0"


def test_the_oldest_checkpoints_are_removed_first(tmp_path, monkeypatch):
    for number in (0, 1, 2, 10):
        (tmp_path / f"step-{number}").mkdir()
    removed = []
    monkeypatch.setattr(step_dirs, "_remove", lambda step: removed.append(step.name))
    step_dirs.keep_last(tmp_path, tmp_path / "step-10", 1)
    assert removed == ["step-0", "step-1", "step-2"]


def test_without_a_prepared_object_there_is_nothing_to_save(tmp_path, error_text):
    with pytest.raises(UsageError) as caught:
        runtime().save_state(tmp_path)
    assert caught.value == error_text
    assert left(tmp_path) == []


class Counter:
    def __init__(self, **state):
        self.state = {"count": 3} | state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def test_a_forgotten_model_is_noticed_once(tmp_path):
    rt = runtime()
    rt.register_for_checkpointing(Counter())
    with pytest.warns(RuntimeWarning, match="will contain no model, because none was passed to rt.prepare") as caught:
        rt.save_state(tmp_path)
    assert [warning.filename for warning in caught] == [__file__]
    rt.save_state(tmp_path)


@pytest.mark.parametrize("thing", [nn.Linear(2, 2), nn.Identity(), Counter(deep=[{"weight": torch.ones(2)}])])
def test_a_registered_model_counts_as_a_model(tmp_path, thing):
    """A registered module, or a registered object with floating-point tensors, counts as a model."""
    rt = runtime()
    rt.register_for_checkpointing(Counter(), thing)
    rt.save_state(tmp_path)


def test_a_checkpoint_is_not_a_folder_of_checkpoints(tmp_path, error_text):
    rt = runtime()
    rt.prepare(nn.Linear(2, 2))
    step = rt.save_state(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        rt.save_state(step)
    assert caught.value.hint == f"save to its parent folder, {tmp_path}"
    assert caught.value == error_text
    assert left(step) == ["data", "manifest.crc32", "manifest.json"]


def test_the_hint_for_a_damaged_checkpoint_works_for_the_next_run(tmp_path):
    rt = runtime()
    rt.prepare(nn.Linear(2, 2))
    for _ in range(3):
        rt.save_state(tmp_path)
    (tmp_path / "step-2" / "data" / "__0_0.distcp").write_bytes(b"")
    with pytest.raises(CheckpointError, match="step-2 is damaged") as caught:
        rt.resume(tmp_path)
    folder = repr(str(tmp_path))
    then = f"rt.resume({folder}) and rt.load_state({folder}) then load {tmp_path / 'step-1'}"
    assert caught.value.hint == f"remove the folder {tmp_path / 'step-2'}; {then}"
    shutil.rmtree(tmp_path / "step-2")
    assert rt.resume(tmp_path)
    assert rt.save_state(tmp_path) == tmp_path / "step-2"


def test_resume_refuses_a_file_and_a_folder_whose_checkpoints_are_gone(tmp_path, error_text):
    rt = runtime()
    rt.prepare(nn.Linear(2, 2))
    assert not rt.resume(tmp_path / "new")
    assert not rt.resume(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="it is a file, and a checkpoint is a folder"):
        rt.resume(tmp_path / "file")
    shutil.rmtree(rt.save_state(tmp_path))
    with pytest.raises(CheckpointError) as caught:
        rt.resume(tmp_path)
    assert caught.value == error_text
    (tmp_path / "LATEST").unlink()
    assert not rt.resume(tmp_path)


@pytest.mark.parametrize("call", ["save_state", "load_state", "resume"])
@pytest.mark.parametrize("wrong", ["", None, 3])
def test_what_is_not_a_path_is_a_usage_error(tmp_path, monkeypatch, call, wrong):
    monkeypatch.chdir(tmp_path)
    rt = runtime()
    rt.prepare(nn.Linear(2, 2))
    with pytest.raises(UsageError, match=f"{wrong!r} is not a path"):
        getattr(rt, call)(wrong)
    assert left(tmp_path) == []


@pytest.mark.parametrize("when", ["before the files are written", "after the files are written"])
def test_another_program_that_saves_to_the_folder_is_suspected(tmp_path, monkeypatch, when, error_text):
    saving = checkpoint.Save(tmp_path, {"model_0": {"weight": torch.ones(2)}})
    write = saving._write

    def interrupted(*arguments):
        if when.startswith("before"):
            step_dirs.remove_leftovers(tmp_path)
        written = write(*arguments)
        step_dirs.remove_leftovers(tmp_path)
        return written

    monkeypatch.setattr(saving, "_write", interrupted)
    with pytest.raises(CheckpointError) as caught:
        saving.finish()
    assert caught.value == error_text
