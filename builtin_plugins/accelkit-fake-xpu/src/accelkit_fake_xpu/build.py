"""Compile the C++ library once for each combination of torch version, Python version and machine type, and keep it in a cache folder.

This module does not import torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from accelkit import NotPrivateError, check_private, private_folder

_SOURCES = Path(__file__).parent / "csrc"
_FLAGS = ["-std=c++20", "-O1", "-fPIC", "-w"]
_INSTALL_A_COMPILER = (
    "install a C++ compiler (apt-get install g++ on Debian and Ubuntu, dnf install gcc-c++ on Fedora, xcode-select --install on macOS), "
    "or set CXX"
)


class BuildError(RuntimeError):
    """The library could not be compiled. The message contains the compiler's first errors."""


def torch_version() -> str:
    """Return the version of the installed torch, from its metadata.

    Raises:
        importlib.metadata.PackageNotFoundError: If torch is not installed.
    """
    return importlib.metadata.version("torch")


def cache_folder() -> Path:
    """Return FAKE_XPU_CACHE_DIR, or ``accelkit-fake-xpu`` in the user's cache folder."""
    if chosen := os.environ.get("FAKE_XPU_CACHE_DIR"):
        return Path(chosen)
    import platformdirs

    return platformdirs.user_cache_path("accelkit-fake-xpu")


def library_path() -> Path:
    """Return the path of the library for this version of torch, Python ABI, machine type and set of sources, whether or not it exists."""
    surroundings = (torch_version(), sysconfig.get_config_var("SOABI"), platform.machine(), _FLAGS)
    digest = hashlib.sha256(repr(surroundings).encode())
    for path in sorted(_SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return cache_folder() / f"fake_xpu-{torch_version()}-{digest.hexdigest()[:16]}.so"


def problem() -> tuple[str, str] | None:
    """Return why the library cannot be loaded or built, and how to fix it. None if it can be loaded or built.

    Compiles at most one empty function.
    """
    try:
        torch_version()
    except importlib.metadata.PackageNotFoundError:
        return "torch is not installed", "pip install torch"
    library = library_path()
    try:
        if library.exists():
            check_private(library)
            return None
        compiler = _compiler()
    except NotPrivateError as error:
        return _not_private(error)
    except BuildError as error:
        return str(error), _INSTALL_A_COMPILER
    try:
        with tempfile.TemporaryDirectory(dir=private_folder(library.parent)) as folder:
            source = Path(folder) / "empty.cpp"
            source.write_text("#include <atomic>\nvoid empty() {}\n")
            try:
                _run([*compiler, *_FLAGS, "-shared", str(source), "-o", f"{folder}/empty.so"])
            except BuildError as error:
                return f"the C++ compiler does not work: {error}", f"repair the compiler, or {_INSTALL_A_COMPILER}"
    except NotPrivateError as error:
        return _not_private(error)
    except OSError as error:
        return f"the cache folder is not writable: {error}", "make it writable, or set FAKE_XPU_CACHE_DIR to a writable folder"
    return None


def _not_private(error: NotPrivateError) -> tuple[str, str]:
    why = f"other users could run code in your programs through its library, because {error.what}: {error.why}"
    return why, f"{error.hint} with FAKE_XPU_CACHE_DIR"


def build() -> Path:
    """Return the path of the library, and compile it first if it does not exist.

    Reports the compilation on standard error. If many processes call this at once, the library is compiled once.

    Raises:
        BuildError: If the library cannot be compiled, or if another user could have written to it. The message says why and what to do.
    """
    library = library_path()
    if library.exists():
        try:
            check_private(library)
        except NotPrivateError as error:
            why, what_to_do = _not_private(error)
            raise BuildError(f"fake_xpu is not loaded: {why}. What to do: {what_to_do}") from error
        return library
    if found := problem():
        raise BuildError(f"fake_xpu cannot be compiled for torch {torch_version()}: {found[0]}. What to do: {found[1]}")
    from filelock import FileLock

    with FileLock(library.with_suffix(".lock"), mode=0o600):
        if not library.exists():  # another process may have compiled it in the meantime
            with _progress(f"fake_xpu: compiling for torch {torch_version()}, which happens once and takes half a minute on two cores ..."):
                _compile(library)
    return library


def _compile(library: Path) -> None:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    torch = Path(spec.origin).parent
    includes = [f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include"]
    links = [f"-L{torch}/lib", f"-Wl,-rpath,{torch}/lib", "-ltorch_cpu", "-lc10", "-lpthread"]
    for left_behind in library.parent.glob(f"{library.stem}-building-*"):  # left by a killed process: only the lock holder builds
        shutil.rmtree(left_behind, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=f"{library.stem}-building-") as folder:
        sources = sorted(_SOURCES.glob("*.cpp"), key=lambda path: -path.stat().st_size)  # compile the largest file first
        objects = [f"{folder}/{source.stem}.o" for source in sources]
        commands = [[*_compiler(), *_FLAGS, "-c", str(source), *includes, "-o", out] for source, out in zip(sources, objects, strict=True)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_run, commands))
        _run([*_compiler(), "-shared", *objects, *links, "-o", f"{folder}/fake_xpu.so"])
        os.chmod(f"{folder}/fake_xpu.so", 0o600)
        os.replace(f"{folder}/fake_xpu.so", library)


def _compiler() -> tuple[str, ...]:
    """Return the compiler's command, from CXX or the first of the usual names that is installed."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    names = [chosen[0]] if chosen else ["c++", "g++", "clang++"]
    for name in names:
        if shutil.which(name):
            return (name, *chosen[1:])
    why = f"CXX is {names[0]}, which does not exist" if chosen else f"none of {', '.join(names)} is installed"
    raise BuildError(f"no C++ compiler was found: {why}")


def _run(command: Sequence[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, stdin=subprocess.DEVNULL)
    if result.returncode != 0:
        lines = (result.stderr or result.stdout).strip().splitlines()
        first = next((i for i, line in enumerate(lines) if "error" in line.lower()), 0)
        raise BuildError("; ".join(lines[first : first + 3]) or f"{command[0]} ended with exit code {result.returncode}")


@contextlib.contextmanager
def _progress(text: str) -> Iterator[None]:
    if not sys.stderr.isatty():
        sys.stderr.write(text + "\n")
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield
