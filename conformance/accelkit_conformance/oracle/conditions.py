"""Conditions of a call that may affect its result.

They are the size, values, dtype and layout of its arguments; the destination of its result; whether gradients are recorded; the device,
thread and stream on which the call runs; whether it runs after an error; and whether ``empty_cache`` follows it.

ATen calls are recorded on the CPU. A check repeats each of them under a few combinations of these conditions (see :mod:`condition_rows`).
"""

from __future__ import annotations

import functools
import re
from typing import Any

import torch
from torch.utils._pytree import tree_map, tree_map_only

import accelkit
from accelkit.selection import resolve
from accelkit_conformance.late_errors import still_computes
from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.aliasing import check_aliasing
from accelkit_conformance.oracle.changed_arguments import check_inputs
from accelkit_conformance.oracle.condition_rows import AXES, Conditions
from accelkit_conformance.oracle.factorizations import check_factors
from accelkit_conformance.oracle.known_differences import LAID_OUT_BY_TORCH, SEQUENTIAL, is_left_out, may_be_missing
from accelkit_conformance.oracle.lacking_dtypes import require_dtypes
from accelkit_conformance.oracle.layouts import all_arranged
from accelkit_conformance.oracle.op_compare import check_results, flat, truth_of
from accelkit_conformance.oracle.overloads import in_place_overload, out_overload
from accelkit_conformance.oracle.places import run_at
from accelkit_conformance.oracle.recorded_calls import recorded_call
from accelkit_conformance.oracle.reproducer import describe_sample, facts_of
from accelkit_conformance.oracle.sample_transfer import as_leaf, tensors, to_device
from accelkit_conformance.oracle.targets import targets
from accelkit_conformance.oracle.tolerance import check_places
from accelkit_conformance.oracle.used_memory import leave_nan
from accelkit_conformance.oracle.variations import Variations
from accelkit_conformance.results import NotSupported
from accelkit_conformance.subject import Subject

# Calls that return indices. Among elements that are equal, or incomparable because of NaN, the device may choose any element.
_CHOOSE = re.compile(r"^(arg)?sort|topk|^mode|median|arg|max|min|kth|cum")
# Calls that return the flat indices of maxima within the last two or three dimensions.
_POOLED_DIMENSIONS = re.compile(r"max_pool([23])d")
# Calls for which torch itself rejects out= on devices that are not built into torch, and calls that torch never makes with out=.
_NO_OUT = re.compile(r"mode$|_stack$")
# Calls for which torch's CPU kernel of tril and triu writes beyond the end of out= if its dimensions are permuted in memory.
_TRIANGLES = re.compile(r"(tril|triu|lu_unpack|linalg_lu)$")


