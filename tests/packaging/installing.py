"""Builds distributions, and installs them where nothing of the source tree is seen."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECTS = {"accelkit": ROOT, "accelkit_fake_xpu": ROOT / "builtin_plugins" / "accelkit-fake-xpu"}


def build(source: Path, folder: Path, *what: str) -> Path:
    """The folder, with an sdist and the wheel that is built from it; with ``--wheel``, the wheel of the source tree."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, *what, source]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def wheel_in(folder: Path) -> Path:
    (found,) = folder.glob("*.whl")
    return found


def member(wheel: Path, name: str) -> str:
    """A file of the wheel's dist-info folder."""
    archive = zipfile.ZipFile(wheel)
    (found,) = [path for path in archive.namelist() if path.endswith(f".dist-info/{name}")]
    return archive.read(found).decode()


def metadata(wheel: Path) -> Message:
    return Parser().parsestr(member(wheel, "METADATA"))


class Clean:
    """A virtual environment that shares the dependencies, but not accelkit, with the one that runs the tests."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        self.folder, self.python = folder, folder / "bin" / "python"
        self.site = next(folder.glob("lib/python*/site-packages"))
        (self.site / "zz_shared.pth").write_text(sysconfig.get_path("purelib") + "\n")  # an editable accelkit there is not followed

    def install(self, *arguments: object) -> None:
        pip = [sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet", "--no-deps", "--no-index", "--ignore-installed"]
        subprocess.run([*pip, *map(str, arguments)], check=True, capture_output=True)

    def run(self, *command: object) -> str:
        """What it prints, run outside the source tree."""
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        result = subprocess.run([*map(str, command)], cwd=self.folder, capture_output=True, text=True, check=False, env=variables)
        assert result.returncode == 0, f"{command} ended with {result.returncode}:\n{result.stdout}\n{result.stderr}"
        return result.stdout

    def accelkit(self, *arguments: object) -> str:
        return self.run(self.folder / "bin" / "accelkit", *arguments)
