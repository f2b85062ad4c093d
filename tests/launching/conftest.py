"""Fixtures of the tests of launching."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from launch_command import Launch


@pytest.fixture
def script(tmp_path):
    def write(*parts: str, name: str = "train.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(textwrap.dedent(part) for part in parts))
        return path

    return write


@pytest.fixture
def launch(tmp_path):
    running = []

    def start(*arguments: object, **environ: str) -> Launch:
        running.append(Launch(tmp_path, *arguments, **environ))
        return running[-1]

    yield start
    for one in running:
        if one.process.stdout is not None and not one.process.stdout.closed:
            one.process.kill()
            out, err = one.process.communicate()
            print(f"{one.process.args} was still running. It had printed:\n{out}\n{err}")  # pytest shows this if the test failed
