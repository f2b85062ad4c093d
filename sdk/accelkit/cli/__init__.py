"""The command line. Each command has its own module, which is imported when the command is invoked.

Except for ``launch``, no command imports torch or a plugin in its own process. Plugin code runs in child processes, so text printed by a
plugin does not reach standard output or standard error. ``launch`` imports the accelerator of its job to count the devices. Data goes to
standard output, and messages go to standard error.
"""

from __future__ import annotations

from typing import Any

import click

from accelkit import __version__
from accelkit.cli.json_option import is_json_printed
from accelkit.cli.lazy_group import LazyGroup
from accelkit.cli.output import reporting_errors

_COMMANDS = {
    "list": "List plugins and their status.",
    "info": "Show everything about one plugin.",
    "doctor": "Test every plugin, and check the installation.",
    "why": "Explain which accelerator would be used, and why.",
    "env": "Show versions and settings, to paste into an issue.",
    "probe": "Run an addition on a device and check the result.",
    "monitor": "Show the statistics of devices at regular intervals.",
    "bench": "Measure how fast a device is.",
    "launch": "Start the processes of a job, one per device.",
    "new": "Create a plugin: package, tests and CI.",
    "conformance": "Test whether a plugin behaves as PyTorch expects.",
}


class _Main(LazyGroup):
    """The top-level group. If a command raises an AccelkitError, the group prints the error and exits with the error's exit code.

    The error goes to standard error. If the command prints JSON to standard output, the error also goes to standard output, as JSON.
    """

    def make_context(self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any) -> click.Context:
        with reporting_errors(lambda: False):  # --help and --version print here
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with reporting_errors(lambda: is_json_printed(ctx)):
            return super().invoke(ctx)


@click.group(cls=_Main, package=__name__, lines=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="accelkit")
def main() -> None:
    """Hardware plugins for PyTorch: what is installed, what works on this machine, and why.

    Exit codes: 0 success; 1 problems were found; 2 usage error; 3 a plugin is broken or incompatible; 4 the requested device is
    unavailable, or several accelerators match 'auto' or an alias.
    """
