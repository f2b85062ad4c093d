"""The settings with which collectives are tested. For any two of the axes in ``AXES``, the combinations contain every pair of their values,
except for pairs of a dtype and a reduction that is not defined for it."""

from __future__ import annotations

import functools

from accelkit_conformance.oracle.pairwise import covering_rows

AXES: dict[str, tuple[str, ...]] = {
    "dtype": ("float32", "float64", "bfloat16", "float16", "int64", "int32", "int8", "uint8", "bool", "complex64"),
    "length": ("3", "0", "1", "1000", "65537"),
    "dimensions": ("1", "2", "4"),
    "input memory": ("whole", "offset", "strided", "transposed"),
    "output memory": ("whole", "offset", "strided", "transposed"),
    "reduction": ("SUM", "PRODUCT", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR"),
    "root": ("first", "last"),
    "group": ("all", "some"),
    "call": ("blocking", "asynchronous"),
    "parts": ("rotated", "silent"),
}
"""The axes, each with its values.

``some`` is a group that does not contain all ranks: the first and the last of three, or only the second of two. ``length`` is the length of
the first dimension. All tensors except ``whole`` tensors are parts of larger storages: a ``strided`` tensor consists of every second
element of such a part, and the dimensions of a ``transposed`` tensor have the opposite order in memory. Tensors that the collective changes
have the ``output memory``. For ``parts``, see ``Case._exchanged``.
"""

_FLOATS = ("float32", "float64", "bfloat16", "float16", "complex64")
_NO_ORDER = ("complex64",)


@functools.cache
def cases() -> list[dict[str, str]]:
    """Return the combinations of settings with which collectives are tested. Combinations whose reduction is not defined for their dtype
    are left out, and so are tensors with four dimensions whose first dimension is long."""
    return covering_rows(
        AXES,
        lambda row: (
            ("dtype" not in row or "reduction" not in row or _is_defined(row["dtype"], row["reduction"]))
            and (row.get("dimensions"), row.get("length")) != ("4", "65537")
        ),
    )


def _is_defined(dtype: str, reduction: str) -> bool:
    if reduction == "AVG":
        return dtype in _FLOATS
    if reduction in ("BAND", "BOR", "BXOR"):
        return dtype not in _FLOATS
    return not (reduction in ("MIN", "MAX", "PRODUCT") and dtype in _NO_ORDER)
