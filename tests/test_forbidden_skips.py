"""``--forbid-skips``: where everything is installed, a skipped test has shown nothing and is a failure."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from suite_parts import ROOT

TESTS = """
import pytest

@pytest.mark.slurm
def test_skipped():
    pytest.skip("no scheduler here")

@pytest.mark.slurm
@pytest.mark.skipif(True, reason="not here")
def test_skipped_by_mark():
    pass

@pytest.mark.ray
def test_of_another_mark():
    pytest.skip("no Ray here")

@pytest.mark.slurm
@pytest.mark.xfail(strict=True)
def test_that_is_expected_to_fail():
    raise ValueError
"""


pytestmark = pytest.mark.usefixtures("forked_interpreters")


@pytest.fixture
def run(tmp_path):
    (tmp_path / "test_some.py").write_text(TESTS)

    def with_arguments(*arguments, **environ):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", ROOT / "pyproject.toml", "--rootdir", ROOT]
        command += ["--confcutdir", tmp_path, "-p", "conftest", *arguments, tmp_path]
        path = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
        environ = os.environ | environ | {"PYTHONPATH": path}
        # Where tests/conftest.py is the first module of that name.
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environ, cwd=ROOT / "tests")

    return with_arguments


def test_a_skip_of_a_named_marker_fails(run):
    assert run().returncode == 0
    for result in (run("--forbid-skips", "slurm,mpich"), run(FORBID_SKIPS="slurm,mpich")):
        assert result.returncode == 1, result.stdout
        assert "skipped, which --forbid-skips forbids for slurm" in result.stdout
        assert "no scheduler here" in result.stdout
        assert "1 failed, 1 skipped, 1 xfailed, 1 error" in result.stdout


def test_a_marker_that_does_not_exist_is_an_error(run):
    result = run("--forbid-skips", "slrum")
    assert result.returncode == 4
    assert "--forbid-skips contains unknown markers: slrum" in result.stderr
