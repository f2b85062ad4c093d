"""Output of commands: tables, errors, and JSON with a versioned schema."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click

from accelkit.errors import AccelkitError, printable
from accelkit.text_table import aligned

_GOOD, _NEITHER, _BAD = "green", "yellow", "red"
_STYLES = dict.fromkeys(("available", "ok", "chosen", "usable"), _GOOD) | dict.fromkeys(
    ("unavailable", "absent", "disabled", "refused"), _NEITHER
)
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # errors of a write to a file that is open already
_WIDE = 140
_WIDEST = 200  # a longer cell does not widen its column; it only shifts the rest of its own row


def print_json(command: str, fields: Mapping[str, Any]) -> None:
    """Print one JSON object to standard output. Its first entry is ``schema``, with the value ``accelkit.<command>/1``. The entries of
    ``fields`` follow.
    """
    click.echo(json.dumps({"schema": f"accelkit.{command}/1", **fields}, indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table to standard output: with colours on a terminal, otherwise as plain aligned columns with one line per row.

    Columns without any text below the heading are omitted. On a narrow terminal, the column DESCRIPTION is also omitted if it is the last
    column. In a cell, a space replaces each line break, other control characters are escaped, and nothing is interpreted as markup.
    """
    cells = [[" ".join(printable(cell).split()) for cell in row] for row in rows]
    kept = [index for index in range(len(columns)) if any(row[index] for row in cells)]
    columns, cells = [columns[index] for index in kept], [[row[index] for index in kept] for row in cells]
    if sys.stdout.isatty():
        _print_for_people(columns, cells)
        return
    for line in aligned([columns, *cells], widest=_WIDEST):
        click.echo(line)


def say(message: str) -> None:
    """Print a message to standard error. Control characters are escaped."""
    click.echo(printable(message), err=True)


@contextlib.contextmanager
def reporting_errors(is_json: Callable[[], bool]) -> Iterator[None]:
    """If the ``with`` block raises an AccelkitError, print the error to standard error, and exit with the error's exit code.

    ``is_json`` is called after the error. If it returns True, the error is also printed as JSON to standard output. A BrokenPipeError ends
    the command with exit code 0. If the output cannot be written for another reason, such as a full disk, the exit code is 1.
    """
    try:
        try:
            yield
        except AccelkitError as error:
            if is_json():
                print_json("error", {"error": type(error).__name__, **error.parts, "exit_code": error.exit_code})
            say(f"accelkit: {error}")
            raise click.exceptions.Exit(error.exit_code) from error
    except BrokenPipeError:
        _discard_output()  # the reader closed the pipe (| head), which is not an error
        raise click.exceptions.Exit(0) from None
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        try:
            sys.stdout.flush()
        except OSError:
            _discard_output()
        say(f"accelkit: could not write the output: {error.strerror}")
        raise click.exceptions.Exit(1) from error


def _discard_output() -> None:
    """Redirect standard output to the null device, so that Python does not try to write the buffered output again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_for_people(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if console.width < _WIDE and columns and columns[-1] == "DESCRIPTION":
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in ("NAME", "STATUS"))
    for row in rows:
        table.add_row(
            *(Text(cell, _STYLES.get(cell, _BAD) if column == "STATUS" else "") for column, cell in zip(columns, row, strict=True))
        )
    console.print(table)
