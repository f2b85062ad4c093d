"""The option ``--json`` of commands. It also decides whether an error is printed as JSON to standard output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])

_KEY = "accelkit.cli.json_option.is_json"


def json_option(help: str = "Print JSON to standard output.") -> Callable[[Function], Function]:
    """Return the decorator that adds the flag ``--json``, which the command gets as the argument ``is_json``."""
    return click.option("--json", "is_json", is_flag=True, is_eager=True, callback=_record, help=help)


def json_path_option(path_type: click.Path) -> Callable[[Function], Function]:
    """Return the decorator that adds the option ``--json PATH``, which the command gets as the argument ``json_path``.

    The argument is None if the option is not given. The path ``-`` stands for standard output.
    """
    line = "Write the report as JSON; - is standard output."
    return click.option("--json", "json_path", type=path_type, metavar="PATH", is_eager=True, callback=_record, help=line)


def is_json_printed(context: click.Context) -> bool:
    """Return whether the command that was invoked in ``context`` prints JSON to standard output."""
    return bool(context.meta.get(_KEY))


def _record(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Record in ``context.meta`` whether JSON goes to standard output, and return ``value``.

    All contexts of an invocation share ``context.meta``.
    """
    context.meta[_KEY] = value is True or str(value) == "-"
    return value
