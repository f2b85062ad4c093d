"""Recorded calls to single ATen overloads.

A table lists functional overloads that a device must support, and the overloads in ``_OFTEN_IMPLEMENTED``. For each overload, the table
names an operator of torch's ``op_db``, or a function in ``FUNCTIONS``, that calls the overload. The calls are recorded while this operator
or function runs.
``python -m accelkit_conformance.oracle.recorded_calls`` writes the table for the installed torch.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.extra_ops import FUNCTIONS
from accelkit_conformance.oracle.overloads import calls_of, calls_of_operator
from accelkit_conformance.oracle.sample_transfer import tensors
from accelkit_conformance.profiles.aten_names import recorded_operators
from accelkit_conformance.results import NotSupported

_TABLE = Path(__file__).parent / "recorded_calls.txt"
_EACH = 12
_MOST_ELEMENTS = 4096
# Overloads for which most devices have a kernel, although torch composes them from other overloads for a device without a kernel. Each is
# mapped to an operator that calls the overload when the operator runs on its sample inputs.
_OFTEN_IMPLEMENTED = {
    "abs": "abs",
    "constant_pad_nd": "constant_pad_nd",
    "convolution": "nn.functional.conv2d",
    "convolution_backward": "nn.functional.conv2d",
    "cummax": "cummax",
    "cummin": "cummin",
    "embedding": "nn.functional.embedding",
    "huber_loss_backward": "nn.functional.huber_loss",
    "index_fill.int_Scalar": "index_fill",
    "index_put": "index_put",
    "kthvalue": "kthvalue",
    "logical_and": "logical_and",
    "logical_not": "logical_not",
    "logical_or": "logical_or",
    "logsumexp": "logsumexp",
    "masked_fill.Scalar": "masked_fill",
    "masked_scatter": "masked_scatter",
    "mean": "mean",
    "median": "whole_medians",
    "median.dim": "median",
    "nan_to_num": "nan_to_num",
    "nanmedian": "whole_medians",
    "nanmedian.dim": "nanmedian",
    "put": "put",
    "silu_backward": "nn.functional.silu",
    "smooth_l1_loss_backward": "nn.functional.smooth_l1_loss",
    "sum": "sum",
}


def overloads() -> Iterator[str]:
    """Yield the names of the overloads in the table, such as ``add.Tensor`` or ``relu``.

    An overload is skipped if the installed torch lacks it, or lacks the ``op_db`` operator that the table names for it.
    """
    operators = opdb.operators()
    for overload, name in recorded_operators().items():
        packet, _, own = overload.partition(".")
        if (name in operators or name in FUNCTIONS) and hasattr(getattr(torch.ops.aten, packet, None), own or "default"):
            yield overload


def recorded_call(overload: str) -> tuple[Any, Any, Any, Any]:
    """Return a recorded call to an overload on the CPU, as ``(op, func, args, kwargs)``.

    ``op`` is the OpInfo of the operator that makes the call, or a ``Nameless`` if a function in ``FUNCTIONS`` makes the call.

    The recorded calls are ranked by these criteria, the most important first: the first tensor has 1 to 4096 elements; no other tensor is
    empty; the call returns more than one element; the first tensor has many dimensions (four or more count as four); the first tensor has
    many elements. The highest-ranked call is returned.

    Raises:
        NotSupported: If the operator or function in ``recorded_operators()[overload]`` does not call the overload in the installed torch.
    """
    name = recorded_operators()[overload]
    op = Nameless() if name in FUNCTIONS else opdb.operators()[name]
    found = [call for call in _calls(name) if call[0].name() == f"aten::{overload}"]
    if not found:
        raise NotSupported(f"in the installed torch, no recorded program calls aten::{overload}")
    return (op, *max(found, key=_size))


class Nameless:
    """Stand-in for an OpInfo. Its name is empty, so that no rule for a particular operator of torch's database applies."""

    name = variant_test_name = ""


@functools.lru_cache(maxsize=1)
def _calls(name: str) -> list[tuple[Any, Any, Any]]:
    if name in FUNCTIONS:
        return calls_of([lambda: FUNCTIONS[name](torch.device("cpu"))], _EACH)
    return calls_of_operator(name, _EACH)


def _size(call: tuple[Any, Any, Any]) -> tuple[bool, bool, bool, int, int]:
    func, args, kwargs = call
    first, *others = tensors((args, kwargs))
    is_several = any(one.numel() > 1 for one in tensors(func(*args, **kwargs)))
    is_full = all(one.numel() for one in others)
    return 0 < first.numel() <= _MOST_ELEMENTS, is_full, is_several, min(first.ndim, 4), first.numel()


def _spelling(name: str) -> str:
    return name.removeprefix("nn.functional.").replace(".", "_")


def _recorded() -> dict[str, str]:
    """Return, for each functional overload that a device must support, the name of an operator or function that calls the overload.

    An operator with the same name as the overload is preferred. If there is none, the operator that calls the fewest overloads is chosen.
    Overloads that no operator calls, and overloads with random or unpredictable results, are left out. The overloads in
    ``_OFTEN_IMPLEMENTED`` are added.
    """
    from accelkit_conformance.coverage import required

    wanted = {one.removeprefix("aten::") for one in required()}
    found: dict[str, tuple[tuple[bool, int, str], str]] = {}
    for name in [*opdb.operators(), *FUNCTIONS]:
        calls = {call[0].name().removeprefix("aten::"): call[0] for call in _calls(name)}
        for overload, func in calls.items():
            if overload in wanted and torch.Tag.nondeterministic_seeded not in func.tags and func.name() not in opdb.UNPREDICTABLE:
                rank = (_spelling(name) != overload.partition(".")[0], len(calls), name)
                if overload not in found or rank < found[overload][0]:
                    found[overload] = (rank, name)
    names = {overload: name for overload, (_, name) in found.items()}
    return dict(sorted((names | _OFTEN_IMPLEMENTED).items()))


if __name__ == "__main__":
    head = "# Made by python -m accelkit_conformance.oracle.recorded_calls: ATen overload, operator."
    _TABLE.write_text("\n".join([head, *(f"{overload} {name}" for overload, name in _recorded().items())]) + "\n", "utf-8")
