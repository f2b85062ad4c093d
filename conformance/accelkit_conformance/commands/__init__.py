"""The commands of ``accelkit conformance``. Each command has its own module, which is imported when the command is invoked."""

from __future__ import annotations

import click

from accelkit.cli.lazy_group import LazyGroup

_COMMANDS = {
    "run": "run the suite on a plugin",
    "next": "say what to build next on a new device",
    "coverage": "say which operators a device leaves to the CPU",
    "list": "list the tests of a profile",
    "verify": "verify a bundle offline",
    "compare": "show what changed between two reports",
    "matrix": "show several reports side by side",
    "table": "write a Markdown table of a report, for a README",
    "selftest": "test the suite itself: run it on broken plugins",
}


@click.group("conformance", cls=LazyGroup, package=__name__, lines=_COMMANDS)
def command() -> None:
    """Test plugins on the hardware of this machine. docs/conformance.md explains the suite and its reports."""
