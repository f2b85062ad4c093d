"""A group of commands that are imported when they are invoked; their help lines stand where the group is made."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

INTERRUPTED = 130
"""The exit code of what SIGINT ended: 128 and its number, as in a shell."""


class LazyGroup(click.Group):
    """Commands of a package, one module each, whose ``command`` it is. Ctrl-C ends each with exit code 130 (click's own is 1).

    Args:
        package: Where the modules are.
        lines: Name of each command, and its line of help.
    """

    def __init__(self, *, package: str, lines: Mapping[str, str], **attributes: Any) -> None:
        super().__init__(**attributes)
        self._package, self._lines = package, dict(lines)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lines)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lines:
            return None
        command: click.Command = importlib.import_module(f"{self._package}.{cmd_name}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._lines.items()))
