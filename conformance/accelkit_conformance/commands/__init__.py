"""``accelkit conformance ...``: one file a command, imported when it is invoked."""

from __future__ import annotations

import click

from accelkit.cli.lazy_group import LazyGroup

_COMMANDS = {
    "run": "run the suite on a plugin",
    "list": "the tests of a profile",
    "verify": "check a bundle offline",
    "compare": "what got better and what got worse between two reports",
    "matrix": "a page of many reports: what supports what",
    "table": "what a report says is supported, as Markdown for a README",
    "selftest": "prove that the suite can fail: run it on broken accelerators",
}


@click.group("conformance", cls=LazyGroup, package=__name__, lines=_COMMANDS)
def command() -> None:
    """Prove what a plugin does on the hardware in front of you. docs/conformance.md tells how to read it."""
