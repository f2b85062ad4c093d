"""One call to an operator on the device, run again on the CPU with the same inputs, in their own dtypes and, if necessary, in float64."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from accelkit.pytree import tree_leaves, tree_map
from accelkit.runtime.comparison.tolerance import DOUBLE, C, as_reals, difference, is_equal_choice

_HOST = torch.default_generator.device
_DRAWS = 3
_MOST_DIMENSIONS = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The results of a call, and its tensor arguments, which the call may have changed.

    Attributes:
        results: The leaves of the result, which may be nested.
        inputs: The tensors among the arguments, after the call.
    """

    results: list[Any]
    inputs: list[torch.Tensor]

    def select(self, indices: Sequence[int]) -> list[torch.Tensor | None]:
        """Return the tensors to compare: the results, and those elements of ``inputs`` that have the given indices.

        An input that is also a result is returned only once. None stands for a result that is not a tensor.
        """
        others = [self.inputs[index] for index in indices if not any(self.inputs[index] is result for result in self.results)]
        return [one if isinstance(one, torch.Tensor) else None for one in [*self.results, *others]]


class CannotCompare(Exception):
    """Raised if the right result cannot be determined on the CPU. The message gives the reason."""


class OperatorCall:
    """An operator with its arguments on the device. The constructor copies the arguments to the CPU.

    Create the object before the operator runs, because the operator may change its arguments.

    Args:
        operator: The overload of the operator.
        args, kwargs: The arguments, on the device.
    """

    num_repetitions = 3

    def __init__(self, operator: Any, args: Any, kwargs: Any) -> None:
        self.operator = operator
        self.inputs = _tensors((args, kwargs))
        self.given = _mapped(lambda tensor: tensor.detach().to(_HOST, copy=True), _HOST, (args, kwargs))
        self._devices = dict(zip(map(id, self.given_inputs), (tensor.device for tensor in self.inputs), strict=True))
        self._has_run = False
        self._own: Outcome | None = None
        self._truth: Outcome | None = None
        self._written: list[int] = []

    @property
    def name(self) -> str:
        """The name of the operator without its overload, such as ``aten::mm``."""
        return str(self.operator.name()).partition(".")[0]

    @property
    def given_inputs(self) -> list[torch.Tensor]:
        """Copies of the tensors among the arguments. They are on the CPU and have the values from before the call."""
        return _tensors(self.given)

    def outcome(self, results: Any) -> Outcome:
        """Return the outcome of the call on the device, which returned ``results``."""
        return Outcome(tree_leaves(results), self.inputs)

    def wrong(self, found: Outcome) -> str:
        """Return a description of what is wrong with the device's outcome, or an empty string if it is correct.

        Raises:
            CannotCompare: If the operator fails on the CPU, or a result is not a strided tensor.
        """
        if not self._has_run:
            self._run_on_cpu()
        xs, cs = found.select(self._written), (self._own or self.right_outcome).select(self._written)
        ts = self._truth.select(self._written) if self._truth is not None and self._own is not None else []
        if len(xs) != len(cs):
            return f"gave {len(xs)} results, not {len(cs)}"
        for number, (x, c, t) in enumerate(zip(xs, cs, ts if len(ts) == len(cs) else [None] * len(cs), strict=True)):
            if x is not None and c is not None and (text := self._wrong_tensor(number, x.detach().to(_HOST), c, t)):
                return f"result {number}: {text}" if len(xs) > 1 else text
        return ""

    def right(self) -> list[torch.Tensor | None]:
        """Return the right values for the tensors that :meth:`written` returns, in the same order. Call :meth:`wrong` first.

        The values are from the call on the CPU, in double precision if the CPU supports it for this operator.

        Raises:
            CannotCompare: If :meth:`wrong` has not been called, or the operator failed on the CPU.
        """
        return self.right_outcome.select(self._written)

    @property
    def right_outcome(self) -> Outcome:
        """The outcome on the CPU, in double precision if the CPU supports it for this operator. Call :meth:`wrong` first.

        Raises:
            CannotCompare: If :meth:`wrong` has not been called, or the operator failed on the CPU.
        """
        outcome = self._truth or self._own
        if outcome is None:
            raise CannotCompare("it has not run on the CPU")
        return outcome

    def written(self, found: Outcome) -> list[torch.Tensor | None]:
        """Return the results of the call on the device, followed by the arguments that the call changed. Call :meth:`wrong` first.

        An argument counts as changed if the call on the CPU changed it. None stands for a result that is not a tensor.

        Args:
            found: The outcome of the call on the device.
        """
        return found.select(self._written)

    def repetitions(self) -> Iterator[Outcome]:
        """Run the call again on the device with the same inputs, ``num_repetitions`` times, and yield each outcome."""
        device = next((one for one in self._devices.values() if one != _HOST), _HOST)
        for _ in range(self.num_repetitions):
            args, kwargs = _mapped(lambda tensor: tensor.to(self._devices[id(tensor)], copy=True), device, self.given)
            yield Outcome(tree_leaves(self.operator(*args, **kwargs)), _tensors((args, kwargs)))

    def _run_on_cpu(self) -> None:
        """Run the call on the CPU in the dtypes of its arguments and, if necessary, also in double precision.

        The second run is necessary if the first run fails, or if an argument or a result has a dtype of lower precision (a key of
        ``DOUBLE``).

        Raises:
            CannotCompare: If both runs fail.
        """
        self._has_run = True
        failure: Exception | None = None
        try:
            self._own = self._run(_mapped(torch.clone, _HOST, self.given))
        except Exception as error:  # whatever the operator raises
            failure = error
        results = _tensors(self._own.results) if self._own is not None else []
        if self._own is None or any(tensor.dtype in DOUBLE for tensor in [*self.given_inputs, *results]):
            try:
                self._truth = self._run(self._in_double())
            except Exception as error:  # the operator does not support float64
                if self._own is None:
                    raise CannotCompare(_reason(failure or error)) from error
        pairs = zip(self.given_inputs, (self._own or self.right_outcome).inputs, strict=True)
        self._written = [index for index, (before, after) in enumerate(pairs) if not _is_unchanged(before, after)]

    def _run(self, arguments: Any) -> Outcome:
        args, kwargs = arguments
        return Outcome(tree_leaves(self.operator(*args, **kwargs)), _tensors(arguments))

    def _in_double(self, perturb: torch.Generator | None = None) -> Any:
        """Return copies of the arguments on the CPU, with the dtypes in ``DOUBLE`` replaced by float64 and complex128.

        With ``perturb``, each value that is converted is also multiplied by a random factor between ``1 - eps`` and ``1 + eps``. ``eps`` is
        the machine epsilon of the original dtype.
        """

        def convert(tensor: torch.Tensor) -> torch.Tensor:
            double = tensor.to(DOUBLE.get(tensor.dtype, tensor.dtype), copy=True)
            if perturb is not None and tensor.dtype in DOUBLE:
                noise = torch.rand(double.shape, generator=perturb, dtype=torch.float64) * 2 - 1
                double = double * (1 + noise * torch.finfo(tensor.dtype).eps)
            return double

        def convert_dtype(leaf: Any) -> Any:
            return DOUBLE.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf

        return tree_map(convert_dtype, _mapped(convert, _HOST, self.given))

    def _wrong_tensor(self, number: int, x: torch.Tensor, c: torch.Tensor, t: torch.Tensor | None) -> str:
        if x.shape != c.shape:
            is_auxiliary = number > 0  # what is kept for the backward pass may differ between devices
            return "" if is_auxiliary else f"has shape {list(x.shape)}, not {list(c.shape)}"
        if _is_real(x) != _is_real(c):
            return f"is {x.dtype}, not {c.dtype}"
        if x.layout is not torch.strided:
            raise CannotCompare(f"the result is {x.layout}")
        if t is None and c.dtype == torch.float64 and x.dtype in DOUBLE:  # the CPU supports only float64
            c, t = c.to(x.dtype), c
        terms = _num_terms(self.operator, self.given_inputs, x) if x.dtype in (torch.float32, torch.float64) else 1
        text = difference(x, c, t, num_terms=terms)
        if not text:
            return ""
        if not _is_real(x):
            return "" if self._is_equal_choice(x, c) else text
        return "" if t is not None and self._is_within_rounding_of_inputs(number, x, t) else text

    def _is_equal_choice(self, found: torch.Tensor, reference: torch.Tensor) -> bool:
        """Return whether two tensors of indices choose equal elements of the operator's first tensor argument.

        The indices may refer to one dimension, as those of ``argmax`` do, or to the last two or three dimensions flattened, as those of max
        pooling do. Returns False if the indices are not int64 or the argument is not floating-point.
        """
        values = self.given_inputs[0] if self.given_inputs else None
        if values is None or not values.is_floating_point() or found.dtype != torch.int64:
            return False
        forms = [(values, found, reference)]
        if found.ndim == values.ndim - 1:  # as argmax(dim) returns them
            forms = [(values, found.unsqueeze(d), reference.unsqueeze(d)) for d in range(values.ndim)]
        elif found.ndim == values.ndim:  # as pooling over several dimensions returns them
            flat = range(2, min(_MOST_DIMENSIONS, found.ndim) + 1)
            forms += [(values.flatten(-n), found.flatten(-n), reference.flatten(-n)) for n in flat]
        return any(is_equal_choice(*form) for form in forms)

    def _is_within_rounding_of_inputs(self, number: int, x: torch.Tensor, t: torch.Tensor) -> bool:
        """Return whether rounding errors of the inputs can explain the difference between the result ``x`` and the truth ``t``.

        ``x`` is the device's result, and ``number`` is its index among the results. Rounding errors are added to the inputs, and the call
        is run again on the CPU. The difference between ``x`` and ``t`` may be at most about ``tolerance.C`` times the change that these
        rounding errors cause in the result.

        This allows for cases where the CPU's own error is too strict a measure. If almost all terms cancel, as in sums of gradients, the
        CPU's error may be small by chance.
        """
        generator = torch.Generator().manual_seed(0)
        found, truth = as_reals(x), as_reals(t)
        spread = torch.zeros_like(truth)
        for _ in range(_DRAWS):
            other = self._run(self._in_double(generator)).select(self._written)[number]
            if other is None or other.shape != t.shape:
                return False
            spread = torch.maximum(spread, (as_reals(other) - truth).abs())
        spread = spread.nan_to_num(0.0, 0.0)
        allowed = C * (spread + spread.mean() + torch.finfo(x.dtype).eps * truth.abs())
        is_right = ((found - truth).abs() <= allowed) | (found == truth) | (found.isnan() & truth.isnan())
        return bool(is_right.all())


