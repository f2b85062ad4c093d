"""The C++ library of a PyTorch device. The device's package contains the source, which is compiled on first use.

A wheel may also contain compiled libraries. torch's C++ interface changes with every minor version, so a compiled library works with
only one minor version. The source is compiled for the installed version of torch, so the same source can support several versions. This
module does not import torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from accelkit.cpp_compiler import INSTALL_A_COMPILER, BuildError, compiler_command, run_compiler, words_of
from accelkit.cpp_objects import CompilationUnit, compilation_units, keep, reuse, source_files, update_digest
from accelkit.errors import UntrustedFileError
from accelkit.private_files import check_private, private_folder

_FLAGS = ("-std=c++20", "-O1", "-fPIC", "-w")


class CppLibrary:
    """A shared library that is compiled on first use and kept in the user's cache.

    The cache contains one library for each combination of torch version, Python version, machine type, sources and flags. After a change to
    a ``.cpp`` file, only that file and the other files of its group in ``unity`` are compiled again. After a change to any other
    file, such as a header or an excluded ``.cpp`` file, all ``.cpp`` files that are not excluded are compiled again.

    A wheel may also contain compiled libraries, which ``prebuild`` writes to the folder ``prebuilt`` beside the sources. Such a library is
    used if it was compiled from the same sources, with the same flags, for the same machine type, and for the installed minor version of
    torch. Otherwise, the sources are compiled. If there is no compiler, the error names the installed version of torch and the versions of
    torch for which the wheel contains libraries.

    The compiler is the value of ``CXX``, or the first of c++, g++ and clang++ that is installed. In the sources, the macro ``BACKEND_NAME``
    expands to a string literal with the value of ``name``. The environment variable ``NAME_CXXFLAGS``, with the name in capitals, can
    contain more compiler flags for this library, such as ``-O0 -g`` for debugging or ``-g -fsanitize=address``.

    Args:
        name: The name of the library and of the torch device type. The environment variable ``NAME_CACHE_DIR``, with this name in capitals,
            can name another cache folder.
        sources: The folder with the ``.cpp`` files. Headers may be in its subfolders.
        exclude: Names of ``.cpp`` files that are not compiled.
        flags: Additional flags for the compiler, such as ``-O3``, or ``-I`` with a folder of headers. If headers outside ``sources``
            change, nothing is compiled again, so put the version of a vendor's SDK into a flag, as in ``-DACME_SDK=24.1``.
        links: Additional flags for the linker, such as ``-lacme`` for the vendor's own library.
        unity: Groups of names of ``.cpp`` files. The files of a group are compiled as one file, in the order of the
            group (a unity build). This saves time, because torch's headers, which take longer to compile than a small file, are compiled
            only once for the group. Two files of a group cannot define the same function, even in an anonymous namespace. Names of files
            that are excluded or do not exist are ignored.
    """

    def __init__(
        self,
        name: str,
        sources: Path,
        *,
        exclude: Sequence[str] = (),
        flags: Sequence[str] = (),
        links: Sequence[str] = (),
        unity: Sequence[Sequence[str]] = (),
    ) -> None:
        self.name = name
        self.cache_variable = f"{name.upper()}_CACHE_DIR"
        self._sources, self._exclude = sources, frozenset(exclude)
        self._own_flags = (*_FLAGS, f'-DBACKEND_NAME="{name}"', *flags)
        self._links = tuple(links)
        self._unity = tuple(tuple(group) for group in unity)

    @property
    def cache_folder(self) -> Path:
        """The folder for libraries that are compiled on this machine. A library that the wheel contains is not in this folder.

        For the name ``acme_npu``, it is the value of ``ACME_NPU_CACHE_DIR``, or ``accelkit-acme-npu`` in the user's cache folder.
        """
        if chosen := os.environ.get(self.cache_variable):
            return Path(chosen)
        import platformdirs

        return platformdirs.user_cache_path(f"accelkit-{self.name.replace('_', '-')}")

    @property
    def path(self) -> Path:
        """The path of the library for the installed torch, whether or not it exists.

        Raises:
            BuildError: If ``NAME_CXXFLAGS`` cannot be split into words.
            importlib.metadata.PackageNotFoundError: If torch is not installed.
        """
        if (prebuilt := self._prebuilt()).exists():
            return prebuilt
        return self.cache_folder / f"{self.name}-{torch_version()}-{self._digest(*self._surroundings(), self._links)}.so"

    def _prebuilt(self, torch: str | None = None) -> Path:
        """Return the path of the library that a wheel contains for one minor version of torch.

        ``torch`` is this minor version, such as ``2.13``; None means the minor version of the installed torch. The file name depends on the
        flags of the compiler and the linker, but not on flags that name folders, which may be elsewhere on a user's machine.
        """
        flags = [word for word in (*self._flags, *self._links) if not word.startswith(("-I", "-L", "-Wl,-rpath"))]
        file = f"{self.name}-torch{torch or _minor_version()}-{self._digest(platform.machine(), flags)}.so"
        return self._sources.parent / "prebuilt" / file

    def _digest(self, *surroundings: object) -> str:
        """Return a digest of the sources and of ``surroundings``, which are other inputs of the compilation, such as its flags."""
        digest = hashlib.sha256(repr((*surroundings, sorted(self._exclude), self._unity)).encode())
        update_digest(digest, self._sources, source_files(self._sources))
        return digest.hexdigest()[:16]

    @property
    def _flags(self) -> tuple[str, ...]:
        return (*self._own_flags, *words_of(f"{self.name.upper()}_CXXFLAGS"))

    def _surroundings(self) -> tuple[object, ...]:
        """Return the inputs of the compilation other than the sources: the versions of torch and Python, the machine type and the flags."""
        return torch_version(), sysconfig.get_config_var("SOABI"), platform.machine(), self._flags

    def problem(self) -> tuple[str, str] | None:
        """Return why the library can be neither loaded nor built, and how to fix that. Return None if it can be loaded or built.

        Compiles at most one empty function, so ``Accelerator.probe`` may call this.
        """
        try:
            torch_version()
        except importlib.metadata.PackageNotFoundError:
            return "torch is not installed", "pip install torch"
        try:
            library = self.path
            if library.exists():
                self._check_private(library)
                return None
        except BuildError as error:
            return str(error), f"correct or unset {self.name.upper()}_CXXFLAGS"
        except UntrustedFileError as error:
            return self._not_private(error)
        if (found := self._no_compilation(library.parent)) and (others := self._other_torches()):
            theirs, ours = " and ".join(others), torch_version()
            why = f"its wheel contains no library for torch {ours}, only for torch {theirs}"
            wheels = f"install the {self.name} wheel for torch {_minor_version()}, or install torch {others[-1]}"
            what_to_do = f"{wheels}; to compile the library instead, {found[1]}"
            return f"{why}. The library cannot be compiled on this machine either: {found[0]}", what_to_do
        return found

    def _other_torches(self) -> list[str]:
        """Return the minor versions of torch for which the wheel contains a library compiled from these sources with these flags.

        The oldest version comes first.
        """
        pattern = self._prebuilt("*")
        found = [path.name.removeprefix(f"{self.name}-torch").rpartition("-")[0] for path in pattern.parent.glob(pattern.name)]
        return sorted(found, key=lambda minor: [int(part) for part in minor.split(".")])  # 2.9 is older than 2.10

    def _no_compilation(self, folder: Path) -> tuple[str, str] | None:
        """Return why the library cannot be compiled into ``folder``, and how to fix that. Return None if it can be compiled."""
        try:
            compiler = compiler_command()
        except BuildError as error:
            return str(error), INSTALL_A_COMPILER
        try:
            with tempfile.TemporaryDirectory(dir=private_folder(folder)) as inside:
                source = Path(inside) / "empty.cpp"
                source.write_text("#include <atomic>\nvoid empty() {}\n")
                try:
                    run_compiler([*compiler, *_FLAGS, "-shared", str(source), "-o", f"{inside}/empty.so"])
                except BuildError as error:
                    return f"the C++ compiler does not work: {error}", f"repair the compiler, or {INSTALL_A_COMPILER}"
        except UntrustedFileError as error:
            return self._not_private(error)
        except OSError as error:
            what_to_do = f"make the folder writable, or set {self.cache_variable} to a writable folder"
            return f"the cache folder is not writable: {error}", what_to_do
        return None

    def build(self) -> Path:
        """Compile the library if it does not exist, and return its path.

        Reports the compilation on standard error. If several processes call this at the same time, only one of them compiles.

        Raises:
            BuildError: If the library cannot be compiled, or if another user could have written to it.
        """
        library = self.path
        if library.exists():
            try:
                self._check_private(library)
            except UntrustedFileError as error:
                why, what_to_do = self._not_private(error)
                raise BuildError(f"{self.name} is not loaded: {why}. What to do: {what_to_do}") from error
            return library
        if found := self.problem():
            raise BuildError(f"{self.name} cannot be loaded with torch {torch_version()}: {found[0]}. What to do: {found[1]}")
        from filelock import FileLock  # a dependency of torch

        with FileLock(library.with_suffix(".lock"), mode=0o600):
            if not library.exists():  # another process may have compiled it in the meantime
                with _progress(f"{self.name}: compiling for torch {torch_version()}, which happens once and takes about a minute ..."):
                    self._compile(library)
        return library

    def prebuild(self) -> Path:
        """Compile the library for the installed torch, copy it to the folder ``prebuilt`` beside the sources, and return the copy's path.

        Call this method while a wheel is built, so that the wheel contains the compiled library. A new library replaces the libraries in
        the folder, except those that differ from it only in the version of torch. If the folder already contains the library, nothing is
        compiled or removed.

        Raises:
            BuildError: If the library cannot be compiled, or if another user could have written to it.
        """
        compiled, library = self.build(), self._prebuilt()
        if compiled != library:
            library.parent.mkdir(exist_ok=True)
            for other in set(library.parent.glob("*.so")) - set(library.parent.glob(self._prebuilt("*").name)):
                other.unlink()
            shutil.copyfile(compiled, library)
        return library

    def _compile(self, library: Path) -> None:
        spec = importlib.util.find_spec("torch")
        assert spec is not None
        assert spec.origin is not None
        torch = Path(spec.origin).parent
        # Kineto's headers, which a backend's profiler needs, have common names such as Config.h: the backend's headers come first.
        includes = [f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include", "-idirafter", f"{torch}/include/kineto"]
        # Except on macOS, torch's libraries are found because the process has already loaded them.
        rpath = [f"-Wl,-rpath,{torch}/lib"] if sys.platform == "darwin" else []
        links = [f"-L{torch}/lib", *rpath, "-ltorch_cpu", "-lc10", "-lpthread", *self._links]
        for left_behind in library.parent.glob(f"{library.stem}-building-*"):  # left by a killed process: only the lock holder builds
            shutil.rmtree(left_behind, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=library.parent, prefix=f"{library.stem}-building-") as folder:
            objects = {unit: Path(folder, f"{unit.name}.o") for unit in compilation_units(self._sources, self._exclude, self._unity)}
            kept = self._kept_objects(private_folder(library.parent / "objects"), list(objects))

            def compile_object(unit: CompilationUnit) -> None:
                if not reuse(kept[unit], objects[unit]):
                    run_compiler([*compiler_command(), *self._flags, *unit.arguments, *includes, "-o", str(objects[unit])])
                    keep(objects[unit], kept[unit])

            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(compile_object, objects))
            built = f"{folder}/{self.name}.so"
            run_compiler([*compiler_command(), *self._flags, "-shared", *map(str, objects.values()), *links, "-o", built])
            os.chmod(built, 0o600)
            os.replace(built, library)
        for path in kept.values():
            for old in path.parent.glob(f"{path.stem[:-16]}{'?' * 16}.o"):
                if old != path:
                    old.unlink(missing_ok=True)

    def _kept_objects(self, folder: Path, units: Sequence[CompilationUnit]) -> dict[CompilationUnit, Path]:
        """Return for each unit the path of the object file that is kept between builds.

        The path depends on the unit's sources, all files that belong to no unit, the command of the compiler, and ``_surroundings``.
        """
        common = hashlib.sha256(repr((*self._surroundings(), compiler_command())).encode())
        prefix = f"{self.name}-{torch_version()}-{common.hexdigest()[:8]}"
        compiled = {path for unit in units for path in unit.sources}
        update_digest(common, self._sources, [path for path in source_files(self._sources) if path not in compiled])
        return {unit: folder / f"{prefix}-{unit.name}-{unit.digest(common.digest())[:16]}.o" for unit in units}

    def _check_private(self, library: Path) -> None:
        """Check that no other user could have written the library. A prebuilt library in the package is trusted and not checked."""
        if library.parent != self._sources.parent / "prebuilt":
            check_private(library)

    def _not_private(self, error: UntrustedFileError) -> tuple[str, str]:
        why = f"other users could run code in your programs through its library, because {error.what}: {error.why}"
        return why, f"{error.hint} with {self.cache_variable}"


def torch_version() -> str:
    """Return the version of the installed torch, from its metadata.

    Raises:
        importlib.metadata.PackageNotFoundError: If torch is not installed.
    """
    return importlib.metadata.version("torch")


def _minor_version() -> str:
    """Return the minor version of the installed torch, such as 2.13. A compiled library works with all patch releases of that version."""
    return ".".join(torch_version().split(".")[:2])


@contextlib.contextmanager
def _progress(text: str) -> Iterator[None]:
    if not sys.stderr.isatty():
        sys.stderr.write(text + "\n")
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield
