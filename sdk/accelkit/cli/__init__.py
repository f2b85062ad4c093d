"""The command line: one file a command, imported when the command is invoked.

This process imports neither torch nor any plugin: plugin code runs in child processes, so that nothing that a plugin prints reaches
standard output or error. Data goes to standard output, messages to standard error.
"""

from __future__ import annotations

import importlib
from typing import Any

import click

from accelkit import __version__
from accelkit.cli.output import reporting_errors

_COMMANDS = {
    "list": "plugins, their status, and what to do",
    "info": "everything about one plugin",
    "doctor": "try every plugin, and the installation",
    "why": "which accelerator would be used, and why",
    "env": "versions and settings, to paste into an issue",
    "probe": "run an operator on a device and check its result",
    "conformance": "prove what a plugin does, on the hardware in front of you",
}


class _LazyGroup(click.Group):
    """Commands are imported when they are invoked; their help lines stand here."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"accelkit.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        with reporting_errors(is_json="--json" in ctx.args):
            return super().invoke(ctx)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="accelkit")
def main() -> None:
    """Hardware plugins for PyTorch: what is installed, what works here, and why.

    Exit codes: 0 fine, 1 findings, 2 usage, 3 plugin broken or incompatible, 4 the device asked for is unavailable.
    """
