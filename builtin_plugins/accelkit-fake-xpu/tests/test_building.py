"""The library is compiled once, on first use; if it cannot be compiled, the error says how to fix that."""

import os
import pty
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from accelkit_fake_xpu import build
from accelkit_fake_xpu.build import LIBRARY

import accelkit
from accelkit import CppLibrary, cpp_library

PACKAGE = Path(build.__file__).parent
UNITY = LIBRARY._unity
BUILD = "from accelkit_fake_xpu.build import LIBRARY; print(LIBRARY.build())"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return the path of the device's cache folder in this test. The folder does not exist yet."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FAKE_XPU_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Return a function ``make(body="")`` that sets CXX to a shell script and returns the path of the script's log.

    The script appends the paths of its source files to the log, runs the shell code ``body``, and then runs the real compiler.
    """

    real = os.environ.get("CXX", "c++")

    def make(body=""):
        script, log = tmp_path / "compiler", tmp_path / "compiled"
        log.touch()
        script.write_text(f'#!/bin/sh\nfor word; do case "$word" in *.cpp) echo "$word" >>{log};; esac; done\n{body}\nexec {real} "$@"\n')
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))
        return log

    return make


def test_importing_the_package_compiles_nothing_and_imports_no_torch(cache):
    code = "import sys, accelkit_fake_xpu, accelkit_fake_xpu.accelerator; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
    assert not cache.exists()


def test_the_wheel_is_python_and_source(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, Path(__file__).parents[1]]
    subprocess.run(command, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"accelkit_fake_xpu/csrc/{path.name}" for path in (PACKAGE / "csrc").iterdir()} <= set(names)
    assert not [name for name in names if name.endswith((".so", ".o", ".pyc"))]


def test_many_processes_at_once_compile_once(cache, compiler):
    """The test only counts compilations. Real sources would take a minute, so the compiler compiles an empty file in place of each."""
    log = compiler('case "$*" in *csrc*) for out; do :; done; exec c++ -x c++ -c /dev/null -o "$out";; esac')
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([sys.executable, "-c", BUILD], **pipes) for _ in range(4)]
    outputs = [process.communicate(timeout=250) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, outputs
    assert {out for out, _ in outputs} == {f"{LIBRARY.path}\n"}
    assert sum("compiling for torch" in said for _, said in outputs) == 1
    compiled = [Path(line).name for line in log.read_text().splitlines() if Path(line).name != "empty.cpp"]
    assert sorted(compiled) == sorted(path.name for path in (PACKAGE / "csrc").glob("*.cpp"))
    assert sorted(path.suffix for path in cache.iterdir()) == ["", ".lock", ".so"]
    assert len(list((cache / "objects").iterdir())) == len(compiled) - sum(len(group) - 1 for group in UNITY)


def test_a_killed_build_is_begun_anew(cache, compiler):
    compiler('case "$*" in *csrc*) sleep 60;; esac')
    process = subprocess.Popen([sys.executable, "-c", BUILD], stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert "compiling" in process.stderr.readline()
    deadline = time.monotonic() + 30
    while not list(cache.glob("*-building-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stderr.close()
    assert not LIBRARY.path.exists()
    compiler("case \"$*\" in *csrc*) echo 'error: again' >&2; exit 1;; esac")
    with pytest.raises(accelkit.BuildError, match="error: again"):
        LIBRARY.build()
    assert sorted(path.suffix for path in cache.iterdir()) == ["", ".lock"], "what the killed process left is gone"
    assert not list((cache / "objects").iterdir())


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Return the source folder of a library, and a function that builds the library and returns the names of the compiled files.

    The sources are two files that include the same header.
    """
    log = tmp_path / "compiled"
    script = tmp_path / "compiler"
    script.write_text(f'#!/bin/sh\nfor word; do case "$word" in *csrc/*.cpp) echo "$word" >>{log};; esac; done\nexec c++ "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("SMALL_CACHE_DIR", str(tmp_path / "small"))
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "shared.h").write_text("int one();\n")
    for name in ("first", "second"):
        (sources / f"{name}.cpp").write_text(f'#include "shared.h"\nint {name}() {{ return 1; }}\n')

    def build(**options):
        log.write_text("")
        CppLibrary("small", sources, **options).build()
        return sorted(Path(line).name for line in log.read_text().splitlines())

    return sources, build


def test_only_what_has_changed_is_compiled_again(small, tmp_path):
    sources, build = small
    assert build() == ["first.cpp", "second.cpp"]
    assert build() == []
    (sources / "second.cpp").write_text('#include "shared.h"\nint second() { return 2; }\n')
    assert build() == ["second.cpp"]
    (sources / "shared.h").write_text("int one(); int two();\n")
    assert build() == ["first.cpp", "second.cpp"]
    assert len(list((tmp_path / "small" / "objects").iterdir())) == 2, "those of earlier builds are removed"


