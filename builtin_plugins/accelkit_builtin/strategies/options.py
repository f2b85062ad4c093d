"""Checking the options that are passed to a strategy."""

from __future__ import annotations

from typing import TypeVar

from accelkit import UsageError

Options = TypeVar("Options")


def checked_options(options: Options | None, kind: type[Options], example: str) -> Options:
    """Return the options that were given to a strategy, or the default options if None was given.

    Args:
        options: The argument of the strategy.
        kind: The class of the options, such as ``DDPOptions``. The name of the strategy in the error message
            (``DDPStrategy``) is derived from the name of this class.
        example: An expression that creates the strategy with valid options. The hint of the error contains this expression.

    Raises:
        UsageError: If the options are not an instance of ``kind``.
    """
    if options is not None and not isinstance(options, kind):
        raise UsageError(
            f"{kind.__name__.removesuffix('Options')}Strategy({options!r:.60}) is invalid",
            why=f"its argument must be {kind.__name__}",
            hint=f"use {example}, for example",
        )
    return kind() if options is None else options
