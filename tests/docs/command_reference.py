"""Every command with its options, as click knows them: docs/reference/commands.md.

``python tests/docs/command_reference.py`` writes the page anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from accelkit.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"
_HEAD = """# Commands and options

This page contains the help text of every command, as printed by `accelkit COMMAND --help`. [The command
line](../cli.md) describes the exit codes that all commands share and the fields of the JSON output.

<!-- made by python tests/docs/command_reference.py -->
"""


def walk(command: click.Command = main, path: str = "accelkit") -> Iterator[tuple[str, click.Command]]:
    """Every command below, groups first, with the words that call it."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from walk(below, f"{path} {name}")


def generated() -> str:
    """The page."""
    return _HEAD + "".join(_section(path, command) for path, command in walk())


def _section(path: str, command: click.Command) -> str:
    context = click.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    lines = ["", f"## {path}", "", f"`{usage}`", ""]
    for paragraph in (command.help or "").split("\n\n"):
        lines += [" ".join(paragraph.split()), ""]
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    if options:
        lines += ["| option | meaning | default |", "|---|---|---|", *(_row(option, context) for option in options), ""]
    return "\n".join(lines)


def _row(option: click.Option, context: click.Context) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    value = "" if option.is_flag else f" `{option.make_metavar(context)}`"
    if isinstance(option.type, click.Choice):
        value = f" {', '.join(f'`{choice}`' for choice in option.type.choices)}"
    extra = option.get_help_extra(context)
    default = f"`{extra['default']}`" if "default" in extra else ""
    return _cells(f"{names}{value}", option.help or "", default)


def _cells(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(generated(), "utf-8")
