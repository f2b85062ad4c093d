"""A page of the documentation as what is done to it, in order: its fenced blocks, and the set-up that its readers do not see.

What readers do not see stands in HTML comments::

    <!-- setup: python                  run before what follows; also bash; with a file's name it is written to that file
    import torch
    -->
    <!-- may exit 4: accelkit why cuda --> this command may end with that exit code, for it asks about the machine
    <!-- tested by: tests/cluster/test_slurm.py::test_why_under_srun -->

A block whose first line is a comment with a file's name is that file.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
DIRECTIVE = "{"
"""With this begins the language of what Sphinx runs."""

_FENCE = re.compile(r"^ {0,3}(```+|~~~+)\s*([^\s`{]*|\{[\w:-]+\}[^`]*)\s*$")
_SETUP = re.compile(r"<!-- setup: (\w+)(?: ([\w./-]+))?\s*$")
_MAY_EXIT = re.compile(r"<!-- may exit ([\d ]+): (.+?) -->")
_TESTED_BY = re.compile(r"<!-- tested by: (\S+?)::(\w+) -->")
_NAME = re.compile(r"^# ([\w./-]+\.\w+)$")


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """A block, or hidden set-up.

    Attributes:
        line: Of its first line of text in the page, from 1.
        language, text: What it is.
        file: The file that it is, if it is one.
        is_hidden: It is set-up.
    """

    line: int
    language: str
    text: str
    file: str = ""
    is_hidden: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """What a page holds.

    Attributes:
        steps: In order.
        may_exit: Exit codes besides 0 that a command may have.
        tested_by: Tests that run what cannot be run here: file, function.
    """

    path: Path
    steps: tuple[Step, ...]
    may_exit: dict[str, tuple[int, ...]]
    tested_by: tuple[tuple[str, str], ...]

    @property
    def blocks(self) -> list[Step]:
        """What readers see, and Sphinx does not run."""
        return [step for step in self.steps if not step.is_hidden and not step.language.startswith(DIRECTIVE)]


def tracked_pages() -> list[str]:
    """README.md, those of the documentation, and the fake XPU's, relative to the repository."""
    patterns = ["README.md", "docs/*.md", "docs/**/*.md", "builtin_plugins/accelkit-fake-xpu/README.md"]
    found = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return sorted(set(found))


def read(path: Path) -> Page:
    """
    Raises:
        ValueError: If a block or a comment has no end.
    """
    text = path.read_text("utf-8")
    lines = text.splitlines()
    steps: list[Step] = []
    number = 0
    while number < len(lines):
        start = number
        if fence := _FENCE.match(lines[number]):
            number = _end(lines, start, fence[1], path)
            steps.append(_block(start + 2, fence[2], "\n".join(lines[start + 1 : number]) + "\n"))
        elif setup := _SETUP.match(lines[number]):
            number = _end(lines, start, "-->", path)
            steps.append(Step(start + 2, setup[1], "\n".join(lines[start + 1 : number]) + "\n", setup[2] or "", is_hidden=True))
        number += 1
    may_exit = {command: tuple(map(int, codes.split())) for codes, command in _MAY_EXIT.findall(text)}
    return Page(path, tuple(steps), may_exit, tuple(_TESTED_BY.findall(text)))


def _end(lines: list[str], start: int, mark: str, path: Path) -> int:
    for number in range(start + 1, len(lines)):
        if lines[number].strip() == mark:
            return number
    raise ValueError(f"{path}:{start + 1}: {lines[start]} has no end")


def _block(line: int, language: str, text: str) -> Step:
    name = _NAME.match(text.partition("\n")[0])
    return Step(line, language, text, name[1] if name else "")