class ConditionedCall:
    """An ATen call that was recorded on the CPU and is repeated under other conditions, such as another size, dtype or memory layout."""

    def __init__(self, op: Any, func: Any, args: Any, kwargs: Any) -> None:
        """
        Args:
            op: The OpInfo of the operator that made this ATen call, or a ``Nameless``. Rules for that operator also apply to this call.
            func: The functional overload.
            args: The positional arguments, on the CPU.
            kwargs: The keyword arguments.
        """
        self.op, self.func = op, func
        self._variations = Variations(func, args, kwargs)
        self._name = func.name().removeprefix("aten::")
        self._in_place: Any = in_place_overload(func)
        self._out: Any = out_overload(func)
        self._prepared = functools.cache(self._find_prepared)

    def possible(self, subject: Subject, conditions: Conditions) -> dict[str, str]:
        """Return a copy of ``conditions``, adapted to the call and the device.

        A condition that does not apply to the call or the device is replaced by the first value of the same axis in ``AXES``.
        """
        found = dict(conditions)
        if "in place" in found["destination"] and self._in_place is None:
            found["destination"] = "a new tensor"
        if "out=" in found["destination"] and (self._out is None or _NO_OUT.match(self._name)):
            found["destination"] = "a new tensor"
        if found["destination"] == "permuted out=" and _TRIANGLES.match(self._name):
            found["destination"] = "strided out="
        if LAID_OUT_BY_TORCH.match(self._name):
            found["layout"] = "contiguous"
        has = {
            "another device": len(subject.devices) > 1,
            "another current device": len(subject.devices) > 1 and subject.optional_function("device") is not None,
            "another stream": subject.capabilities.can("streams"),
            "a busy stream": subject.capabilities.can("streams") and subject.capabilities.can("pinned_memory"),
            "followed by empty_cache": subject.optional_function("empty_cache") is not None,
        }
        if not has.get(found["place"], True):
            found["place"] = AXES["place"][0]
        if found["values"] != AXES["values"][0] and not self._variations.takes_special_values:
            found["values"] = AXES["values"][0]
        if self._variations.arguments(found["size"], found["values"]) is None:
            found["size"] = AXES["size"][0]
        if found["dtype"] != AXES["dtype"][0] and (subject.lacks(found["dtype"]) or not self._takes(found["dtype"])):
            found["dtype"] = AXES["dtype"][0]
        return found

    def check(self, subject: Subject, conditions: Conditions, length: int | None = None) -> None:
        """Make the call on the device and compare the results with those on the CPU.

        On the CPU, the result under ``conditions`` may differ from the result for contiguous arguments and a newly allocated output. In
        torch 2.13, for example, ``gelu`` does not write to a strided ``out=``, and the pivots of ``_linalg_det`` depend on strides. The
        device may then return either of these two results. If the CPU rejects the call, the device may reject it too. If the CPU writes
        outside the given output tensor, nothing is asserted.

        Args:
            subject: The plugin under test, with its device.
            conditions: The size, values, dtype, layout and so on with which the call is made, as returned by ``possible``.
            length: The new length of the dimension that ``conditions["size"]`` changes. None for the default length.

        Raises:
            AssertionError: If the results differ.
            Exception: If the device rejects a call that the CPU accepts.
        """
        prepared = self._prepared(conditions["size"], conditions["values"], conditions["dtype"], length)
        if prepared is None:
            return
        (args, kwargs), plain, truth, num_terms = prepared
        given = all_arranged((args, kwargs), conditions["layout"])
        here = to_device(given, torch.device("cpu"))
        device = subject.second_device() if conditions["place"] in ("another device", "another current device") else subject.device
        there = to_device(given, device)
        try:
            reference = self._run(here, conditions, plain)
        except AssertionError:  # the CPU's kernel is wrong, so a device that falls back to it is wrong too
            return
        except Exception:
            reference, is_rejected = plain, True
        else:
            is_rejected = False
        leave_nan(subject, device, plain)
        try:
            with may_be_missing(self.op, given, self._name):
                found = run_at(subject, conditions["place"], device, lambda: self._run(there, conditions, plain), tensors(there))
        except Exception:
            if is_rejected:
                return
            raise
        if conditions["destination"] == "a new tensor":
            check_inputs(there, here, given)
            check_aliasing(found, reference, there, here)
        assert len(found) == len(reference), f"gave {len(found)} results, not {len(reference)}"
        is_finite = conditions["values"] == AXES["values"][0]
        is_free = not (conditions["size"] == AXES["size"][0] and is_finite) and self.op.name not in opdb.CHOOSES_AMONG_EQUALS
        for index, (mine, theirs, ordinary, true) in enumerate(zip(found, reference, plain, truth, strict=True)):
            if is_left_out(self._name, index, mine, theirs):
                continue
            if is_free and isinstance(theirs, torch.Tensor) and theirs.dtype is torch.int64 and _CHOOSE.search(self._name):
                assert isinstance(mine, torch.Tensor), f"gave {type(mine).__name__}, not a tensor"
                assert mine.shape == theirs.shape, f"the result has shape {list(mine.shape)}, not {list(theirs.shape)}"
                if is_finite and (pooled := _POOLED_DIMENSIONS.search(self._name)):
                    check_places(given[0][0], mine.cpu(), theirs, int(pooled[1]))
                continue
            sample = (given[0][0], given[0][1:], given[1])
            options: Any = {"cancels": True, "num_terms": num_terms, "overload": self._name}
            try:
                check_results(self.op, sample, [(mine, theirs, true)], device, **options)
            except AssertionError:
                if self._are_equal(sample, theirs, ordinary, true, options):
                    raise
                check_results(self.op, sample, [(mine, ordinary, true)], device, **options)
        check_factors(self._name, given[0][0], found)

    def _are_equal(self, sample: Any, theirs: Any, ordinary: Any, true: Any, options: Any) -> bool:
        """Return whether the CPU's result under the tested conditions (``theirs``) is close to its result without them (``ordinary``)."""
        try:
            check_results(self.op, sample, [(theirs, ordinary, true)], torch.device("cpu"), **options)
        except AssertionError:
            return False
        return True

    def reduced(self, subject: Subject, conditions: Conditions) -> tuple[dict[str, str], int | None]:
        """Return the fewest conditions under which the call still fails, and the smallest length with which it fails.

        An axis gets its ordinary value if the call still fails with that value. The length is the new length of the dimension that the
        returned condition ``size`` changes, and is found by bisection. It is None if this condition changes no dimension or the failure
        cannot be reproduced.
        """

        def fails(tried: Conditions, length: int | None = None) -> bool:
            try:
                self.check(subject, tried, length)
            except Exception:
                return True
            return False

        found = dict(conditions)
        for axis, values in AXES.items():
            ordinary = {**found, axis: values[0]}
            if found[axis] != values[0] and fails(ordinary):
                found = ordinary
        longest = self._variations.length(found["size"])
        if longest is None or not fails(found, longest):
            return found, None
        low, high = 0, longest
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fails(found, middle) else (middle, high)
        return found, high

    def _run(self, given: Any, conditions: Conditions, plain: list[Any]) -> list[Any]:
        """Make the call with the arguments ``given``, and return its flattened, detached results. ``plain`` has the CPU's results."""
        args, kwargs = given
        destination, gradients = conditions["destination"], conditions["gradients"]
        if gradients == "recorded":
            args, kwargs = tree_map(as_leaf, given)
        given_targets = targets(destination, args[0] if args else None, plain, tensors(given)[0].device)
        mode: Any = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}.get(gradients, torch.enable_grad)
        with mode():
            if not given_targets:
                results = flat(self.func(*args, **kwargs))
            elif "in place" in destination:
                results = flat(self._in_place(given_targets[0].tensor, *args[1:], **kwargs))
            else:
                overload, names = self._out
                results = flat(
                    overload(*args, **kwargs, **{name: target.tensor for name, target in zip(names, given_targets, strict=True)})
                )
        if given_targets:
            is_same = [mine is target.tensor for mine, target in zip(results, given_targets, strict=True)]
            assert all(is_same), "the given tensor was not returned"
            for target in given_targets:
                target.check_gaps()
        return [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in results]

    def _takes(self, dtype: str) -> bool:
        """Return whether the call has float32 arguments and the CPU also accepts them when they are converted to ``dtype``."""
        args, kwargs = self._variations.arguments(AXES["size"][0], AXES["values"][0])
        is_any = any(one.dtype is torch.float32 for one in tensors((args, kwargs)))
        return is_any and self._prepared(AXES["size"][0], AXES["values"][0], dtype, None) is not None

    def _find_prepared(self, size: str, values: str, dtype: str, length: int | None) -> tuple[Any, list[Any], list[Any], int] | None:
        """Return the arguments of the call, the CPU's results, the CPU's results in double precision, and a number of terms.

        The tolerance allows for the rounding errors of a sum with this number of terms in each element of a result. Return None if the call
        cannot have this size, or if the CPU rejects the call.
        """
        given = self._variations.arguments(size, values, length)
        if given is None:
            return None
        if dtype != AXES["dtype"][0]:
            given = tree_map_only(
                torch.Tensor, lambda one: _converted(one, getattr(torch, dtype)) if one.dtype is torch.float32 else one, given
            )
        try:
            plain = flat(self.func(*given[0], **given[1]))
        except Exception:
            return None
        truth = truth_of(self.func, (given[0][0], given[0][1:], given[1]), plain)
        terms = (length or self._variations.length(size) or 1) if size in ("edge", "many rows", "most rows", "long rows") else 1
        return given, plain, truth, terms**2 if SEQUENTIAL.search(self._name) else terms


