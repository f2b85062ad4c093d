"""One environment with every animal installed from a real wheel, beside the environment that runs the tests."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from .animals import ANIMALS, CONTROL, Animal

PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{distribution}"
version = "1.0"
description = "An animal of the zoo"
dependencies = {requires}

[project.entry-points."accelkit.{group}"]
{offered} = "{module}:Animal"

[tool.hatch.build.targets.wheel]
only-include = ["{module}.py"]
"""
BUILD = "import os, sys, hatchling.build as b\nfor folder in sys.argv[2:]:\n    os.chdir(folder)\n    b.build_wheel(sys.argv[1])\n"


@dataclasses.dataclass(frozen=True)
class Environment:
    """A virtual environment that shares torch and accelkit with the one that runs the tests."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        return next(self.folder.glob("lib/python*/site-packages"))

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        limits = {"ACCELKIT_PROBE_TIMEOUT": "3", "ACCELKIT_LOAD_TIMEOUT": "5", "ACCELKIT_CACHE_DIR": str(self.folder / "cache")}
        variables = os.environ | {"OMP_NUM_THREADS": "1"} | limits | environ
        return subprocess.run([self.python, *arguments], env=variables, capture_output=True, text=True, check=False, cwd=self.folder)

    def rows(self, command: str) -> dict[str, dict[str, str]]:
        """The rows of ``accelkit list`` or ``doctor``, by distribution."""
        result = self.run("-m", "accelkit", command, "--json")
        assert result.stderr == "" or command == "doctor", result.stderr
        return {row["distribution"]: row for row in json.loads(result.stdout)["plugins"]}


def make_environment(folder: Path) -> Environment:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    environment = Environment(folder)
    shared = sysconfig.get_path("purelib")
    (environment.site_packages / "shared.pth").write_text(f"import site; site.addsitedir({shared!r})\n")
    return environment


def build(animals: list[Animal], folder: Path) -> Path:
    """Wheels of these animals, made by hatchling."""
    wheels = folder / "wheels"
    wheels.mkdir()
    sources = []
    for animal in animals:
        source = folder / animal.module
        source.mkdir()
        (source / f"{animal.module}.py").write_text(animal.source)
        offered = animal.row_name if not animal.entry_points else animal.module
        group = "hooks" if animal.kind == "hooks" else f"{animal.kind}s"
        text = PYPROJECT.format(
            distribution=animal.distribution, module=animal.module, offered=offered, group=group, requires=json.dumps(animal.requires)
        )
        (source / "pyproject.toml").write_text(text)
        sources.append(str(source))
    subprocess.run([sys.executable, "-c", BUILD, wheels, *sources], check=True, stdout=subprocess.DEVNULL)
    return wheels


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The environment with every animal, and the healthy control."""
    folder = tmp_path_factory.mktemp("zoo")
    environment = make_environment(folder / "venv")
    wheels = build([*ANIMALS, CONTROL], folder)
    install = [sys.executable, "-m", "pip", "--python", environment.python, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, *sorted(wheels.glob("*.whl"))], check=True)
    for animal in ANIMALS:
        info = environment.site_packages / f"{animal.module}-1.0.dist-info"
        assert info.is_dir(), f"{animal.distribution} was not installed"
        if animal.entry_points:
            (info / "entry_points.txt").write_text(animal.entry_points)
        if animal.tamper:
            animal.tamper(info)
    return environment
