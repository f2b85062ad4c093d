"""Options that several commands have."""

from __future__ import annotations

from typing import get_args

import click

from accelkit_conformance.checks import SUBJECT_KINDS, Profile

KIND = click.option("--kind", type=click.Choice(SUBJECT_KINDS), default="accelerator", help="What is proved.")
PROFILE = click.option(
    "--profile",
    type=click.Choice(get_args(Profile)),
    default="training",
    show_default=True,
    help="Which tests; each holds those before it.",
)
SELECT = click.option("--select", multiple=True, metavar="PATTERN", help="Only these: an area, a glob over ids, or a part of one.")
