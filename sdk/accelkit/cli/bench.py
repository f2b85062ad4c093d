"""``accelkit bench NAME``: measure how fast a device is."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click

from accelkit.atomic_file import atomic_file
from accelkit.benchmarking import page
from accelkit.benchmarking.run import measure
from accelkit.cli.import_option import IMPORT
from accelkit.cli.output import say
from accelkit.cli.probe import try_out
from accelkit.cli.status_rows import complete_names
from accelkit.errors import UsageError
from accelkit.selection import resolve

_STDOUT = "-"


@click.command("bench")
@click.argument("name", shell_complete=complete_names)
@click.option(
    "--json", "json_path", metavar="PATH", type=click.Path(dir_okay=False), help="Write the report as JSON; - is standard output."
)
@click.option("--quick", "is_quick", is_flag=True, help="Measure small sizes for a short time.")
@click.option("--select", default="*", show_default=True, metavar="GLOB", help="Measure only what has such a name, as in 'matmul.*'.")
@IMPORT
def command(*, name: str, json_path: str | None, is_quick: bool, select: str) -> None:
    """Measure the first device of the accelerator NAME, and print one page with the results.

    It measures the launch latency, copies, matmul, reductions, attention, convolution, the overlap of copies with computing, and training
    steps. Each result is shown beside that of the CPU, and beside the limit that the peaks measured in the same run allow. Measurements
    that the device does not support are listed with the reason. The driver is initialised in a child process.
    """
    if json_path not in (None, _STDOUT) and not Path(str(json_path)).absolute().parent.is_dir():
        raise UsageError(f"--json {json_path} cannot be written", why="its folder does not exist", hint="create the folder first")
    record = resolve(name)
    try_out(record)
    report = measure(record, is_quick=is_quick, select=select, report_progress=_say_progress)
    text = json.dumps(dataclasses.asdict(report), indent=1) + "\n"
    if json_path == _STDOUT:
        click.echo(text, nl=False)
        return
    click.echo("\n".join(page.lines(report)))
    if json_path is not None:
        try:
            with atomic_file(Path(json_path)) as path:
                path.write_text(text, "utf-8")
        except OSError as error:
            raise UsageError(f"--json {json_path} cannot be written", why=str(error), hint="choose another path") from error


def _say_progress(measurement: str, number: int, count: int) -> None:
    say(f"[{number}/{count}] {measurement}")
