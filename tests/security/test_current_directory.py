"""Modules in the current directory are not imported, by a command or by a process that it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAP = "import pathlib; pathlib.Path(__file__).with_name('ran-' + __name__).touch(); raise SystemExit(3)\n"


@pytest.fixture
def trapped(tmp_path):
    """A folder whose modules have the names of those that children import first."""
    for name in ("json.py", "torch.py", "faulthandler.py", "dataclasses.py", "accelkit_conformance.py", "accelkit_builtin.py"):
        (tmp_path / name).write_text(TRAP)
    (tmp_path / "accelkit").mkdir()
    (tmp_path / "accelkit" / "__init__.py").write_text(TRAP)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["list"], 0),
        (["why", "cpu"], 0),
        (["why", "--cluster"], 0),
        (["info", "cpu"], 0),
        (["probe", "cpu"], 0),
        (["doctor", "cpu"], 0),
        (["conformance", "run", "cpu", "--profile", "smoke", "--select", "contract"], 0),
    ],
    ids=lambda words: "-".join(words[:2]) if isinstance(words, list) else "",
)
def test_no_module_of_the_current_directory_runs(trapped, command, code):
    program = Path(sys.executable).with_name("accelkit")
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    environ |= {"ACCELKIT_CACHE_DIR": str(trapped / "cache"), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run([program, *command], cwd=trapped, env=environ, capture_output=True, text=True, check=False, timeout=200)
    assert not list(trapped.rglob("ran-*")), done.stdout + done.stderr
    assert done.returncode == code, done.stdout + done.stderr


def test_what_is_beside_a_script_is_found_by_the_processes_that_ask_plugins(tmp_path):
    """``python there/train.py`` puts ``there`` first: a plugin in it is the user's."""
    there, elsewhere = tmp_path / "there", tmp_path / "elsewhere"
    metadata = there / "beside-1.0.dist-info"
    metadata.mkdir(parents=True)
    elsewhere.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: beside\nVersion: 1.0\nRequires-Dist: accelkit\n")
    (metadata / "entry_points.txt").write_text("[accelkit.accelerators]\nbeside = beside:Beside\n")
    (there / "beside.py").write_text(
        "import accelkit\n"
        "class Beside(accelkit.Accelerator):\n"
        "    device_type = 'cpu'\n"
        "    @classmethod\n"
        "    def probe(cls): return accelkit.Availability.usable('it is beside the script')\n"
    )
    (there / "train.py").write_text("import accelkit\nprint(accelkit.Runtime('beside').accelerator.plugin)\n")
    environ = os.environ | {"ACCELKIT_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, str(there / "train.py")], cwd=elsewhere, env=environ, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.stdout.strip() == "beside==1.0", done.stderr


LAUNCHING = """
import os, accelkit

def work(rt):
    return [rt.num_processes, os.environ.get("PYTHONSAFEPATH")]

if __name__ == "__main__":
    print(accelkit.Runtime("cpu", devices=2).launch(work))
"""


@pytest.mark.parametrize("safe_path", [None, "1"])
def test_processes_that_a_script_starts_import_nothing_from_the_current_directory(trapped, tmp_path_factory, safe_path):
    script = tmp_path_factory.mktemp("program") / "script.py"
    script.write_text(LAUNCHING)
    for name in ("multiprocessing", "signal", "pickle", "accelkit"):
        (trapped / f"{name}.py").write_text(TRAP)
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    environ |= {"PYTHONSAFEPATH": safe_path} if safe_path else {}
    done = subprocess.run([sys.executable, str(script)], cwd=trapped, env=environ, capture_output=True, text=True, check=False, timeout=200)
    assert not list(trapped.rglob("ran-*")), done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"[2, {safe_path!r}]", done.stderr
