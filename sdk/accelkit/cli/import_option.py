"""The option ``--import`` of commands that use a device."""

from __future__ import annotations

import os

import click

from accelkit.discovery.verdict_cache import IMPORT_VARIABLE


def _set_variable(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Set the environment variable ACCELKIT_IMPORT to the option's value. Child processes inherit the variable."""
    if value:
        os.environ[IMPORT_VARIABLE] = value


IMPORT = click.option(
    "--import",
    metavar="MODULE[:FUNCTION]",
    expose_value=False,
    callback=_set_variable,
    help=f"Before torch:<device_type> is used, import MODULE, and call its FUNCTION if one is given. The same as {IMPORT_VARIABLE}.",
)
