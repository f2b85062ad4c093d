"""Whole numbers that users pass, which may be NumPy's."""

from __future__ import annotations

import operator
from typing import Any


def whole_number(value: Any) -> int | None:
    """Return the value as an int, or None if it is not a whole number. A float is not one, whatever its value."""
    try:
        return operator.index(value)
    except TypeError:
        return None