def _converted(one: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the tensor in another dtype. No NaN has its sign bit set, because a device may lose the sign when it converts the NaN."""
    return one.to(dtype).masked_fill(one.isnan(), float("nan"))


def check_under_conditions(subject: Subject, overload: str, combinations: list[dict[str, str]]) -> None:
    """Make a recorded call on the device under each combination of conditions, and then ten times under ordinary conditions.

    A condition that does not apply is replaced (see ``ConditionedCall.possible``). A failure is recorded in the subject, with the fewest
    conditions under which the call still fails. After three failures, or after one that leaves the device unusable, the function returns
    early.

    Args:
        subject: The plugin under test, with its device.
        overload: The name of an overload that ``recorded_calls.overloads`` yields.
        combinations: The combinations, as ``condition_rows.rows`` returns them.
    """
    op, func, args, kwargs = recorded_call(overload)
    require_dtypes(subject, lambda: func(*args, **kwargs))
    call = ConditionedCall(op, func, args, kwargs)
    given = (args[0], args[1:], kwargs)
    ordinary = {axis: values[0] for axis, values in AXES.items()}
    seen: list[dict[str, str]] = []
    num_failures = 0
    for row in combinations:
        conditions = call.possible(subject, row)
        if conditions in seen:
            continue
        seen.append(conditions)
        reproducer = functools.partial(_program, subject, overload, conditions)
        with subject.sample(f"{overload} {describe_sample(given)}", facts_of(given, "float32") | conditions, reproducer):
            try:
                call.check(subject, conditions)
            except NotSupported:
                raise
            except Exception as error:
                num_failures += 1
                works = still_computes(subject)
                least, length = call.reduced(subject, conditions) if works else (conditions, None)
                named = [f"{axis}: {value}" for axis, value in least.items() if value != ordinary[axis]] or ["under ordinary conditions"]
                size = "" if length is None else f", a length of {length} or more"
                size += "" if works else ", after which nothing works on the device in this process"
                raise AssertionError(f"{', '.join(named)}{size}: {error}") from error
        if num_failures == 3 or (num_failures and not still_computes(subject)):
            return
    with subject.sample(f"{overload} {describe_sample(given)}, ten times", facts_of(given, "float32") | ordinary):
        for _ in range(10):
            call.check(subject, ordinary)


def reproduce(accelerator: str, overload: str, conditions: Conditions) -> None:
    """Repeat a recorded call under these conditions on an accelerator's first device. Programs in failure reports call this function.

    Raises:
        AssertionError: If the results differ from those on the CPU.
    """
    instance = accelkit.select(accelerator).accelerator
    instance.load()
    subject = Subject(resolve(accelerator), type(instance))
    subject.use(instance)
    ConditionedCall(*recorded_call(overload)).check(subject, conditions)
    print(f"aten::{overload} gave the right results under these conditions")  # noqa: T201 # this is what the program is for


def _program(subject: Subject, overload: str, conditions: Conditions) -> str:
    """Return a program that repeats the failing call."""
    return (
        "from accelkit_conformance.oracle.conditions import reproduce\n"
        f"reproduce({subject.record.name!r}, {overload!r}, {dict(conditions)!r})\n"
    )
