"""The allow list: what it refuses runs nowhere, and nobody gets in under accelkit's name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RAN = "import pathlib; pathlib.Path(__file__).with_name('ran').touch()\n"
STRANGER = "import accelkit\nclass Stranger(accelkit.Accelerator):\n    device_type = 'cpu'\n"


@pytest.fixture
def distribution(tmp_path):
    """Install a distribution (its metadata and one module, ``stranger``) in a folder that comes first on the path."""

    def install(name: str, entry_points: str) -> Path:
        metadata = tmp_path / "first" / f"{name}-9.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.0\nRequires-Dist: accelkit\n")
        (metadata / "entry_points.txt").write_text(entry_points)
        (tmp_path / "first" / "stranger.py").write_text(RAN + STRANGER)
        return tmp_path / "first"

    return install


def accelkit(folder, *command, **environ):
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    env = os.environ | {"PYTHONPATH": path, "ACCELKIT_CACHE_DIR": str(folder / "cache"), "ACCELKIT_PLUGINS": "none"} | environ
    program = Path(sys.executable).with_name("accelkit")
    return subprocess.run([program, *command], env=env, capture_output=True, text=True, check=False, timeout=200)


def test_doctor_imports_no_backend_of_a_refused_distribution(distribution):
    folder = distribution("vendor", "[torch.backends]\nstranger = stranger:load\n[accelkit.accelerators]\nstranger = stranger:Stranger\n")
    done = accelkit(folder, "doctor", "cpu", TORCH_DEVICE_BACKEND_AUTOLOAD="1")
    assert not (folder / "ran").exists()
    assert done.returncode == 0, done.stdout + done.stderr


def test_nobody_is_trusted_under_the_name_of_accelkit(distribution):
    folder = distribution("accelkit", "[accelkit.accelerators]\ncpu = stranger:Stranger\nstranger = stranger:Stranger\n")
    rows = json.loads(accelkit(folder, "list", "--json").stdout)["plugins"]
    found = {row["name"]: row for row in rows if row["status"] in ("available", "usable")}
    assert found["cpu"]["distribution"] == "accelkit"
    assert "stranger" not in found
    done = accelkit(folder, "doctor", "stranger")
    assert done.returncode != 0
    assert not (folder / "ran").exists()
