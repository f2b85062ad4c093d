"""What tests of reports share: the command line, and a bundle that was packed."""

from __future__ import annotations

import pytest
from command_runner import command_runner
from example_reports import make_report

from accelkit.cli import main
from accelkit_conformance.reports import WRITERS


@pytest.fixture
def cli():
    def invoke(command, *arguments):
        return command_runner().invoke(main, ["conformance", command, *map(str, arguments)])

    return invoke


@pytest.fixture
def packed(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELKIT_DISABLE", "other")

    def pack(report=None):
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        (folder / "worker-1.log").write_bytes(b"x" * 300_000 + b"the end")
        path = tmp_path / "bundle.tar"
        WRITERS["bundle"](report or make_report(), path, folder)
        return path

    return pack