@pytest.mark.parametrize("name", ["shared.hpp", "include/shared.h", "detail/shared.cpp"])
def test_a_file_that_is_only_included_counts(small, name):
    sources, build = small
    header = sources / name
    header.parent.mkdir(exist_ok=True)
    for value in (1, 2):
        header.write_text(f"#define VALUE {value}\n")
        (sources / "first.cpp").write_text(f'#include "{name}"\nint first() {{ return VALUE; }}\n')
        assert build() == ["first.cpp", "second.cpp"]
    (sources / ".first.cpp.swp").write_text("an editor's file")
    assert build() == []


def test_the_files_of_a_group_are_compiled_as_one(small, tmp_path):
    """The second file can use a name with internal linkage from the first file only if both are compiled as one."""
    sources, build = small
    (sources / "first.cpp").write_text('#include "shared.h"\nnamespace { int one_more() { return 2; } }\nint first() { return 1; }\n')
    (sources / "second.cpp").write_text('#include "shared.h"\nint second() { return one_more(); }\n')
    (sources / "third.cpp").write_text('#include "shared.h"\nint third() { return 3; }\n')
    with pytest.raises(accelkit.BuildError, match="one_more"):
        build()
    assert build(unity=[["first.cpp", "second.cpp", "absent.cpp"], ["absent.cpp"]]) == ["first.cpp", "second.cpp"], "the third was kept"
    unity = [["first.cpp", "second.cpp"]]
    (sources / "first.cpp").write_text((sources / "first.cpp").read_text() + "\n")
    assert build(unity=unity) == ["first.cpp", "second.cpp"]
    (sources / "third.cpp").write_text("int third() { return 4; }\n")
    assert build(unity=unity) == ["third.cpp"]
    assert build(unity=unity, exclude=["second.cpp"]) == ["first.cpp", "third.cpp"], "an excluded file may be included by any other"
    names = sorted(path.name.rpartition("-")[0].rpartition("-")[2] for path in (tmp_path / "small" / "objects").iterdir())
    assert names == ["first", "first+second", "third"]


def test_what_was_compiled_before_an_error_is_kept(small):
    sources, build = small
    right = (sources / "second.cpp").read_text()
    (sources / "second.cpp").write_text("int second() { return }\n")
    with pytest.raises(accelkit.BuildError, match="error"):
        build()
    (sources / "second.cpp").write_text(right)
    assert build() == ["second.cpp"]


def test_an_object_that_another_user_could_have_written_is_not_used(small, tmp_path):
    sources, build = small
    build()
    (sources / "second.cpp").write_text("int second() { return 2; }\n")
    for path in (tmp_path / "small" / "objects").iterdir():
        path.chmod(0o666)
    assert build() == ["first.cpp", "second.cpp"]


def test_a_library_in_the_package_is_used_with_the_torch_for_which_it_was_compiled(small, tmp_path, monkeypatch):
    sources, build = small
    monkeypatch.setattr(cpp_library, "torch_version", lambda: "2.13.0+cpu")
    library = CppLibrary("small", sources)
    prebuilt = library.prebuild()
    assert prebuilt.parent == tmp_path / "prebuilt"
    assert prebuilt.name.startswith("small-torch2.13-")
    shutil.rmtree(tmp_path / "small")
    prebuilt.chmod(0o666)  # as in a package that belongs to a group of users
    for torch in ("2.13.0+cpu", "2.13.1"):
        monkeypatch.setattr(cpp_library, "torch_version", lambda torch=torch: torch)
        assert library.problem() is None
        assert library.build() == prebuilt
    monkeypatch.setattr(cpp_library, "torch_version", lambda: "2.15.0")
    assert build() == ["first.cpp", "second.cpp"]
    assert library.build().parent == tmp_path / "small"
    assert library.prebuild().name.startswith("small-torch2.15-")
    assert prebuilt.exists(), "a wheel may be for several torches"
    monkeypatch.setattr(cpp_library, "torch_version", lambda: "2.16.0")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(accelkit.BuildError) as caught:
        library.build()
    assert str(caught.value).startswith(
        "small cannot be loaded with torch 2.16.0: its wheel contains no library for torch 2.16.0, only for torch 2.13 and 2.15. The "
        "library cannot be compiled on this machine either: no C++ compiler was found: CXX is no-such-compiler, which does not exist. "
        "What to do: install the small wheel for torch 2.16, or install torch 2.15; to compile the library instead, install a C++ compiler"
    )


