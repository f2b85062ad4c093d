"""What tests share: the command line, forked workers, and a bundle that was packed."""

from __future__ import annotations

import sys

import preloaded
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
def forked_workers(monkeypatch):
    """Fork the worker processes of the suite, and the processes that they start, with torch and its database of operators imported.

    For tests that do not test how a worker starts, or what becomes of a run whose processes are killed.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as the forked interpreters have it
    monkeypatch.setattr(sys, "executable", str(preloaded.programs("operator_database") / "python"))


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
