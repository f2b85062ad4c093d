"""Find the tests of an ATen operator.

Tests are named after the entries of torch's ``op_db``. For example, the tests of ``nn.functional.gelu`` also test ``aten::gelu_backward``.
This module does not import torch.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path

_TABLE = Path(__file__).parents[1] / "oracle" / "recorded_calls.txt"
_NAMESPACES = ("fft", "linalg", "masked", "nn", "signal", "sparse", "special", "torch")
_BEFORE = re.compile(r"^_?(native_|safe_|unsafe_)?")
_AFTER = re.compile(r"(_with_indices|_forward)?(_backward|_backward_data)?_?$")


@functools.cache
def recorded_operators() -> dict[str, str]:
    """Return a dict that maps each recorded ATen overload, such as ``add.Tensor``, to the name of its caller.

    The caller is an operator of torch's ``op_db`` that calls the overload when it runs on its sample inputs, or a function in
    ``extra_ops.FUNCTIONS`` that calls the overload.
    """
    return dict(line.split() for line in _TABLE.read_text("utf-8").splitlines() if not line.startswith("#"))


def tests_of(operator: str, tests: Sequence[str]) -> list[str]:
    """Return those of the ids ``tests`` that belong to the tests of an ATen operator, such as ``aten::mm`` or ``aten::mm.default``.

    These are the tests of the ``op_db`` operator with the same name. The comparison of the names ignores the prefixes and suffixes of
    variants, such as ``native_``, ``_backward`` and the ``_`` of an in-place operator.

    If none of these tests is in the area ``operators``, the tests of the callers of the ATen operator (see ``recorded_operators``) are
    returned, too.
    """
    packet = operator.removeprefix("aten::").partition(".")[0]
    wanted = {packet, _stem(packet)}
    found = [test for test in tests if (name := _first_parameter(test)) and wanted & {name, _spelling(name), _stem(_spelling(name))}]
    if not any(test.startswith("operators/") for test in found):
        packets = (packet, packet.rstrip("_"))
        callers = {caller for overload, caller in recorded_operators().items() if overload.partition(".")[0] in packets}
        found += [test for test in tests if _first_parameter(test) in callers]
    return found


def _first_parameter(test: str) -> str:
    return test.partition("[")[2].rstrip("]").partition(",")[0]


def _spelling(name: str) -> str:
    """Return the ATen name of an operator of torch's database: ``linalg_det`` for ``linalg.det``. The suffix of a variant is dropped:
    ``pad`` for ``nn.functional.pad.constant``, and ``linalg_pinv`` for ``linalg.pinv.hermitian``."""
    first, *rest = name.removeprefix("nn.functional.").split(".")
    return "_".join([first, *rest[:1]]) if first in _NAMESPACES else first


def _stem(packet: str) -> str:
    return _AFTER.sub("", _BEFORE.sub("", packet))
