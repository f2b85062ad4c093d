"""The command line: one file a command, imported when the command is invoked.

This process imports neither torch nor any plugin: plugin code runs in child processes, so that nothing that a plugin prints reaches
standard output or error; ``launch`` alone imports what its job runs on, to count devices. Data goes to standard output, messages to
standard error.
"""

from __future__ import annotations

from typing import Any

import click

from accelkit import __version__
from accelkit.cli.lazy_group import LazyGroup
from accelkit.cli.output import reporting_errors

_COMMANDS = {
    "list": "plugins, their status, and what to do",
    "info": "everything about one plugin",
    "doctor": "try every plugin, and the installation",
    "why": "which accelerator would be used, and why",
    "env": "versions and settings, to paste into an issue",
    "probe": "run an operator on a device and check its result",
    "launch": "start the processes of a job, one for each device",
    "new": "make a vendor's plugin: package, tests, CI",
    "conformance": "prove what a plugin does, on the hardware in front of you",
}


class _Main(LazyGroup):
    """The top: an error of accelkit's becomes its text and its exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        with reporting_errors(is_json="--json" in ctx.args):
            return super().invoke(ctx)


@click.group(cls=_Main, package=__name__, lines=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="accelkit")
def main() -> None:
    """Hardware plugins for PyTorch: what is installed, what works here, and why.

    Exit codes: 0 fine, 1 findings, 2 usage, 3 plugin broken or incompatible, 4 the device asked for is unavailable.
    """
