"""``accelkit conformance ...``: one file a command, imported when it is invoked."""

from __future__ import annotations

import importlib

import click

_COMMANDS = {
    "run": "run the suite on a plugin",
    "list": "the tests of a profile",
    "verify": "check a bundle offline",
    "compare": "what got better and what got worse between two reports",
    "matrix": "a page of many reports: what supports what",
    "selftest": "prove that the suite can fail: run it on broken accelerators",
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"accelkit_conformance.commands.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group("conformance", cls=_LazyGroup)
def command() -> None:
    """Prove what a plugin does on the hardware in front of you. docs/conformance.md tells how to read it."""
