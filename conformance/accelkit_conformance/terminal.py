"""Terminal output: a progress bar while tests run, and a summary by area afterwards."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

import click

from accelkit.errors import printable
from accelkit.text_table import aligned
from accelkit_conformance.certification import pluralize, some
from accelkit_conformance.expectations import expired
from accelkit_conformance.report import Report, results_of, unsupported_areas
from accelkit_conformance.results import BAD, KINDS, Result
from accelkit_conformance.runner import Started

_SHOWN = 25
_SAY_EVERY_SECONDS = 10.0
_COLOURS = {"pass": "green", "flaky": "yellow", "expected-failure": "yellow", "unsupported": "bright_black"} | dict.fromkeys(BAD, "red")


class Progress:
    """Context manager that shows the progress of a run on standard error. Call it with each event of the run.

    On a terminal, a bar shows the current test and the remaining time. Otherwise, at most one line is printed every ten seconds.

    Args:
        total: The number of tests in the run.
    """

    def __init__(self, total: int) -> None:
        self._total, self._done, self._failed = total, 0, 0
        self._running: dict[str, None] = {}
        self._bar: Any = None
        self._said = time.monotonic()

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich import progress
            from rich.console import Console

            self._bar = progress.Progress(
                progress.BarColumn(24),
                progress.MofNCompleteColumn(),
                progress.TextColumn("{task.fields[failed]}", markup=False),
                progress.TimeRemainingColumn(compact=True),
                progress.TextColumn("{task.description}", markup=False),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("starting workers", total=self._total, completed=self._done, failed="")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, event: Result | Started) -> None:
        """Handle one event of the run."""
        if isinstance(event, Started):
            self._running[event.test] = None
        else:
            self._running.pop(event.id, None)
            self._done += 1
            self._failed += event.kind in BAD
        if self._bar is not None:
            failed = f"{self._failed} failed" if self._failed else ""
            self._bar.update(self._task, completed=self._done, failed=failed, description=" ".join(list(self._running)[-1:])[:60])
        elif time.monotonic() - self._said > _SAY_EVERY_SECONDS:
            self._said = time.monotonic()
            failed = f", {self._failed} failed" if self._failed else ""
            now = "".join(f"; running {test}" for test in list(self._running)[-1:])
            click.echo(f"{self._done} of {self._total} tests{failed}{now}", err=True)


def summary_lines(report: Report) -> list[str]:
    """Return the lines of the summary as plain text: areas that are mostly unsupported, a table by area, the failures, and the verdict."""
    return [*_unsupported(report), *_table(report), "", *_failures(report), *_verdict(report)]


def show(report: Report) -> None:
    """Print the summary to standard output. On a terminal, each line about a single test has the colour of the test's result."""
    for line in summary_lines(report):
        word = line.split(":")[0].strip()
        click.secho(printable(line), fg=_COLOURS.get(word)) if word in KINDS else click.echo(printable(line))


def _unsupported(report: Report) -> list[str]:
    lines = unsupported_areas(results_of(report))
    return [*lines, ""] if lines else []


def _table(report: Report) -> list[str]:
    areas = report["summary"]["areas"]
    kinds = [kind for kind in KINDS if kind in report["summary"]["kinds"]]
    columns = ["AREA", "RUN", "TOTAL", *(kind.upper() for kind in kinds)]
    rows = []
    for area, counts in [*areas.items(), ("all", report["summary"]["kinds"])]:
        total = sum(counts.values())
        rows.append([area, str(total - counts.get("unsupported", 0)), str(total), *(str(counts.get(kind, "")) for kind in kinds)])
    return aligned([columns, *rows], has_numbers=True)


def _failures(report: Report) -> list[str]:
    bad = [result for result in results_of(report) if result.kind in (*BAD, "flaky")]
    lines = [f"{result.kind}: {result.id}: {result.reason}" for result in bad[:_SHOWN]]
    if len(bad) > _SHOWN:
        lines.append(f"... and {len(bad) - _SHOWN} more; --json or --html shows all of them")
    return [*lines, ""] if lines else []


def _verdict(report: Report) -> list[str]:
    subject, suite, run, kinds = report["subject"], report["suite"], report["run"], report["summary"]["kinds"]
    names = sorted(set(subject.get("device_names", ())))
    where = f" on {', '.join(names)}" if names else ""
    what = f"profile {suite['profile']} for torch {suite['torch']}, suite {suite['digest'][:12]}"
    lines = [f"{subject['name']} ({subject['plugin']}){where}: {what}"]
    bad = sum(kinds.get(kind, 0) for kind in BAD)
    none = sum(result.is_declared_none for result in results_of(report))
    counts = [f"{kinds.get('pass', 0)} of {run['chosen']} tests passed", f"{bad} failed" if bad else "none failed"]
    counts += [f"{kinds[kind]} {kind}" for kind in ("flaky", "expected-failure") if kinds.get(kind)]
    counts += [f"{kinds['unsupported']} unsupported ({none} declared none)"] if kinds.get("unsupported") else []
    lines.append(f"{', '.join(counts)}; {run['seconds']:.0f} s, largest worker {run['peak_bytes'] / 2**20:.0f} MiB")
    if late := expired(report["expected_failures"], run["started"]):
        lines.append(
            f"{pluralize(len(late), 'expected failure has', 'expected failures have')} expired, so this run cannot be certified: "
            f"{some(late)}"
        )
    if "coverage" in report:
        cover = report["coverage"]
        lines.append(
            f"dispatcher coverage: {cover['seen']} of {cover['required']} required ATen overloads were seen on the device "
            f"({cover['seen'] / cover['required']:.1%})"
        )
    return lines
