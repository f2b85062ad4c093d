"""Run a command in this process, with any click that is supported."""

from __future__ import annotations

import inspect

from click.testing import CliRunner


def command_runner() -> CliRunner:
    """A runner whose results have stdout and stderr apart. click before 8.2 mixes them unless it is told not to."""
    mixes = "mix_stderr" in inspect.signature(CliRunner).parameters
    return CliRunner(mix_stderr=False) if mixes else CliRunner()
