"""The report of a comparison: the operators that gave wrong results, their places in the model, and the calls that were not compared."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from accelkit.runtime.comparison.module_calls import ModulePlace


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """An operator that gave a wrong result on the device.

    If several calls to the overload gave a wrong result, all attributes except ``num_wrong`` describe the first of these calls.

    Attributes:
        operator: The name of the operator, such as ``aten::mm``.
        overload: The name with the overload, such as ``aten::mm.default``.
        place: The module in whose forward or backward pass the operator was called.
        wrong: How the result is wrong, and by how much.
        inputs: The dtypes and shapes of the inputs.
        num_wrong: How many calls to this overload gave a wrong result.
        num_wrong_repetitions: How many of the ``num_repetitions`` repetitions gave a wrong result. If some repetitions gave the right
            result, the operator does not always give the same result.
        num_repetitions: How many times the call was repeated with the same inputs.
        program: A program that runs the call on the CPU in float64 and on the device, and prints both results.
        path: The file with this program. Inputs that are too large for the program, or have no simple layout, are in a second file in the
            same folder.
    """

    operator: str
    overload: str
    place: ModulePlace
    wrong: str
    inputs: str
    num_wrong: int
    num_wrong_repetitions: int
    num_repetitions: int
    program: str
    path: Path


@dataclasses.dataclass(frozen=True, slots=True)
class NotCompared:
    """A group of calls that were not compared. The calls in the group have the same overload and the same reason.

    Attributes:
        overload: The name of the operator with its overload.
        reason: Why these calls were not compared, or what was checked instead.
        place: The place in the model at which the first of these calls was made.
        num_calls: The number of these calls.
    """

    overload: str
    reason: str
    place: ModulePlace
    num_calls: int


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """The result of ``Runtime.compare_to_cpu``. ``str(comparison)`` is a report for people, and ``to_dict()`` returns one for programs.

    Attributes:
        accelerator: The name of the accelerator.
        device: The device.
        precision: The name of the precision.
        findings: The operators that gave wrong results, one item for each overload, in the order of their first wrong calls. Wrong calls of
            the forward pass come before those of the backward pass.
        not_compared: The calls that were not compared, grouped by overload and reason.
        num_compared: The number of calls that were compared.
        num_operators: The number of different operators among the calls that were compared.
        has_backward: Whether a backward pass was compared.
    """

    accelerator: str
    device: str
    precision: str
    findings: tuple[Finding, ...]
    not_compared: tuple[NotCompared, ...]
    num_compared: int
    num_operators: int
    has_backward: bool

    @property
    def agrees(self) -> bool:
        """Whether no wrong result was found."""
        return not self.findings

    @property
    def first(self) -> Finding | None:
        """The first operator that gave a wrong result. None if no wrong result was found."""
        return self.findings[0] if self.findings else None

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dict that can be written as JSON. It contains the attributes of this class, and ``agrees``.

        Each item of ``findings`` and ``not_compared`` becomes a dict that has, instead of ``place``, the keys ``phase``, ``module``,
        ``module_type``, ``call`` and ``node``.
        """

        def flat(one: Finding | NotCompared) -> dict[str, Any]:
            values = {field.name: getattr(one, field.name) for field in dataclasses.fields(one) if field.name != "place"}
            return values | {"phase": one.place.phase} | dataclasses.asdict(one.place)

        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        findings = [flat(one) | {"path": str(one.path)} for one in self.findings]
        return values | {"agrees": self.agrees, "findings": findings, "not_compared": [flat(one) for one in self.not_compared]}

    def __str__(self) -> str:
        passes = "forward and backward" if self.has_backward else "forward"
        what = f"{self.num_compared} calls to {self.num_operators} operators, {passes}, {self.precision}"
        lines = [f"{self.device} agrees with the CPU: {what}" if self.agrees else f"{self.device} differs from the CPU: {what}"]
        if self.first is not None:
            lines += self._first_lines(self.first)
        if len(self.findings) > 1:
            lines += ["also wrong:", *(f"  {one.operator} in {one.place}: {one.wrong}" for one in self.findings[1:])]
        if self.not_compared:
            lines += ["not compared:", *(f"  {one.overload} ({_calls(one.num_calls)}): {one.reason}" for one in self.not_compared)]
        return "\n".join(lines)

    def _first_lines(self, first: Finding) -> list[str]:
        repeated = f"{first.num_wrong_repetitions} of {first.num_repetitions} repetitions with the same inputs"
        tests = f"  test the operator: accelkit conformance run {self.accelerator} --select {first.operator}"
        return [
            f"first difference: {first.operator} in {first.place}",
            f"  {first.wrong}",
            f"  inputs: {first.inputs}",
            f"  wrong again in {repeated}; wrong in {_calls(first.num_wrong)} of the step",
            f"  see the difference: python {first.path}",
            *([tests] if first.operator.startswith("aten::") else []),
        ]


def _calls(number: int) -> str:
    return f"{number} call{'s' if number != 1 else ''}"
