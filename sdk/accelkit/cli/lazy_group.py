"""A click group whose commands are imported only when they are invoked. The list of commands is shown without importing a command."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

INTERRUPTED = 130
"""The exit code of a process that SIGINT ended: 128 plus the number of the signal, as in a shell."""


class LazyGroup(click.Group):
    """A group of the commands in a package. Each module of the package defines one command, named ``command``.

    Ctrl-C exits with code 130 (click's default is 1).

    Args:
        package: The package that contains the modules.
        lines: A mapping from the name of each command to its help line.
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
