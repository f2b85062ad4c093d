"""The C++ library of a PyTorch device, compiled from the source in its package when it is first used.

torch's C++ interface changes with every release, so a compiled library works with one torch only. A wheel that contains source works with
every torch that its code supports. This module does not import torch.
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

from accelkit.errors import NotPrivateError
from accelkit.private_files import check_private, private_folder

_FLAGS = ("-std=c++20", "-O1", "-fPIC", "-w")
_INSTALL_A_COMPILER = (
    "install a C++ compiler (apt-get install g++ on Debian and Ubuntu, dnf install gcc-c++ on Fedora, xcode-select --install on macOS), "
    "or set CXX"
)


class BuildError(RuntimeError):
    """The library cannot be compiled or loaded. The message contains the reason, the compiler's first errors, and what to do."""


class CppLibrary:
    """A shared library that is compiled once for each torch, Python, machine type and set of sources, and kept in the user's cache.

    After a change to a ``.cpp`` file, only that file is compiled again; after a change to a ``.h`` file, all of them are.

    The compiler is ``CXX``, or the first of c++, g++ and clang++ that is installed. The macro ``BACKEND_NAME`` is the name as a string.

    Args:
        name: The name of the library, which is also that of the torch device type. The variable ``NAME_CACHE_DIR``, with the name in
            capitals, chooses another cache folder.
        sources: The folder with the ``.cpp`` and ``.h`` files.
        exclude: Names of ``.cpp`` files that are not compiled.
        flags: More flags of the compiler, such as ``-O0 -g``, ``-fsanitize=address`` or ``-I`` with a folder of headers.
        links: More flags of the linker, such as ``-lacme`` for the vendor's own library.
    """

    def __init__(
        self, name: str, sources: Path, *, exclude: Sequence[str] = (), flags: Sequence[str] = (), links: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.cache_variable = f"{name.upper()}_CACHE_DIR"
        self._sources, self._exclude = sources, frozenset(exclude)
        self._flags = (*_FLAGS, f'-DBACKEND_NAME="{name}"', *flags)
        self._links = tuple(links)

    @property
    def cache_folder(self) -> Path:
        """The folder of the compiled library: the variable ``NAME_CACHE_DIR``, or ``accelkit-NAME`` in the user's cache folder."""
        if chosen := os.environ.get(self.cache_variable):
            return Path(chosen)
        import platformdirs

        return platformdirs.user_cache_path(f"accelkit-{self.name.replace('_', '-')}")

    @property
    def path(self) -> Path:
        """The path of the library for the installed torch, whether or not it exists.

        Raises:
            importlib.metadata.PackageNotFoundError: If torch is not installed.
        """
        digest = hashlib.sha256(repr((*self._surroundings(), self._links, self._exclude)).encode())
        for path in sorted(self._sources.iterdir()):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return self.cache_folder / f"{self.name}-{torch_version()}-{digest.hexdigest()[:16]}.so"

    def _surroundings(self) -> tuple[object, ...]:
        """Return what every object depends on besides the sources."""
        return torch_version(), sysconfig.get_config_var("SOABI"), platform.machine(), self._flags

    def problem(self) -> tuple[str, str] | None:
        """Return why the library can be neither loaded nor built, and how to fix that. None if it can be loaded or built.

        Compiles at most one empty function, so ``Accelerator.probe`` may call it.
        """
        try:
            torch_version()
        except importlib.metadata.PackageNotFoundError:
            return "torch is not installed", "pip install torch"
        library = self.path
        try:
            if library.exists():
                check_private(library)
                return None
            compiler = _compiler()
        except NotPrivateError as error:
            return self._not_private(error)
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
            return self._not_private(error)
        except OSError as error:
            return f"the cache folder is not writable: {error}", f"make it writable, or set {self.cache_variable} to a writable folder"
        return None

    def build(self) -> Path:
        """Return the path of the library, and compile it first if it does not exist.

        Reports the compilation on standard error. If many processes call this at once, the library is compiled once.

        Raises:
            BuildError: If the library cannot be compiled, or if another user could have written to it.
        """
        library = self.path
        if library.exists():
            try:
                check_private(library)
            except NotPrivateError as error:
                why, what_to_do = self._not_private(error)
                raise BuildError(f"{self.name} is not loaded: {why}. What to do: {what_to_do}") from error
            return library
        if found := self.problem():
            raise BuildError(f"{self.name} cannot be compiled for torch {torch_version()}: {found[0]}. What to do: {found[1]}")
        from filelock import FileLock  # a dependency of torch

        with FileLock(library.with_suffix(".lock"), mode=0o600):
            if not library.exists():  # another process may have compiled it in the meantime
                with _progress(f"{self.name}: compiling for torch {torch_version()}, which happens once and takes about a minute ..."):
                    self._compile(library)
        return library

    def _compile(self, library: Path) -> None:
        spec = importlib.util.find_spec("torch")
        assert spec is not None
        assert spec.origin is not None
        torch = Path(spec.origin).parent
        includes = [f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include"]
        links = [f"-L{torch}/lib", f"-Wl,-rpath,{torch}/lib", "-ltorch_cpu", "-lc10", "-lpthread", *self._links]
        for left_behind in library.parent.glob(f"{library.stem}-building-*"):  # left by a killed process: only the lock holder builds
            shutil.rmtree(left_behind, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=library.parent, prefix=f"{library.stem}-building-") as folder:
            objects = {source: Path(folder, f"{source.stem}.o") for source in self._compiled()}
            kept = self._kept_objects(private_folder(library.parent / "objects"))

            def compile_object(source: Path) -> None:
                if not _reuse(kept[source], objects[source]):
                    _run([*_compiler(), *self._flags, "-c", str(source), *includes, "-o", str(objects[source])])
                    _keep(objects[source], kept[source])

            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(compile_object, objects))
            built = f"{folder}/{self.name}.so"
            _run([*_compiler(), *self._flags, "-shared", *map(str, objects.values()), *links, "-o", built])
            os.chmod(built, 0o600)
            os.replace(built, library)
        for source, path in kept.items():
            for old in path.parent.glob(f"{self.name}-{torch_version()}-{source.stem}-{'?' * 16}.o"):
                if old != path:
                    old.unlink(missing_ok=True)

    def _compiled(self) -> list[Path]:
        """Return the files that are compiled, the largest first, so that no long one is left for the end."""
        sources = [path for path in self._sources.glob("*.cpp") if path.name not in self._exclude]
        return sorted(sources, key=lambda path: -path.stat().st_size)

    def _kept_objects(self, folder: Path) -> dict[Path, Path]:
        """Return for each source the path of the object that is kept between builds. It depends on the source and on every header."""
        common = hashlib.sha256(repr((*self._surroundings(), _compiler())).encode())
        for path in sorted(self._sources.glob("*.h")):
            common.update(path.name.encode() + b"\0" + path.read_bytes())
        found = {}
        for source in self._compiled():
            digest = common.copy()
            digest.update(source.read_bytes())
            found[source] = folder / f"{self.name}-{torch_version()}-{source.stem}-{digest.hexdigest()[:16]}.o"
        return found

    def _not_private(self, error: NotPrivateError) -> tuple[str, str]:
        why = f"other users could run code in your programs through its library, because {error.what}: {error.why}"
        return why, f"{error.hint} with {self.cache_variable}"


def torch_version() -> str:
    """Return the version of the installed torch, from its metadata.

    Raises:
        importlib.metadata.PackageNotFoundError: If torch is not installed.
    """
    return importlib.metadata.version("torch")


def _compiler() -> tuple[str, ...]:
    """Return the compiler's command, from CXX or the first of the usual names that is installed."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    names = [chosen[0]] if chosen else ["c++", "g++", "clang++"]
    for name in names:
        if shutil.which(name):
            return (name, *chosen[1:])
    why = f"CXX is {names[0]}, which does not exist" if chosen else f"none of {', '.join(names)} is installed"
    raise BuildError(f"no C++ compiler was found: {why}")


def _reuse(kept: Path, target: Path) -> bool:
    """Copy an object that an earlier build has kept. Returns whether there is one that only this user could have written."""
    try:
        check_private(kept)
        shutil.copyfile(kept, target)
    except (NotPrivateError, OSError):  # it does not exist, or another process has just removed it
        return False
    return True


def _keep(target: Path, kept: Path) -> None:
    """Keep an object for later builds, unless another process keeps it at this moment or the file system has no hard links."""
    os.chmod(target, 0o600)
    with contextlib.suppress(OSError):
        kept.unlink(missing_ok=True)
        os.link(target, kept)


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
