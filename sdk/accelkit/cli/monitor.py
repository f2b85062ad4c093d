"""``accelkit monitor [NAME]``: show the statistics of an accelerator's devices while they run."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator

import click

from accelkit.cli.import_option import IMPORT
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
@click.option("--devices", default="-1", show_default="all", help="The indices of the devices, such as 0,2, or their number.")
@click.option("--interval", default=1.0, show_default=True, help=f"Seconds between two readings; at least {_SHORTEST}.")
@click.option("--count", type=click.IntRange(min=1), help="End after this number of readings.")
@click.option(
    "--prometheus",
    "port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    help="Serve the readings to Prometheus on this port; 0: a free one.",
)
@click.option("--address", help="The address for --prometheus. Anybody who can reach it can read the statistics.  [default: 127.0.0.1]")
@IMPORT
@click.option("--json", "is_json", is_flag=True, help="Print each reading as one line of JSON to standard output.")
def command(
    *, name: str | None, devices: str, interval: float, count: int | None, port: int | None, address: str | None, is_json: bool
) -> None:
    """Show the statistics of the accelerator NAME's devices: utilisation, memory, temperature, power, or what else its plugin reports.

    Without NAME, the accelerator is the one that a program would use. The statistics are read in a child process, which initialises the
    driver if the device has statistics only then. They describe the devices, not that process. Ctrl-C ends the command.
    """
    if not interval >= _SHORTEST:
        raise UsageError(f"--interval {interval:g} is too short", hint=f"use at least {_SHORTEST} s")
    if address is not None and port is None:
        raise UsageError("--address has no effect without --prometheus PORT", hint="add --prometheus PORT")
    record = resolve(name or decide(None).chosen)
    try_out(record)
    with Monitor(record, devices) as monitor:
        readings = _read(monitor, interval, count)
        if port is not None:
            from accelkit.monitoring.prometheus import Exporter

            exporter = Exporter(record.name, address or "127.0.0.1", port)
            say(f"accelkit monitor: {exporter.url}")
            for sample in readings:
                exporter.show(sample)
                if is_json:
                    _print_json(record, sample)
        elif is_json:
            for sample in readings:
                _print_json(record, sample)
        elif sys.stdout.isatty():
            _show_live(record, readings)
        else:
            for sample in readings:
                click.echo(time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(sample.time)))
                print_table(*_table(sample))


def _read(monitor: Monitor, interval: float, count: int | None) -> Iterator[Sample]:
    following = time.monotonic()
    while count is None or count > 0:
        yield monitor.sample()
        count = None if count is None else count - 1
        following = max(following + interval, time.monotonic())
        if count != 0:
            time.sleep(following - time.monotonic() if following > time.monotonic() else 0)


def _print_json(record: PluginRecord, sample: Sample) -> None:
    devices = [{"device": device, "stats": stats} for device, stats in sample.stats.items()]
    fields = {"name": record.name, "plugin": record.plugin, "time": sample.time, "devices": devices}
    click.echo(json.dumps({"schema": "accelkit.monitor/1", **fields}))


def _show_live(record: PluginRecord, readings: Iterator[Sample]) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    with Live(auto_refresh=False) as live:
        for sample in readings:
            title = printable(f"{record.name} ({record.plugin})  {time.strftime('%H:%M:%S', time.localtime(sample.time))}")
            table = Table(box=None, header_style="bold", pad_edge=False)
            columns, rows = _table(sample)
            for column in columns:
                table.add_column(column, justify="left" if column == columns[0] else "right")
            for row in rows:
                table.add_row(*(Text(printable(cell)) for cell in row))
            live.update(Group(Text(title), table), refresh=True)


def _table(sample: Sample) -> tuple[list[str], list[list[str]]]:
    """Return a column for each device and a row for each statistic."""
    names = sorted({name for stats in sample.stats.values() for name in stats})
    rows = [[_without_unit(name), *(_spell(name, stats.get(name)) for stats in sample.stats.values())] for name in names]
    return ["STATISTIC", *sample.stats], rows or [["no statistics", *("" for _ in sample.stats)]]


def _without_unit(name: str) -> str:
    head, _, unit = name.rpartition(".")
    return head if unit in ("bytes", *_UNITS) else name


def _spell(name: str, value: float | None) -> str:
    """Return the value with its unit, which the end of the name says."""
    if value is None:
        return ""
    unit = name.rpartition(".")[2]
    if unit == "bytes":
        for prefix, size in (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
            if abs(value) >= size:
                return f"{value / size:.1f} {prefix}B"
        return f"{value:.0f} B"
    return f"{value:.4g} {_UNITS[unit]}" if unit in _UNITS else f"{value:.4g}"
