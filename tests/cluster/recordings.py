"""The recorded environments: what launchers and schedulers really put into the environment of each process, and what it means."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "recorded"
RANK_FILE = "RANKFILE"  # stands for the path of a file with the lines below, as LSF writes it for two machines
RANK_FILE_LINES = ["batch5", *["h41n01"] * 42, *["h41n02"] * 42]


@dataclasses.dataclass(frozen=True)
class Recording:
    """One process of one recorded job.

    Attributes:
        name: The file's name and the process's place in it.
        source: From which run or which documentation it comes.
        environ: The variables.
        expected: ``environment``, and settings by name; None for one that cannot be told. ``error`` is part of an error's text.
    """

    name: str
    source: str
    environ: Mapping[str, str]
    expected: Mapping[str, Any]

    def with_rank_file(self, path: Path) -> dict[str, str]:
        """The variables, with a rank file that exists."""
        path.write_text("\n".join(RANK_FILE_LINES) + "\n")
        return {name: str(path) if value == RANK_FILE else value for name, value in self.environ.items()}


def recordings() -> list[Recording]:
    """Every process of every file in ``recorded/``."""
    found = []
    for path in sorted(FOLDER.glob("*.json")):
        fields = json.loads(path.read_text("utf-8"))
        for index, process in enumerate(fields["processes"]):
            found.append(Recording(f"{path.stem}-{index}", fields["source"], process["environ"], process["expected"]))
    return found