def describe(tensors: Sequence[torch.Tensor]) -> str:
    """Return the dtypes and shapes of tensors, such as ``float32[2, 3], int64[4]``."""
    return ", ".join(f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}" for tensor in tensors)


def _tensors(nested: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(nested) if isinstance(leaf, torch.Tensor)]


def _is_unchanged(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Return whether two tensors have the same shape and values. NaN equals NaN, except in float8. ``after`` may be in double precision."""
    if after.dtype is torch.complex32:  # which torch cannot compare
        after = after.to(torch.complex64)
    before = before.to(after.dtype)
    if torch.equal(before, after):
        return True
    can_be_nan = (after.is_floating_point() or after.is_complex()) and after.element_size() > 1  # torch cannot compare float8
    return can_be_nan and before.shape == after.shape and bool(((before == after) | (before.isnan() & after.isnan())).all())


def _mapped(function: Any, device: torch.device, nested: Any) -> Any:
    """Return a copy of ``nested`` in which each tensor is replaced by ``function(tensor)``, and each ``torch.device`` by ``device``.

    The function is called once for each tensor, even if the tensor occurs several times.
    """
    made: dict[int, torch.Tensor] = {}

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return device
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in made:
            made[id(leaf)] = function(leaf)
        return made[id(leaf)]

    return tree_map(convert, nested)


def _is_real(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _num_terms(operator: Any, inputs: Sequence[torch.Tensor], result: torch.Tensor) -> int:
    """Estimate how many terms are summed for each element of the result. For a matrix product, this is the size of the inner dimension."""
    sizes = sorted((tensor.numel() for tensor in inputs), reverse=True)[:2]
    if not sizes or not result.numel() or torch.Tag.pointwise in operator.tags:
        return 1
    product = math.prod(sizes) / result.numel()
    return max(1, round(product if len(sizes) == 1 else math.sqrt(product)))


def _reason(error: Exception) -> str:
    """Return the reason why the CPU did not run an operator, in one line."""
    if isinstance(error, NotImplementedError) and "Could not run" in str(error):
        return "the CPU has no kernel for it"
    return f"it fails on the CPU: {str(error).strip().partition(chr(10))[0]}"[:200]
