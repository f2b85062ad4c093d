"""``accelkit bench NAME``: measure how fast a device is."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from accelkit.atomic_file import output_file
from accelkit.benchmarking import page
from accelkit.benchmarking.run import measure
from accelkit.cli.import_option import IMPORT
from accelkit.cli.json_option import json_option, json_path_option
from accelkit.cli.output import print_json, print_table, say
from accelkit.cli.probe import try_out
from accelkit.cli.status_rows import complete_names
from accelkit.errors import UsageError
from accelkit.selection import resolve

if TYPE_CHECKING:
    from accelkit.benchmarking.compare import Change

_STDOUT = "-"


class _Bench(click.Group):
    """A group that invokes ``run`` if the first argument is not a command: ``accelkit bench NAME`` means ``accelkit bench run NAME``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_named = not args or args[0] in (*self.commands, *ctx.help_option_names)
        return super().parse_args(ctx, args if is_named else ["run", *args])


@click.group("bench", cls=_Bench)
def command() -> None:
    """Measure how fast a device is, and compare two reports. 'accelkit bench NAME' is short for 'accelkit bench run NAME'."""


@command.command("run")
@click.argument("name", shell_complete=complete_names)
@json_path_option(click.Path(dir_okay=False))
@click.option(
    "--html", "html_path", metavar="PATH", type=click.Path(dir_okay=False), help="Write the report as one HTML page with diagrams."
)
@click.option("--quick", "is_quick", is_flag=True, help="Measure small sizes for a short time.")
@click.option(
    "--select", default="*", show_default=True, metavar="GLOB", help="Run only the measurements whose names match GLOB, such as 'matmul.*'."
)
@click.option("--ranks", type=click.IntRange(2), default=2, show_default=True, help="Measure collectives between this many processes.")
@IMPORT
def run(*, name: str, json_path: str | None, html_path: str | None, is_quick: bool, select: str, ranks: int) -> None:
    """Measure the first device of the accelerator NAME, and print one page with the results.

    The measurements cover launch latency, copies, matmul, reductions, attention, convolution, the overlap of copies with computation,
    training steps, and collectives between processes that have one device each. Each result is shown next to the CPU's result, and next to
    the limit that follows from the peak rates measured in the same run. Measurements that the device does not support are listed with the
    reason. The driver is initialised in child processes.
    """
    paths = {"--json": None if json_path == _STDOUT else json_path, "--html": html_path}
    for option, path in paths.items():
        if path is not None and not Path(path).absolute().parent.is_dir():
            raise UsageError(f"{option} {path} cannot be written", why="its folder does not exist", hint="create the folder first")
    record = resolve(name)
    try_out(record)
    report = measure(record, is_quick=is_quick, select=select, ranks=ranks, report_progress=_say_progress)
    as_json = json.dumps(dataclasses.asdict(report), indent=1)
    click.echo(as_json if json_path == _STDOUT else "\n".join(page.lines(report)))
    if paths["--json"] is not None:
        _write("--json", paths["--json"], as_json + "\n")
    if html_path is not None:
        from accelkit.benchmarking import html

        _write("--html", html_path, html.text(report))


def _write(option: str, path: str, text: str) -> None:
    try:
        with output_file(Path(path)) as target:
            target.write_text(text, "utf-8", "replace")
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be written", why=str(error), hint="choose another path") from error


def _say_progress(measurement: str, number: int, count: int) -> None:
    say(f"[{number}/{count}] {measurement}")


@command.command("compare")
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option("--threshold", default="5%", show_default=True, metavar="PERCENT", help="Changes up to this percentage are ignored.")
@json_option()
def compare(*, old: Path, new: Path, threshold: str, is_json: bool) -> None:
    """Compare two reports that 'accelkit bench --json' wrote.

    A measurement counts as slower or faster only if two conditions are met: its speed changed by more than the threshold (a percentage of
    the higher of the two speeds), and the change is statistically significant. A change is significant if the p-value of the Mann-Whitney
    test, corrected by Holm's method, is below 0.05. The exit code is 1 if a measurement is slower, or if only the old report contains a
    result for a measurement.
    """
    from accelkit.benchmarking import compare as comparison

    reports, share = (comparison.read(old), comparison.read(new)), _share(threshold)
    differences, changes = comparison.differences(*reports), comparison.compare(*reports, share)
    if is_json:
        fields = {"old": str(old), "new": str(new), "threshold": share, "differences": differences}
        print_json("bench.compare", {**fields, "changes": [dataclasses.asdict(change) for change in changes]})
    else:
        for name, pair in differences.items():
            say(f"the reports are compared, although {name} differs: {pair['old']} and {pair['new']}")
        _print_changes(changes)
    if any(change.verdict in ("slower", "lost") for change in changes):
        raise click.exceptions.Exit(1)


def _print_changes(changes: Sequence[Change]) -> None:
    rows = [
        (
            change.name,
            change.unit,
            *("" if value is None else f"{value:.4g}" for value in (change.old, change.new)),
            "" if change.speed is None else f"{change.speed:.2f}x",
            "" if change.p is None else f"{change.p:.2g}",
            change.verdict,
        )
        for change in changes
    ]
    print_table(("MEASUREMENT", "UNIT", "OLD", "NEW", "SPEED", "P", "VERDICT"), rows)


def _share(text: str) -> float:
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not 0 <= percent < 100:
        raise UsageError(f"--threshold {text} is not a valid percentage", hint="use a number from 0 to less than 100, as in --threshold 5%")
    return percent / 100
