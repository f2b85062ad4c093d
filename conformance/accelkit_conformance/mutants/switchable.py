"""The fake XPU with the fault of a generated mutant. The fault can be replaced while the process runs.

``python -m accelkit_conformance.mutants.switchable`` prints the operators that can be given a fault, each with the kinds of fault that
apply to it. The command prints only operators of the installed torch. ``generated.operators`` runs it in a child process.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable
from typing import Any, ClassVar

from accelkit_conformance.mutants.broken import Broken, is_pure
from accelkit_conformance.mutants.generated import AXES, Generated
from accelkit_conformance.subprocess_checks import answer

_OTHER_DTYPES = {"float32": "float64", "float64": "float32", "float16": "float32", "bfloat16": "float32", "int64": "int32", "bool": "uint8"}
_UNDEFINED = ("_functional_assert", "empty", "new_empty", "_empty", "resize", "_resize", "rand", "_efficientzerotensor")
"""Prefixes of the names of operators whose results are undefined or random, or have no memory."""

_NEVER_NAN = re.compile(
    r"^(all|any|eq|ne|lt|le|gt|ge|gcd|lcm|isin|isnan|isneginf|isposinf|signbit|nonzero\w*|arg\w+|bincount|bucketize|searchsorted|count_nonzero"
    r"|bitwise_\w+|__\wshift__|_int_mm|tri[lu]_indices|hash_tensor|sign|sgn|histc|_histogramdd_\w+)$"
)
"""Matches the names of operators that never return NaN: they return integers, booleans, counts or signs."""
_SCALARS = ("dot", "vdot", "trace")
"""The names of operators whose result is always a scalar."""
_VECTORS = ("addmv", "mv")
"""The names of operators whose result always has one dimension."""
_UP_TO_SIGN = re.compile(r"eig|svd|_qr$|geqrf")
"""Matches the names of operators that return vectors whose negation is also a correct result."""


class Switchable(Broken):
    """The fake XPU with the fault of a generated mutant, or without a fault.

    Attributes:
        current: The current fault.
        is_installed: Whether the method ``fault`` handles the ATen calls on the device in this process.
    """

    current: ClassVar[Fault | None] = None
    is_installed: ClassVar[bool] = False

    def install(self) -> None:
        if not Switchable.is_installed:
            Switchable.is_installed = True
            super().install()

    def use_fault(self, name: str) -> None:
        """From now on, use the fault of the generated mutant with the id ``name``, or no fault if ``name`` is empty."""
        if name != (self.current.id if self.current else ""):
            Switchable.current = Fault(Generated.from_id(name)) if name else None

    @property
    def was_triggered(self) -> bool:
        """Whether the current fault has changed a result."""
        return self.current is not None and self.current.was_triggered

    def fault(self, name: str, call: Callable[[], Any], args: Any, kwargs: Any, func: Any) -> Any:
        fault = self.current
        return call() if fault is None or fault.operator != _base(name) else fault(call, args, kwargs, func)


class Fault:
    """The fault of a generated mutant. It is called in place of the mutant's operator, calls the operator, and may change the result."""

    def __init__(self, mutant: Generated) -> None:
        source = random.Random(f"{mutant.axis},{mutant.seed}")  # noqa: S311 # for a reproducible fault
        self.id, self.operator, self._axis = mutant.id, mutant.operator, mutant.axis
        self._wrong = source.choice(("zero", "more", "negated", "doubled"))
        if self._wrong == "negated" and _UP_TO_SIGN.search(self.operator):
            self._wrong = "doubled"
        self._size = 2 ** source.randrange(2, 8) if mutant.axis == "last_block" else 2 ** source.randrange(4, 17)
        self._call = source.choice((2, 3, 5, 10))
        self._leaf = source.randrange(4)
        self._num_calls = 0
        self.was_triggered = False

    def __call__(self, call: Callable[[], Any], args: Any, kwargs: Any, func: Any) -> Any:
        import torch
        from torch.utils._pytree import tree_flatten, tree_unflatten

        result = call()
        leaves, structure = tree_flatten(args[0] if result is None and args else result)
        places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and _is_plain(leaf)]
        if self._axis == "out_strides":
            places = [index for index in places if not leaves[index].is_contiguous()]
        if self._axis == "nan":
            places = [index for index in places if leaves[index].is_floating_point() or leaves[index].is_complex()]
        if not places:
            return result
        self._num_calls += 1
        if not self._is_due(args, kwargs, result, func):
            return result
        place = places[self._leaf % len(places)]
        if self._axis == "dtype":
            other = _OTHER_DTYPES.get(str(leaves[place].dtype).removeprefix("torch."))
            if other is None or not is_pure(func):
                return result
            leaves[place] = leaves[place].to(getattr(torch, other))
            self.was_triggered = True
            return tree_unflatten(leaves, structure)
        if (part := self._part(leaves[place])) is not None:
            before = part.clone()
            self._change(part)
            if _is_same(before, part) and self._axis not in ("nan", "out_strides", "zero_gradient"):
                part.logical_not_() if part.dtype is torch.bool else part.add_(1)  # e.g. doubling zeros changes nothing
            self.was_triggered |= not _is_same(before, part)
        return result

    def _is_due(self, args: Any, kwargs: Any, result: Any, func: Any) -> bool:
        """Return whether the fault applies to this call."""
        import torch
        from torch.utils._pytree import tree_leaves

        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        match self._axis:
            case "second_device":
                return any(tensor.device.type == "fake_xpu" and tensor.device.index == 1 for tensor in [*tensors, *results])
            case "second_call":
                return self._num_calls == self._call
            case "no_grad":
                return not torch.is_grad_enabled()
            case "strided":
                return any(not tensor.is_contiguous() for tensor in tensors)
            case "out_strides":
                return any(isinstance(one, torch.Tensor) and not one.is_contiguous() for one in self._outs(kwargs, func))
        return True

    @staticmethod
    def _outs(kwargs: Any, func: Any) -> list[Any]:
        """Return the tensors into which an overload writes its results."""
        return [kwargs[argument.name] for argument in func._schema.arguments if argument.is_out and argument.name in kwargs]

    def _part(self, result: Any) -> Any:
        """Return a view of the elements that the fault changes. Return None if the fault changes no element of this result."""
        match self._axis:
            case "last_element":
                return result[(-1,) * result.ndim]
            case "last_row":
                return result.select(-2, -1) if result.ndim > 1 else None
            case "last_block":
                start = result.numel() - result.numel() % self._size
                return result.view(-1)[start:] if result.is_contiguous() and start else None
            case "more_than":
                return result.view(-1)[self._size :] if result.is_contiguous() else None
        return result

    def _change(self, part: Any) -> None:
        """Change the values of ``part`` in place. ``part`` is the result of ``_part``."""
        import torch

        if self._axis == "nan":
            part.masked_fill_(part != part, 0)  # noqa: PLR0124 # NaN is not equal to itself
        elif self._axis == "out_strides":
            room = part.untyped_storage().nbytes() // part.element_size() - part.storage_offset()
            if room >= part.numel():
                values = part.clone(memory_format=torch.contiguous_format)
                part.as_strided((part.numel(),), (1,)).copy_(values.view(-1))
        elif self._axis == "zero_gradient" or self._wrong == "zero":
            part.zero_()
        elif part.dtype is torch.bool:
            part.logical_not_()
        elif self._wrong == "more":
            is_real = part.is_floating_point() and part.numel()
            part.add_(1 + (part.abs().nan_to_num().max() if is_real else 0))  # more than the rounding error of a low precision
        elif self._wrong == "negated":
            part.neg_()
        else:
            part.mul_(2)


