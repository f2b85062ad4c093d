"""Conversion of logged values and hyperparameters to plain values."""

from __future__ import annotations

import argparse
import dataclasses
import numbers
from collections.abc import Mapping
from typing import Any

from accelkit.errors import UsageError
from accelkit.tracking.tracker import Scalar
from accelkit.whole_number import whole_number

_SCALARS = (bool, int, float, str)


def plain_values(values: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return the values as plain bools, ints, floats and strings. Reading a tensor blocks until the device has computed it.

    Raises:
        UsageError: If ``values`` is not a mapping, if a name is invalid (empty, ``step`` or not a string), or if an element of ``values``
            is not a single bool, real number or string.
    """
    if not isinstance(values, Mapping):
        given = type(values).__name__
        raise UsageError(f"log() needs a dict of values by name, got {given}", hint='write rt.log({"loss": loss})')
    plain: dict[str, Scalar] = {}
    for name, value in values.items():
        if not isinstance(name, str) or not name:
            raise UsageError(f"log() got a value named {name!r:.80}", why="the name of a value must be a non-empty string")
        plain[name] = value if isinstance(value, _SCALARS) else _plain(name, value)
    if "step" in plain:
        raise UsageError("log() got a value named 'step'", why="trackers have a step of their own", hint="write rt.log({...}, step=step)")
    return plain


def _plain(name: str, value: Any) -> Scalar:
    if isinstance(value, numbers.Real):
        return float(value)
    why = f"its type is {type(value).__name__}"
    try:
        item = value.item()
    except AttributeError:
        pass
    except (RuntimeError, ValueError) as error:  # of a tensor or an array with several elements
        why = str(error)
    else:
        if isinstance(item, bool | int | float | str):
            return item
        why = f"it contains one {type(item).__name__}"
    raise UsageError(
        f"log() cannot record {name!r}",
        why=why,
        hint="log a number, a string or a tensor with one element; for images and other objects, call the trackers in rt.trackers directly",
    )


def checked_step(step: Any) -> int:
    """Return the step as an int.

    Raises:
        UsageError: If the step is not of an integer type (floats such as 3.0 are not accepted), or is negative.
    """
    number = whole_number(step)
    if number is None or number < 0:
        raise UsageError(f"step must be a non-negative whole number, got {step!r:.80}", hint="count the steps of the optimizer, from 0")
    return number


def hyperparameters(values: Any) -> dict[str, Any]:
    """Return hyperparameters as a dict. They may be given as a mapping, an ``argparse.Namespace`` or an instance of a dataclass.

    Raises:
        UsageError: If ``values`` is none of these.
    """
    if isinstance(values, Mapping):
        return {str(name): value for name, value in values.items()}
    if isinstance(values, argparse.Namespace):
        return dict(vars(values))
    if dataclasses.is_dataclass(values) and not isinstance(values, type):
        return dataclasses.asdict(values)
    raise UsageError(
        f"log_hyperparameters() got {type(values).__name__}",
        why="a dict, an argparse.Namespace or an instance of a dataclass is expected",
        hint='write rt.log_hyperparameters({"learning_rate": 0.1})',
    )


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """Return nested hyperparameters in one dict with names such as ``model/depth``. Every name begins with ``prefix``.

    Values other than bools, ints, floats and strings are converted to strings.
    """
    result: dict[str, Scalar] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{prefix}{name}/")
        else:
            result[f"{prefix}{name}"] = value if isinstance(value, bool | int | float | str) else str(value)
    return result
