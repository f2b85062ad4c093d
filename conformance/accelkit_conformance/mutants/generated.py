"""Generated mutants. Each is a device on which one operator has one of the faults in ``AXES``. There are thousands of such mutants.

A mutant can be created again from its id, ``generated[operator,axis,seed]``: the axis says when and where the operator goes wrong, and the
seed determines the details, such as the wrong value. This module does not import torch.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Mapping, Sequence
from typing import Self

from accelkit import UsageError
from accelkit_conformance import checks, profiles
from accelkit_conformance.subprocess_checks import ask

AXES: Mapping[str, tuple[str, str]] = {
    "last_element": ("operators", "the last element of the result is wrong"),
    "last_row": ("operators", "the last row of the result is wrong"),
    "last_block": ("operators", "the elements after the last whole block of 2^k elements are wrong"),
    "more_than": ("operators", "the elements after the first 2^k are wrong"),
    "second_device": ("operators", "the result is wrong on the second device"),
    "second_call": ("operators", "the result of the n-th call is wrong, with n = 2, 3, 5 or 10"),
    "no_grad": ("operators", "the result is wrong if gradients are disabled"),
    "strided": ("layout", "the result is wrong if an input is not contiguous"),
    "zero_gradient": ("autograd", "the operator's backward returns zeros"),
    "nan": ("operators", "the result has zeros in place of NaN"),
    "dtype": ("operators", "the result has a different dtype"),
    "out_strides": ("layout", "out= is written as if it were contiguous"),
}
"""For each axis, the area whose tests should detect its faults, and a description."""
_SECONDS = 300.0


@dataclasses.dataclass(frozen=True, slots=True)
class Generated:
    """A generated mutant.

    Attributes:
        operator: The name of the ATen operator, without the name of an overload.
        axis: The kind of fault, a key of ``AXES``.
        seed: The number that determines the details of the fault, such as the wrong value.
    """

    operator: str
    axis: str
    seed: int

    @property
    def id(self) -> str:
        return f"generated[{self.operator},{self.axis},{self.seed}]"

    @classmethod
    def from_id(cls, text: str) -> Self:
        """Create the mutant with this id.

        Raises:
            UsageError: If this is not the id of a generated mutant.
        """
        found = re.fullmatch(r"generated\[(\w+),(\w+),([0-9]{1,9})\]", text, re.ASCII)
        if found is None or found[2] not in AXES:
            raise UsageError(
                f"{text!r} is not the id of a generated mutant",
                hint=f"write generated[OPERATOR,AXIS,SEED], where AXIS is one of: {', '.join(AXES)}",
            )
        return cls(found[1], found[2], int(found[3]))

    @property
    def area(self) -> str:
        """The area whose tests should detect the mutant.

        For foreach, fused, copy, backward and ``_amp_`` operators, the area depends on the operator. For all other operators, the area
        depends on the attribute ``axis``, as listed in ``AXES``.
        """
        if self.operator.startswith(("_foreach_", "_fused_", "_amp_")):
            return "optimizers" if not self.operator.startswith("_amp_") else "precision"
        if self.operator in ("_to_copy", "copy"):
            return "transfer"
        return "autograd" if "_backward" in self.operator else AXES[self.axis][0]


def operators() -> dict[str, list[str]]:
    """Return the names of the operators that can have a fault, each with the kinds of fault (keys of ``AXES``) that apply to it.

    The operators are listed in a child process that imports torch.

    Raises:
        AssertionError: If the child process fails.
    """
    found: dict[str, list[str]] = ask("accelkit_conformance.mutants.switchable", {}, _SECONDS)
    return found


def sample(known: Mapping[str, Sequence[str]], number: int, seed: int) -> list[Generated]:
    """Return random mutants, all of them different. Every axis (kind of fault) is equally likely.

    Args:
        known: The operators and their axes, as ``operators`` returns them.
        number: The number of mutants.
        seed: The seed of the sample.
    """
    source = random.Random(seed)  # noqa: S311 # for a reproducible sample
    by_axis = {axis: [name for name, axes in known.items() if axis in axes] for axis in AXES}
    found: dict[Generated, None] = {}
    while len(found) < number:
        axis = source.choice(list(AXES))
        found[Generated(source.choice(by_axis[axis]), axis, source.randrange(1000))] = None
    return list(found)


def tests_of(mutant: Generated, torch_version: str) -> list[str]:
    """Return the tests to run on a mutant. All of these tests are in the mutant's own area.

    The first tests are those of the profile ``full`` that have the mutant's operator as a parameter. They are followed by all other tests
    of the area that are in the profile ``smoke``.

    Args:
        mutant: The mutant.
        torch_version: The version of torch, which determines the tests of a profile.
    """
    wanted = _spellings(mutant.operator)
    own = [test for test in profiles.suite("full", torch_version).tests if checks.area_of(test) == mutant.area]
    named = [test for test in own if wanted & _spellings(checks.find(test)[1][0] if checks.find(test)[1] else "")]
    smoke = [test for test in profiles.suite("smoke", torch_version).tests if checks.area_of(test) == mutant.area]
    return list(dict.fromkeys([*named, *smoke]))


def _spellings(name: str) -> set[str]:
    """Return normalised forms of the name of an operator.

    Two names are taken to mean the same operator if they have a form in common. For example, ``nn.functional.gelu`` in torch's ``op_db``
    and ``gelu_backward`` in ATen both have the form ``gelu``.
    """
    plain = name.removeprefix("nn.functional.").replace(".", "_").strip("_")
    short = plain.removeprefix("native_").removeprefix("special_").removeprefix("thnn_")
    for end in ("_backward", "_forward", "_with_indices", "_data"):
        short = short.removesuffix(end)
    first = name.removeprefix("nn.functional.").partition(".")[0]
    return {one for one in (plain, short, first) if one and one not in ("special", "linalg", "fft")}
