"""``accelkit monitor [NAME]``: show the statistics of an accelerator's devices at regular intervals."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator

import click

from accelkit import byte_size
from accelkit.cli.import_option import IMPORT
from accelkit.cli.json_option import json_option
from accelkit.cli.output import print_table, say
from accelkit.cli.probe import try_out
from accelkit.cli.status_rows import complete_names
from accelkit.errors import UsageError, printable
from accelkit.monitoring.monitor import Monitor, Sample
from accelkit.selection import decide, resolve
from accelkit.types import PluginRecord

_UNITS = {"percent": "%", "celsius": "°C", "watts": "W"}
_SHORTEST = 0.1


@click.command("monitor")
@click.argument("name", required=False, shell_complete=complete_names)
@click.option("--devices", default="-1", show_default="all", help="How many devices to show, or their indices, separated by commas (0,2).")
@click.option("--interval", default=1.0, show_default=True, help=f"Seconds between two readings; at least {_SHORTEST}.")
@click.option("--count", type=click.IntRange(min=1), help="End after this number of readings.")
@click.option(
    "--prometheus",
    "port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    help="Serve the readings to Prometheus on this port instead of showing them. 0 selects a free port.",
)
@click.option("--address", help="The address for --prometheus. Anybody who can reach it can read the statistics.  [default: 127.0.0.1]")
@IMPORT
@json_option("Print each reading as one line of JSON to standard output.")
def command(
    *, name: str | None, devices: str, interval: float, count: int | None, port: int | None, address: str | None, is_json: bool
) -> None:
    """Show statistics of the devices of accelerator NAME.

    The statistics are utilisation, memory, temperature, power, and whatever else the accelerator's plugin reports.

    Without NAME, the accelerator is the one that accelkit selects by default. First, a child process computes with the accelerator to check
    that it works. Then another child process reads the statistics. If a device has no statistics until it is set up, this second process
    sets it up, which may take memory on the device. The statistics describe the devices, not the child process. Ctrl-C ends the command.
    """
    if not interval >= _SHORTEST:
        raise UsageError(f"--interval {interval:g} is too short", hint=f"use at least {_SHORTEST} s")
    if address is not None and port is None:
        raise UsageError("--address has no effect without --prometheus PORT", hint="add --prometheus PORT")
    record = resolve(name or decide(None).chosen)
    try_out(record)
    with contextlib.ExitStack() as stack:
        monitor = stack.enter_context(Monitor(record, devices))
        shows: list[Callable[[Sample], None]] = []
        if port is not None:
            from accelkit.monitoring.prometheus import Exporter

            exporter = Exporter(record.name, address or "127.0.0.1", port)
            say(f"accelkit monitor: {exporter.url}")
            shows.append(exporter.show)
        if is_json:
            shows.append(functools.partial(_print_json, record))
        if not shows:
            shows.append(stack.enter_context(_live_table(record)) if sys.stdout.isatty() else _print_table)
        for sample in _read(monitor, interval, count):
            for show in shows:
                show(sample)


def _read(monitor: Monitor, interval: float, count: int | None) -> Iterator[Sample]:
    """Yield ``count`` readings, one every ``interval`` seconds. If ``count`` is None, yield readings indefinitely.

    If a reading takes longer than ``interval``, the next reading starts immediately, and the following ones are timed from that late
    start. There are no extra readings to catch up.
    """
    following = time.monotonic()
    for _ in itertools.count() if count is None else range(count):
        time.sleep(max(0.0, following - time.monotonic()))
        following = max(following, time.monotonic()) + interval
        yield monitor.sample()


def _print_json(record: PluginRecord, sample: Sample) -> None:
    devices = [{"device": device, "stats": stats} for device, stats in sample.stats.items()]
    fields = {"name": record.name, "plugin": record.plugin, "time": sample.time, "devices": devices}
    click.echo(json.dumps({"schema": "accelkit.monitor/1", **fields}))


def _print_table(sample: Sample) -> None:
    click.echo(time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(sample.time)))
    print_table(*_table(sample))


@contextlib.contextmanager
def _live_table(record: PluginRecord) -> Iterator[Callable[[Sample], None]]:
    """Yield a function that shows a reading on the terminal in place of the previous one."""
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    with Live(auto_refresh=False) as live:

        def show(sample: Sample) -> None:
            title = printable(f"{record.name} ({record.plugin})  {time.strftime('%H:%M:%S', time.localtime(sample.time))}")
            table = Table(box=None, header_style="bold", pad_edge=False)
            columns, rows = _table(sample)
            for column in columns:
                table.add_column(column, justify="left" if column == columns[0] else "right")
            for row in rows:
                table.add_row(*(Text(printable(cell)) for cell in row))
            live.update(Group(Text(title), table), refresh=True)

        yield show


def _table(sample: Sample) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the rows of a table with one column per device and one row per statistic."""
    names = sorted({name for stats in sample.stats.values() for name in stats})
    rows = [[_without_unit(name), *(_spell(name, stats.get(name)) for stats in sample.stats.values())] for name in names]
    return ["STATISTIC", *sample.stats], rows or [["no statistics", *("" for _ in sample.stats)]]


def _without_unit(name: str) -> str:
    head, _, unit = name.rpartition(".")
    return head if unit in ("bytes", *_UNITS) else name


def _spell(name: str, value: float | None) -> str:
    """Return the value of a statistic as text, with its unit if the last part of ``name`` is a known unit.

    Returns "" if ``value`` is None.
    """
    if value is None:
        return ""
    unit = name.rpartition(".")[2]
    if unit == "bytes":
        return byte_size.as_text(value)
    return f"{value:.4g} {_UNITS[unit]}" if unit in _UNITS else f"{value:.4g}"
