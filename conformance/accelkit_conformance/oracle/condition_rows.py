"""The conditions under which checks repeat a call, and combinations of these conditions for pairwise testing (see :mod:`pairwise`).

An axis is one kind of condition, such as the size, the dtype or the memory layout. A combination has one condition of each axis.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from accelkit_conformance.oracle.layouts import LAYOUTS, MIXED_LAYOUTS, MORE_LAYOUTS, NARROWED_LAYOUTS
from accelkit_conformance.oracle.pairwise import covering_rows

Conditions = Mapping[str, str]
"""A value for each axis of ``AXES``."""

AXES: dict[str, tuple[str, ...]] = {
    "size": ("as recorded", "edge", "many rows", "long rows", "tiny"),
    "values": ("as recorded", "special", "infinities", "all NaN"),
    "layout": ("contiguous", *LAYOUTS),
    "destination": ("a new tensor", "out=", "strided out=", "in place", "strided in place"),
    "gradients": ("enabled", "no_grad", "inference_mode", "recorded"),
    "place": ("the current device", "another device", "another current device", "another thread", "another stream", "after an error"),
    "dtype": ("as recorded", "bfloat16", "float16"),
}
"""The axes, each with its values. The first value of each axis is the ordinary value.

``dtype`` is the dtype to which the float32 arguments are converted.

The values, apart from the recorded values:

- ``special``: some elements of each tensor are NaN, inf or -inf.
- ``infinities``: one, two or three neighbouring elements of each row of the first tensor are -inf, and every third row is all -inf. The
  values are the same as ``special`` in calls that compute gradients or means, and if the first tensor is small or has no floating-point
  numbers.
- ``all NaN``: all elements of all tensors are NaN.

The sizes, apart from the recorded size:

- ``edge``: the length of the last dimension is a power of two or differs by one from a power of two.
- ``many rows`` and ``long rows``: the first or the last dimension, respectively, is lengthened until the largest result has more than
  2^16 elements (2^14 for slow calls). If no result grows, the dimension itself gets that length.
- ``tiny``: the length of the last dimension is 0 or 1.
- ``one dimension``: all dimensions except the last are removed, by indexing. This size is combined with few other conditions.

If the call has an argument ``dim``, the dimension that this argument names takes the place of the last dimension, and ``many rows``
lengthens another dimension. The other dimensions have odd lengths where the call allows it, because a number of elements that is a multiple
of four leaves no incomplete block.
"""

# Rows with values that are not in ``AXES``. ``a busy stream`` takes some milliseconds, and ``followed by empty_cache`` makes a device
# allocate its memory anew. For ``six dimensions``, further dimensions are added in front of the others. ``most rows`` is used only for slow
# calls: with ``many rows``, the largest result of a slow call has more than 2^14 elements; with ``most rows``, it has more than 2^16. For
# ``one``, the length of the last dimension is 1.
_SIX = {"size": "six dimensions"}
_ONE = {"size": "one dimension"}
_CONTIGUOUS_ROWS: tuple[dict[str, str], ...] = (
    _SIX,
    _SIX | {"values": "special", "destination": "out="},
    {"size": "most rows"},
    _ONE,
    {"place": "a busy stream"},
    {"place": "followed by empty_cache"},
    {"place": "followed by empty_cache", "destination": "in place"},
)
_STRIDED_ROWS: tuple[dict[str, str], ...] = (
    _SIX | {"layout": "strided"},
    _SIX | {"layout": "transposed", "destination": "strided out="},
    _ONE | {"layout": "strided", "destination": "strided out="},
    *({"layout": layout} for layout in (*MIXED_LAYOUTS, *NARROWED_LAYOUTS, *MORE_LAYOUTS)),
    {"layout": "narrowed", "destination": "narrowed out="},
    {"layout": "narrowed", "destination": "narrowed in place"},
    {"layout": "transposed", "destination": "permuted out="},
    {"layout": "reversed", "destination": "permuted in place"},
    {"layout": "odd strides", "size": "one"},
    {"layout": "ambiguous strides", "size": "one"},
)


@functools.cache
def rows(*, is_contiguous: bool) -> list[dict[str, str]]:
    """Return the combinations of conditions for calls with contiguous tensors, or for calls with a non-contiguous tensor.

    For contiguous tensors, the layout is ``contiguous``, and no destination is strided. Otherwise, the layout is one of ``LAYOUTS``, and
    the destination is a new tensor or strided.

    For any two axes other than ``dtype``, each pair of their conditions occurs in a combination whose dtype is ``as recorded``. There is
    one exception: for contiguous tensors, the combination of the first values of all axes is left out, and with it each pair that occurs in
    no other combination.

    The combinations in bfloat16 and float16 contain every condition of the other axes at least once, but not every pair, because a small
    error may go unnoticed in these dtypes.

    There are also two combinations in which the tensors have six dimensions, and one combination in which they have one dimension. For
    contiguous tensors, there is one more combination, with the size ``most rows``. It is used only for slow calls. With this size, the
    largest result of a slow call has more than 2^16 elements; with ``many rows``, the lower limit is only 2^14. One further combination for
    contiguous tensors has the place ``a busy stream``: copies that write the arguments are still queued on the stream on which the call
    runs. Two more have the place ``followed by empty_cache``: the allocator's cache is emptied right after the call, whose work may still
    be queued, and before the result is read.

    For tensors that are not contiguous, there are also:

    - a combination for each layout in ``MIXED_LAYOUTS``, ``NARROWED_LAYOUTS`` and ``MORE_LAYOUTS``
    - combinations with gaps between the rows of the tensor into which the call writes, in place or with ``out=``
    - combinations in which the dimensions of this tensor are in the opposite order in memory
    - combinations of the layouts ``odd strides`` and ``ambiguous strides`` with a last dimension of length 1
    """
    if is_contiguous:
        axes = {**AXES, "layout": AXES["layout"][:1], "destination": tuple(one for one in AXES["destination"] if "strided" not in one)}
    else:
        axes = {**AXES, "layout": AXES["layout"][1:], "destination": ("a new tensor", "strided out=", "strided in place")}
    pairs = covering_rows({**axes, "dtype": AXES["dtype"][:1]})
    lower = [
        {axis: values[(row + place * shift) % len(values)] for place, (axis, values) in enumerate(axes.items())} | {"dtype": dtype}
        for shift, dtype in enumerate(AXES["dtype"][1:])
        for row in range(max(map(len, axes.values())))
    ]
    further = _CONTIGUOUS_ROWS if is_contiguous else _STRIDED_ROWS
    ordinary = {axis: values[0] for axis, values in AXES.items()}
    return [*(pairs[1:] if is_contiguous else pairs), *lower, *(ordinary | row for row in further)]
