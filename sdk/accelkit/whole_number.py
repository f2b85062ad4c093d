"""Conversion of whole numbers that users pass, such as NumPy's integers, to int."""

from __future__ import annotations

import operator
from typing import Any


def whole_number(value: Any) -> int | None:
    """Return the value as an int, or None if its type is not an integer type. Floats are not accepted, whatever their value."""
    try:
        return operator.index(value)
    except TypeError:
        return None
