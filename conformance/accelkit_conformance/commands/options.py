"""Command-line options shared by several commands."""

from __future__ import annotations

from typing import get_args

import click

from accelkit_conformance.checks import SUBJECT_KINDS, Profile

KIND = click.option(
    "--kind", type=click.Choice(SUBJECT_KINDS), default="accelerator", show_default=True, help="The kind of plugin to test."
)
PROFILE = click.option(
    "--profile",
    type=click.Choice(get_args(Profile)),
    default="training",
    show_default=True,
    help="The tests to use. Each profile includes those before it.",
)
SELECT = click.option(
    "--select",
    multiple=True,
    metavar="PATTERN",
    help="Select tests: an area, a glob over test ids, a part of a test id, or an ATen operator such as aten::mm. "
    "May be given several times.",
)