def _is_same(before: Any, after: Any) -> bool:
    return bool(((before == after) | ((before != before) & (after != after))).all())  # noqa: PLR0124 # NaN is not equal to itself


def _base(name: str) -> str:
    """Return the name of the functional form of an operator: ``add`` for ``add.Tensor``, ``add_.Tensor`` and ``add.out``."""
    base = name.partition(".")[0]
    return base if base.endswith("__") else base.removesuffix("_")


def _is_plain(leaf: Any) -> bool:
    """Return whether a tensor is on the fake XPU, is strided, and is neither empty nor expanded.

    In an expanded tensor, a change to one element changes other elements too.
    """
    import torch

    is_expanded = leaf.layout is torch.strided and any(
        size > 1 and not stride for size, stride in zip(leaf.shape, leaf.stride(), strict=True)
    )
    return leaf.layout is torch.strided and leaf.device.type == "fake_xpu" and leaf.numel() > 0 and not is_expanded


def operators() -> dict[str, list[str]]:
    """Return the operators that can be given a fault, each with the applicable kinds of fault (keys of ``AXES``).

    Only operators of the installed torch are returned.
    """
    import torch

    from accelkit_conformance.coverage import required
    from accelkit_conformance.oracle.opdb import UNPREDICTABLE

    has_out: set[str] = set()
    takes_tensors: set[str] = set()
    found: set[str] = set()
    for name in required():
        base, _, overload = name.removeprefix("aten::").partition(".")
        if overload.endswith("out") or base.endswith("_out"):
            has_out.add(base.removesuffix("_out"))
            continue
        func = getattr(getattr(torch.ops.aten, base), overload or "default")
        if func.name() in UNPREDICTABLE:
            continue
        returns_tensor = any("Tensor" in str(value.type) for value in func._schema.returns)
        if is_pure(func) and returns_tensor and not base.startswith(_UNDEFINED) and torch.Tag.nondeterministic_seeded not in func.tags:
            found.add(base)
            if any("Tensor" in str(argument.type) for argument in func._schema.arguments):
                takes_tensors.add(base)
    return {base: [axis for axis in AXES if _applies(axis, base, has_out, takes_tensors)] for base in sorted(found)}


def _applies(axis: str, base: str, has_out: set[str], takes_tensors: set[str]) -> bool:
    from accelkit_conformance.oracle.variations import UNDEFINED_FOR_NAN

    match axis:
        case "zero_gradient":
            return "_backward" in base
        case "nan":
            return not _NEVER_NAN.search(base) and not UNDEFINED_FOR_NAN.search(base)
        case "last_row":
            return base not in _SCALARS and base not in _VECTORS
        case "last_block" | "more_than":
            return base not in _SCALARS
        case "strided":
            return base in takes_tensors
        case "out_strides":
            return base in has_out
    return True


if __name__ == "__main__":
    sys.stdin.read()
    answer(operators())