def test_a_library_in_the_package_is_not_used_for_other_sources_or_flags(small, tmp_path, monkeypatch):
    sources, build = small
    prebuilt = CppLibrary("small", sources, flags=["-I/mine"], links=["-L/mine"]).prebuild()
    assert CppLibrary("small", sources, flags=["-I/theirs"]).path == prebuilt, "its name does not depend on folders"
    assert CppLibrary("small", sources, flags=["-O3"]).path != prebuilt
    assert CppLibrary("small", sources, exclude=["second.cpp"]).path != prebuilt
    monkeypatch.setenv("SMALL_CXXFLAGS", "-O0 -g")
    assert CppLibrary("small", sources).path != prebuilt
    build()
    assert b".debug_info" in CppLibrary("small", sources).path.read_bytes()
    monkeypatch.delenv("SMALL_CXXFLAGS")
    (sources / "shared.h").write_text("int one(); int two();\n")
    assert CppLibrary("small", sources).prebuild() != prebuilt
    assert len(list((tmp_path / "prebuilt").iterdir())) == 1, "that of earlier sources is removed"


def test_the_library_is_one_for_each_torch_and_source(monkeypatch, tmp_path):
    first = LIBRARY.path
    assert cpp_library.torch_version() in first.name
    monkeypatch.setattr(cpp_library, "torch_version", lambda: "2.99.0")
    other = LIBRARY.path
    sources = tmp_path / "csrc"
    sources.mkdir()
    for path in (PACKAGE / "csrc").iterdir():
        (sources / path.name).write_bytes(path.read_bytes() + b"\n" * (path.name == "faults.cpp"))
    assert len({first, other, CppLibrary("fake_xpu", sources).path}) == 3


def test_without_torch(monkeypatch, tmp_path):
    """The plugin is installed without its dependencies, as with pip install --no-deps."""
    monkeypatch.setattr(sys, "path", [])
    assert CppLibrary("small", tmp_path).problem() == ("torch is not installed", "pip install torch")


@pytest.mark.parametrize("variable", ["CXX", "FAKE_XPU_CXXFLAGS"])
def test_a_variable_whose_quotation_has_no_end(cache, monkeypatch, variable):
    monkeypatch.setenv(variable, "c++ '-O3")
    reason, hint = LIBRARY.problem()
    assert reason.endswith(f"""{variable}="c++ '-O3" cannot be split into words: No closing quotation""")
    assert variable in hint
    with pytest.raises(accelkit.BuildError, match="No closing quotation"):
        LIBRARY.build()


def test_without_a_compiler(cache, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(cache))
    reason, hint = LIBRARY.problem()
    assert reason == "no C++ compiler was found: none of c++, g++, clang++ is installed"
    assert "apt-get install g++" in hint
    monkeypatch.setenv("CXX", "no-such-compiler -O3")
    assert LIBRARY.problem()[0] == "no C++ compiler was found: CXX is no-such-compiler, which does not exist"
    with pytest.raises(accelkit.BuildError, match=r"cannot be loaded with torch .*: no C\+\+ compiler was found.* install"):
        LIBRARY.build()


def test_with_a_broken_compiler(cache, compiler):
    compiler("echo 'cc1plus: error: bad day' >&2; exit 1")
    reason, hint = LIBRARY.problem()
    assert reason == "the C++ compiler does not work: cc1plus: error: bad day"
    assert hint.startswith("repair the compiler, or install")
    compiler("exit 3")
    assert "compiler ended with exit code 3" in LIBRARY.problem()[0]


def test_with_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FAKE_XPU_CACHE_DIR", str(tmp_path / "file" / "cache"))
    reason, hint = LIBRARY.problem()
    assert reason.startswith("the cache folder is not writable: ")
    assert hint == "make the folder writable, or set FAKE_XPU_CACHE_DIR to a writable folder"


def test_a_library_that_is_there_needs_neither_compiler_nor_writing(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert LIBRARY.path.exists(), "this process has loaded it"
    assert LIBRARY.problem() is None
    assert LIBRARY.build() == LIBRARY.path


def test_on_a_terminal_it_spins(cache, compiler):
    compiler("case \"$*\" in *csrc*) sleep 0.5; echo 'error: enough' >&2; exit 1;; esac")
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", BUILD], stderr=theirs, env=os.environ | {"TERM": "xterm", "COLUMNS": "200"})
    process.wait(60)
    os.close(theirs)
    said = b""
    try:
        while chunk := os.read(ours, 65536):
            said += chunk
    except OSError:  # raised when the other end of the terminal is closed
        pass
    os.close(ours)
    assert b"compiling for torch" in said
    assert any(frame.encode() in said for frame in "⠋⠙⠹⠸")
