"""Run a set of benchmarks (``make bench``), and write the results to a folder: results.json, results.md and results.svg.

python benchmarks/everything.py --output benchmarks/results/cpu
python benchmarks/everything.py --accelerator cuda --output build/cuda

By default, the programs in ``PROGRAMS`` are run; with ``--accelerator``, those in ``ON_ANY_ACCELERATOR``.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROGRAMS = (
    "step_overhead",
    "step_cases",
    "ddp_overhead",
    "start_cost",
    "list_cost",
    "checkpoint_cost",
    "loading_memory",
    "memory_per_step",
    "fake_xpu_cost",
)
ON_ANY_ACCELERATOR = ("step_overhead", "step_cases", "prefetch", "memory_per_step", "start_cost", "checkpoint_cost", "loading_memory")
"""The programs that accept ``--accelerator``."""
PACKAGES = ("accelkit", "torch", "lightning", "accelerate")
OURS = "accelkit"
NO_PEERS = ("raw loop", "computing alone")
"""Rows other than the first that do not belong to a library."""
_COLUMNS = ("median", "lowest", "highest", "over_base", "ratio")
_NOISE = 0.03
"""The relative difference below which two medians count as equal."""


def run(program: str, **given: Any) -> list[dict[str, Any]]:
    """Run a benchmark and return its tables. ``given`` are its options; if a value is None, the option is left out."""
    options = [text for name, value in given.items() if value is not None for text in (f"--{name}", str(value))]
    command = [sys.executable, str(HERE / f"{program}.py"), "--json", *options]
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    tables: list[dict[str, Any]] = json.loads(result.stdout.splitlines()[-1])
    return tables


def about() -> dict[str, str]:
    """Return the date, the machine, and the versions of Python, accelkit and the other packages."""
    found = {"date": str(datetime.date.today()), "commit": commit(), "python": platform.python_version()}
    found |= {name: importlib.metadata.version(name) for name in PACKAGES}
    return found | {"machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}"}


def commit() -> str:
    """Return the short hash of the checkout's commit, or ``unknown`` without git or outside a repository."""
    if shutil.which("git") is None:
        return "unknown"
    result = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False)
    return result.stdout.strip() or "unknown"


def behind(table: dict[str, Any]) -> list[str]:
    """Return the libraries that need less time or memory than accelkit in this table, by more than the noise."""
    rows = table["rows"]
    if OURS not in rows:
        return []
    _, *others = [(name, row) for name, row in rows.items() if name != OURS and not row["not_measured"]]
    peers = [(name, row) for name, row in others if name not in NO_PEERS and not name.startswith((OURS, " "))]
    return [name for name, row in peers if row["median"] < rows[OURS]["median"] * (1 - _NOISE)]


def as_markdown(found: dict[str, Any]) -> Iterator[str]:
    yield "# The overhead of accelkit, and of other frameworks"
    yield ""
    yield ", ".join(f"{name} {value}" for name, value in found["about"].items()) + "."
    yield "Medians of interleaved rounds; differences and ratios are paired round by round. Made by `benchmarks/everything.py`."
    for table in found["tables"]:
        rounds = f"{table['rounds']} round{'' if table['rounds'] == 1 else 's'}"
        yield from ["", f"## {table['title'][:1].upper()}{table['title'][1:]}", "", f"{table['unit']}, {rounds}.", ""]
        yield "| | median | lowest | highest | difference from the first row | ratio to the first row |"
        yield "|---|---|---|---|---|---|"
        for name, row in table["rows"].items():
            shown = f"**{name}**" if name == OURS else name
            cells = [f"not measured: {row['not_measured']}", *[""] * 4] if row["not_measured"] else [f"{row[key]:.2f}" for key in _COLUMNS]
            yield f"| {shown} | {' | '.join(cells)} |"
        if names := behind(table):
            yield from ["", f"accelkit needs more here than {', '.join(names)}."]


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw the ratios to the first row, for each table in which accelkit is compared with other libraries."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    tables = [table for table in found["tables"] if OURS in table["rows"] and len(table["rows"]) > 2]
    figure, axes = pyplot.subplots(max(len(tables), 1), 1, figsize=(8, 1.1 + 1.15 * len(tables)), layout="constrained", squeeze=False)
    for axis, table in zip(axes[:, 0], tables, strict=False):
        rows = [(name, row) for name, row in reversed(table["rows"].items()) if not row["not_measured"]]
        names, ratios = [name for name, _ in rows], [row["ratio"] for _, row in rows]
        bars = axis.barh(names, ratios, color=["#d9480f" if name == OURS else "#868e96" for name in names], height=0.7)
        axis.bar_label(bars, labels=[f"{ratio:.2f}" for ratio in ratios], padding=3, fontsize=7)
        axis.axvline(1, color="#212529", linewidth=0.8)
        axis.set_title(f"{table['title']}, relative to {next(iter(table['rows']))}", fontsize=8, loc="left")
        axis.tick_params(labelsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=HERE / "results" / "cpu", metavar="FOLDER")
    parser.add_argument("--rounds", type=int, help="number of rounds, instead of each benchmark's default")
    parser.add_argument("--seconds", type=float, help="time limit for each table; fewer rounds are run if they would take longer")
    parser.add_argument("--accelerator", help=f"accelerator for {', '.join(ON_ANY_ACCELERATOR)}; only these programs are run")
    parser.add_argument("--only", action="append", choices=dict.fromkeys(PROGRAMS + ON_ANY_ACCELERATOR), help="may be given several times")
    options = parser.parse_args()
    given = {"rounds": options.rounds, "seconds": options.seconds}
    programs = options.only or PROGRAMS
    if options.accelerator is not None:
        given["accelerator"] = options.accelerator
        programs = options.only or ON_ANY_ACCELERATOR
        if others := set(programs) - set(ON_ANY_ACCELERATOR):
            parser.error(f"{' and '.join(sorted(others))} {'does' if len(others) == 1 else 'do'} not support --accelerator")
    found = {"about": about(), "tables": [table for program in programs for table in run(program, **given)]}
    if options.accelerator is not None:
        found["about"]["accelerator"] = options.accelerator
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "results.json").write_text(json.dumps(found, indent=2) + "\n", "utf-8")
    (options.output / "results.md").write_text("\n".join(as_markdown(found)) + "\n", "utf-8")
    if importlib.util.find_spec("matplotlib") is not None:
        draw(found, options.output / "results.svg")
    print((options.output / "results.md").read_text("utf-8"))


if __name__ == "__main__":
    main()
