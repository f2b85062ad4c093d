"""Reads ``tests/parts.toml``, and determines the part of the test suite to which a test belongs.

python tests/suite_parts.py    print the parts for `make help`
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Collection
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
DEFAULT = "test"
SMOKE = "smoke"


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """An entry of the file, which describes the attributes at its top. ``name`` is also the make target."""

    name: str
    contents: str
    needs: str
    seconds: int
    folders: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    environment: str = ""
    disk: int = 0


def read(path: Path = ROOT / "tests" / "parts.toml") -> dict[str, Part]:
    """Return the parts by name, in the order of the file."""
    rows = tomllib.loads(path.read_text("utf-8"))
    lists = {"folders", "markers"}
    return {name: Part(name, **{key: tuple(value) if key in lists else value for key, value in row.items()}) for name, row in rows.items()}


def part_of(path: str, markers: Collection[str], parts: Collection[Part]) -> str:
    """Return the name of the part that a test belongs to.

    Args:
        path: The test's file, relative to the repository.
        markers: The names of its pytest markers, which take precedence over its folder.
        parts: All parts.
    """
    if SMOKE in markers:
        return DEFAULT
    for part in parts:
        if not set(part.markers).isdisjoint(markers):
            return part.name
    ancestors = [path, *map(str, PurePosixPath(path).parents)]
    return next((part.name for folder in ancestors for part in parts if folder in part.folders), DEFAULT)


def help_text() -> str:
    """Return a line for each part: its target, its contents, how long it takes and what it needs."""
    lines = []
    for part in read().values():
        lines.append(f"make {part.name:<19} {part.contents}")
        lines.append(f"{'':<24} {_duration(part.seconds)}; needs {part.needs}")
    return "\n".join(lines)


def _duration(seconds: int) -> str:
    return f"{seconds} s" if seconds < 100 else f"{round(seconds / 60)} min"


if __name__ == "__main__":
    print(help_text())
