"""Runs click commands in this process, with every supported version of click."""

from __future__ import annotations

import inspect

from click.testing import CliRunner


def command_runner() -> CliRunner:
    """Return a runner that keeps stdout and stderr separate. click before 8.2 mixes them by default."""
    mixes = "mix_stderr" in inspect.signature(CliRunner).parameters
    return CliRunner(mix_stderr=False) if mixes else CliRunner()
