"""Conversion of whole numbers that users pass, such as NumPy's integers, to int."""

from __future__ import annotations

import operator
from typing import Any


def whole_number(value: Any) -> int | None:
    """Return the value as an int, or None if ``operator.index`` does not accept it. NumPy's integers are accepted, but 2.0 is not."""
    try:
        return operator.index(value)
    except TypeError:
        return None
