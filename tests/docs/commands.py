"""Runs the commands of a page's ``console`` blocks with bash, one after the other, as in one shell.

Some cannot be run as they stand, and are checked by a rule of their own:

- ``make TARGET``: make says what it would do, of the repository's Makefile.
- ``pip install``: a folder is installed, without network; any other name must be one that the project knows, with its extras.
- ``accelkit conformance run``: with the tests of one area only, for a profile may take minutes. It certifies nothing then.
- ``srun``, ``mpirun``: the program alone is run. Real ones are started by the tests in ``tests/cluster``.

What is shown as output must be what is printed, but for digits; ``...`` stands for anything.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from accelkit_fake_xpu.build import LIBRARY

ROOT = Path(__file__).parents[2]
LAUNCHERS = ("srun", "mpirun", "mpiexec")
_AREA = ("--select", "device")
_STATE = ".shell"


class Shell:
    """One shell, whose folder and variables last from one command to the next."""

    def __init__(self, folder: Path, may_exit: dict[str, tuple[int, ...]]) -> None:
        self.folder, self.may_exit = folder, may_exit
        self.site = folder / ".site"
        (folder / _STATE).touch()

    def run_block(self, text: str) -> None:
        """Every ``$ `` line (with those that continue it), and the output below it.

        Raises:
            AssertionError: If a command fails, or prints something else.
        """
        for part in re.split(r"^\$ ", text.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            printed = self.run(command)
            check_output(command, shown, printed)

    def run(self, command: str) -> str:
        """What it prints, standard error too."""
        words = shlex.split(command, comments=True)
        plain = " ".join(words)
        while words and re.match(r"^\w+=", words[0]) and words[1:]:
            words = words[1:]
        accepted = next((codes for known, codes in self.may_exit.items() if plain.startswith(known)), ())
        if words[0] == "make":
            return self.bash(f"make --dry-run --no-print-directory -C {shlex.quote(str(ROOT))} {shlex.join(words[1:])}")
        if words[:2] == ["pip", "install"]:
            return self.install(words[2:])
        if words[0] in LAUNCHERS:
            return self.run(shlex.join(_program(words)))
        if words[:3] == ["accelkit", "conformance", "run"] and not {"--select", "--kind", "contract"} & set(words):
            accepted = (1,) if "--certify" in words else ()
            command = shlex.join([*words, *_AREA])
        return self.bash(command, accepted)

    def bash(self, command: str, accepted: tuple[int, ...] = ()) -> str:
        # `set -e` ignores that a command before && or || fails: `(exit $?)` does not.
        script = f'set -e; . {self.folder / _STATE}\n{command}\n(exit $?)\n{{ export -p; echo cd "$PWD"; }} > {self.folder / _STATE}'
        result = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            input="\n" * 50,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert result.returncode in (0, *accepted), f"$ {command}\n{result.stdout}\nended with {result.returncode}"
        return result.stdout

    def install(self, arguments: list[str]) -> str:
        """Folders into a folder on the path; of other names, whether they are known."""
        for argument in [one for one in arguments if not one.startswith("-")]:
            name, _, extras = argument.partition("[")
            if name.startswith((".", "/", "~")):
                pip = "python -m pip --disable-pip-version-check install --no-deps --no-build-isolation --no-index --upgrade --quiet"
                self.bash(f"{pip} --target {self.site} {name}; export PYTHONPATH={self.site}:$PYTHONPATH")
                self.make_way()
            else:
                check_known(name, [one for one in extras.rstrip("]").split(",") if one])
        return ""

    def make_way(self) -> None:
        """What a page installs as ``acme`` is its own: the plugin that pages have by this name otherwise goes."""
        stand_in = os.environ.get("STAND_IN", "")
        if stand_in and any(
            re.search(r"^acme\b", path.read_text(), re.MULTILINE) for path in self.site.glob("*.dist-info/entry_points.txt")
        ):
            shutil.rmtree(stand_in, ignore_errors=True)


def check_known(name: str, extras: list[str]) -> None:
    """A distribution of this repository, with these extras; or one that it is used and tested with."""
    ours = {}
    for path in (ROOT, ROOT / "builtin_plugins" / "accelkit-fake-xpu", ROOT / "examples" / "vendor-acme-plugin"):
        project = tomllib.loads((path / "pyproject.toml").read_text("utf-8"))["project"]
        ours[project["name"]] = set(project.get("optional-dependencies", {}))
    if name in ours:
        assert set(extras) <= ours[name], f"{name} has no extra {', '.join(set(extras) - ours[name])}"
        return
    known = (ROOT / "pyproject.toml").read_text("utf-8") + (ROOT / "constraints.txt").read_text("utf-8")
    bare = re.split(r"[=<>~!]", name)[0]
    assert re.search(rf"^\W*{re.escape(bare)}\b|\"{re.escape(bare)}\b", known, re.MULTILINE), f"nothing here is known of the package {bare}"


def check_output(command: str, shown: str, printed: str) -> None:
    """Each line that is shown was printed, in this order."""
    position = 0
    for line in [line.strip() for line in shown.splitlines() if line.strip() not in ("", "...")]:
        pattern = re.sub(r"\d+", r"\\d+", re.escape(" ".join(line.split())).replace(r"\.\.\.", ".*")).replace(r"\ ", r"\s+")
        found = re.compile(pattern).search(printed, position)
        assert found, f"$ {command}\nshows {line!r}, but printed\n{printed}"
        position = found.end()


def _program(words: list[str]) -> list[str]:
    """What a launcher starts: from the first word that is a program."""
    for number, word in enumerate(words[1:], 1):
        if word in ("python", "accelkit", "torchrun", "bash", "env"):
            return words[number:]
    raise AssertionError(f"{shlex.join(words)} starts no program that is known here")


def environment(folder: Path, programs: Path) -> dict[str, str]:
    """Of a page's process: these programs and others of this Python, a home of its own, and what pip installs here."""
    path = [str(programs), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    python_path = [str(Path(__file__).parent / "parts"), os.environ.get("PYTHONPATH", "")]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return inherited | {
        "PATH": os.pathsep.join(path),
        "PYTHONPATH": os.pathsep.join(filter(None, python_path)),
        "HOME": str(folder / "home"),
        "FAKE_XPU_CACHE_DIR": str(LIBRARY.cache_folder),  # that home is new, and the device is compiled already
        "ROOT": str(ROOT),
        "PARTS": str(Path(__file__).parent / "parts"),
        "NO_COLOR": "1",
    }
