"""kill -9 at every write, flush and rename of a save: the previous checkpoint or the new one, whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="file operations are intercepted with LD_PRELOAD, which is Linux's")


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    library = tmp_path_factory.mktemp("shim") / "kill_at.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, HERE / "kill_at.c", "-ldl"], check=True)
    return library


def kill_saves(shim, folder, count, program="killed_saves_program.py"):
    result = subprocess.run(
        [sys.executable, HERE / program, folder, str(count)],
        env=os.environ | {"LD_PRELOAD": str(shim), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_ten_kills(shim, tmp_path):
    found = kill_saves(shim, tmp_path / "ckpt", 10)
    assert found["killed_inside"] == 10
    assert {outcome["found"] for outcome in found["outcomes"]} == {"previous", "new"}, "kills before and after the rename"


def test_kills_of_one_of_two_processes(shim, tmp_path):
    found = kill_saves(shim, tmp_path / "ckpt", 6, "killed_ranks_program.py")
    assert found["killed_inside"] == 6
    assert {outcome["rank"] for outcome in found["outcomes"]} == {0, 1}
    assert {outcome["found"] for outcome in found["outcomes"]} == {"previous", "new"}, "kills before and after the rename"


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_fifty_kills_of_one_of_two_processes(shim, tmp_path):
    found = kill_saves(shim, tmp_path / "ckpt", 50, "killed_ranks_program.py")
    print(f"{found['operations']} operations a save by rank; {found['killed_inside']} of {len(found['outcomes'])} kills were inside a save")
    assert len(found["outcomes"]) == 50
    assert found["killed_inside"] >= 40


@pytest.mark.soak
def test_fifty_kills(shim, tmp_path):
    found = kill_saves(shim, tmp_path / "ckpt", 50)
    print(f"{found['operations']} operations a save; {found['killed_inside']} of {len(found['outcomes'])} kills were inside a save")
    assert len(found["outcomes"]) == 50
    assert found["killed_inside"] >= 40
