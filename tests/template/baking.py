"""Bakes a package, and installs its wheel where accelkit is a wheel too: a clean environment that shares torch with the one that tests."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import preloaded

ROOT = Path(__file__).parents[2]
FAKE_XPU = ROOT / "builtin_plugins" / "accelkit-fake-xpu"


def run(*command: object, cwd: Path = ROOT, ok: bool = True) -> subprocess.CompletedProcess[str]:
    result = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert not ok or result.returncode == 0, f"{command} ended with {result.returncode}:\n{result.stdout}\n{result.stderr}"
    return result


def build_wheel(source: Path, folder: Path) -> Path:
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, source)
    (wheel,) = folder.glob("*.whl")
    return wheel


class Clean:
    """A virtual environment with accelkit from its wheel; of the tests' own environment it sees what is not ours.

    Attributes:
        python: An interpreter of the environment, forked from one that has imported torch already.
        real_python: The environment's own.

    Args:
        folder: An empty folder.
        mypy_cache: What mypy finds out about torch, which takes half a minute.
    """

    def __init__(self, folder: Path, mypy_cache: Path) -> None:
        self.mypy_cache = mypy_cache
        run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
        self.folder, self.real_python = folder, folder / "venv" / "bin" / "python"
        site = next(folder.glob("venv/lib/python*/site-packages"))
        (site / "zz_shared.pth").write_text(sysconfig.get_path("purelib") + "\n")  # after its own; an editable accelkit is not followed
        self.install(build_wheel(ROOT, folder / "accelkit"))
        self.programs = preloaded.programs(python=str(self.real_python))
        self.python = self.programs / "python"

    def pip(self, *arguments: object) -> None:
        run(sys.executable, "-m", "pip", "--python", self.real_python, "--disable-pip-version-check", *arguments)

    def install(self, wheel: Path) -> None:
        self.pip("install", "--quiet", "--no-deps", "--no-index", wheel)

    def accelkit(self, *arguments: object, ok: bool = True) -> subprocess.CompletedProcess[str]:
        return run(self.programs / "accelkit", *arguments, cwd=self.folder, ok=ok)

    def new(self, output: Path, **answers: str) -> Path:
        """The folder of a new package, made by the wheel's ``accelkit new``."""
        given = [f"{name}={value}" for name, value in answers.items()]
        package = Path(self.accelkit("new", "--no-input", "--output-dir", output, *given).stdout.strip())
        check_rendered(package)
        return package

    def offered(self, distribution: str) -> list[tuple[str, str, str]]:
        """Kind, name and status of what ``accelkit list`` shows of a distribution."""
        rows = json.loads(self.accelkit("list", "--json").stdout)["plugins"]
        return sorted((row["kind"], row["name"], row["status"]) for row in rows if row["distribution"] == distribution)


def names(components: str, name: str = "acme") -> list[tuple[str, str, str]]:
    """What a package with these components is to offer. The component ``backend`` is a part of the accelerator."""
    suffixes = {"accelerator": "", "precision": "-bf16", "cluster": "_cluster", "strategy": "_parallel", "hooks": "_hooks"}
    return sorted((component, name + suffixes[component], "available") for component in components.split(",") if component != "backend")


def check_rendered(package: Path) -> None:
    """Nothing was left to be rendered, nor of what Python leaves in a template that is installed."""
    for path in [path for path in package.rglob("*") if path.is_file() and path.name != ".cruft.json"]:
        text = path.read_text("utf-8").replace("${{", "")
        assert not any(mark in text for mark in ("{{", "{%", "{#", "cookiecutter.")), path


def check_sources(package: Path, clean: Clean) -> None:
    """ruff and mypy find nothing, against the installed wheels."""
    run(sys.executable, "-m", "ruff", "check", "--no-cache", ".", cwd=package)
    run(sys.executable, "-m", "ruff", "format", "--no-cache", "--check", ".", cwd=package)
    run(sys.executable, "-m", "mypy", "--python-executable", clean.real_python, "--cache-dir", clean.mypy_cache, cwd=package)
