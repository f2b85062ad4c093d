"""Create a virtual environment with accelkit from this checkout and its dependencies from a folder of wheels. torch is that of this Python.

    python benchmarks/offline_environment.py FOLDER WHEELS

Uses only the standard library, so that it runs on a machine where only torch is installed.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EXTRAS = "accelerate,conformance,cuda,fp8,lightning"
REQUIREMENTS = ("pytorch-lightning", "transformers", "pytest-timeout")  # pyproject.toml configures pytest-timeout
BUILD_REQUIREMENTS = ("hatchling", "editables")
_OLDEST_TORCH = (2, 9)
_ASK = """
import json, importlib.util
import torch
is_there = torch.cuda.is_available()
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "is_available": is_there,
                  "device": torch.cuda.get_device_name() if is_there else "",
                  "numpy": importlib.util.find_spec("numpy") is not None}))
"""


@functools.cache
def ask_torch(python: str) -> dict[str, Any]:
    """Return what the given Python knows about its torch, GPU and NumPy; an empty dict if it cannot import torch."""
    result = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, check=False)
    if result.returncode:
        return {}
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def missing(accelerator: str, wheels: Path | None) -> Iterator[str]:
    """Yield what this machine lacks, the most important first. Each is one line that also says what to do."""
    found = ask_torch(sys.executable)
    if not found:
        yield f"{sys.executable} cannot import torch: name a Python that has it, as in make gpu PYTHON=python3.12"
        return
    if tuple(int(part) for part in found["torch"].split(".")[:2]) < _OLDEST_TORCH:
        yield f"torch {found['torch']} is too old: accelkit needs 2.9 or newer"
    if accelerator == "cuda" and not found["is_available"]:
        built = f"was built for CUDA {found['cuda']}" if found["cuda"] else "was built without CUDA"
        yield f"torch {found['torch']} of {sys.executable} sees no CUDA device (it {built}): run this on a machine with an NVIDIA GPU"
    if wheels is None:
        return
    manifest = wheels / "manifest.json"
    if not manifest.exists():
        yield f"there are no wheels in {wheels}: where there is a package index, run make gpu-wheels, and copy that folder here"
        return
    listed = json.loads(manifest.read_text("utf-8"))
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    if listed["python"] != own:
        yield f"the wheels in {wheels} are for Python {listed['python']}, and this is {own}: make gpu-wheels GPU_PYTHON_VERSION={own}"
    if "numpy" in listed["left_out"] and not found["numpy"]:
        yield f"{sys.executable} has no NumPy, and there was no room for it in {wheels}: add its wheel to that folder and to manifest.json"


def create(folder: Path, wheels: Path) -> None:
    """Create the environment, without a network. An existing environment in ``folder`` is replaced.

    Packages that this Python can import can be imported in the new environment too, even if this Python is in a virtual environment
    itself. They are not installed again if their versions fit.

    Raises:
        subprocess.CalledProcessError: If something cannot be installed.
    """
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True)
    python = python_of(folder)
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip())
    outer = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (site / "outer.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in outer), "utf-8")
    (pip,) = wheels.glob("pip-*.whl")
    options = ["--disable-pip-version-check", "--no-index", "--find-links", str(wheels), "--no-compile", "--no-cache-dir", "--quiet"]
    install = [python, f"{pip}/pip", "install", *options]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")} | {"PIP_CONFIG_FILE": os.devnull}
    subprocess.run([*install, *BUILD_REQUIREMENTS], check=True, env=environ)
    editable = ["--no-build-isolation", "--editable", f"{ROOT}[{EXTRAS}]"]
    subprocess.run([*install, *editable, *REQUIREMENTS], check=True, env=environ)


def python_of(folder: Path) -> str:
    """Return the path of the Python in a virtual environment."""
    return str(folder / "bin" / "python")


def main() -> None:
    folder, wheels = sys.argv[1:]
    create(Path(folder), Path(wheels))


if __name__ == "__main__":
    main()
