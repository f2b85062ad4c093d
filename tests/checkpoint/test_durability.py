"""What a save renames is on disk by then, to the last byte: a power failure finds the previous checkpoint or the new one, whole."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from accelkit.runtime.checkpoints import checkpoint

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="which file a descriptor is of is read from /proc")


class Disk:
    """What would be left of each path if the power failed now: what it held at its last flush."""

    def __init__(self, monkeypatch):
        self.flushed = {}
        self.renamed = []
        self._fsync, self._rename, self._replace = os.fsync, os.rename, os.replace
        for name in ("fsync", "rename", "replace"):
            monkeypatch.setattr(os, name, getattr(self, name))

    def fsync(self, descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        self._fsync(descriptor)
        self.flushed[path] = content(path)

    def rename(self, source, target):
        self._move(self._rename, Path(source), Path(target))

    def replace(self, source, target):
        self._move(self._replace, Path(source), Path(target))

    def _move(self, call, source, target):
        if target.name == "LATEST":
            steps = {name for name in content(target.parent) if name.startswith("step-")}
            assert steps <= set(self.flushed.get(target.parent, [])), "LATEST is replaced before the name of the step is on disk"
        moved = [source, *source.rglob("*")]
        unflushed = [path for path in moved if self.flushed.get(path) != content(path)]
        assert not unflushed, f"renamed to {target} before they were flushed: {unflushed}"
        call(source, target)
        self.flushed |= {target / path.relative_to(source): self.flushed[path] for path in moved}
        self.renamed.append(target.name)


def content(path):
    return sorted(os.listdir(path)) if path.is_dir() else path.read_bytes()


def test_everything_is_flushed_before_it_gets_its_name_and_the_name_after(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    state = {"weight": torch.arange(5.0), "step": 3}
    step = checkpoint.save(tmp_path / "ckpt", {"model_0": state}, per_rank={"random_state": {"seed": torch.tensor([7])}})
    assert disk.renamed == [".metadata", step.name, "LATEST"]
    assert disk.flushed[step.parent] == ["LATEST", step.name]
