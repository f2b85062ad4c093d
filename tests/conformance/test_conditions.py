"""Calls under conditions: pairs are covered, faults that depend on conditions are found, and failures name the conditions."""

from __future__ import annotations

import itertools
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import accelkit
from accelkit.selection import resolve
from accelkit_conformance import generated_selftest
from accelkit_conformance.mutants.generated import Generated
from accelkit_conformance.oracle import collective_axes, conditions, recorded_calls
from accelkit_conformance.oracle.condition_rows import AXES, rows
from accelkit_conformance.oracle.conditions import ConditionedCall
from accelkit_conformance.oracle.layouts import all_arranged
from accelkit_conformance.oracle.pairwise import covering_rows
from accelkit_conformance.oracle.sample_transfer import tensors
from accelkit_conformance.oracle.targets import Target
from accelkit_conformance.oracle.variations import Variations
from accelkit_conformance.subject import Subject

ORDINARY = {axis: values[0] for axis, values in AXES.items()}


@given(st.lists(st.integers(1, 5), min_size=2, max_size=6))
def test_every_pair_of_values_is_in_a_row(sizes):
    axes = {f"axis{index}": [f"value{number}" for number in range(size)] for index, size in enumerate(sizes)}
    rows = covering_rows(axes)
    for one, other in itertools.combinations(axes, 2):
        assert {(row[one], row[other]) for row in rows} == set(itertools.product(axes[one], axes[other]))
    largest = sorted(sizes)[-2:]
    assert len(rows) <= 3 * largest[0] * largest[1]
    assert rows == covering_rows(axes)


def test_every_defined_pair_is_in_a_case_of_the_collectives():
    """Undefined reductions were once replaced after pairing, so that BAND was never tested with a strided tensor."""
    cases = collective_axes.cases()
    axes = collective_axes.AXES
    for one, other in itertools.combinations(axes, 2):
        pairs = set(itertools.product(axes[one], axes[other]))
        if (one, other) == ("dtype", "reduction"):
            undefined = {pair for pair in pairs if not collective_axes._is_defined(*pair)}
            assert ("int64", "AVG") in undefined
            assert ("bool", "BAND") not in undefined
            pairs -= undefined
        if (one, other) == ("length", "dimensions"):
            pairs.remove(("65537", "4"))  # it would have too many elements
        assert {(case[one], case[other]) for case in cases} == pairs


def test_every_layout_and_destination_is_tried_somewhere():
    every = rows(is_contiguous=True) + rows(is_contiguous=False)
    assert ORDINARY not in every
    for axis, values in AXES.items():
        assert {row[axis] for row in every} >= set(values), axis


@pytest.mark.usefixtures("forked_workers")
def test_faults_that_depend_on_a_condition_are_found():
    """No test found these before calls were repeated under conditions."""
    faults = [
        ("cos", "more_than"),
        ("lgamma", "no_grad"),
        ("huber_loss", "out_strides"),
        ("adaptive_max_pool2d", "nan"),
        ("upsample_linear1d_backward", "more_than"),
    ]
    mutants = [Generated(operator, axis, 7) for operator, axis in faults]
    for outcome in generated_selftest.examine(resolve("fake_xpu"), mutants, 1, lambda one: None):
        assert outcome.verdict == "killed", outcome
        assert "/conditions[" in outcome.killer


@pytest.fixture
def subject():
    accelerator = accelkit.select("cpu").accelerator
    accelerator.load()
    found = Subject(resolve("cpu"), type(accelerator))
    found.use(accelerator)
    found.begin(())
    return found


class Doubled:
    """An overload whose results are doubled where ``is_wrong`` says so, on everything but the CPU's own first calls."""

    def __init__(self, func, is_wrong):
        self._func, self._is_wrong = func, is_wrong
        self.is_due = False

    def __getattr__(self, name):
        return getattr(self._func, name)

    def __call__(self, *args, **kwargs):
        result = self._func(*args, **kwargs)
        return result * 2 if self.is_due and self._is_wrong(result) else result


class Copying(Doubled):
    """An overload that computes with contiguous copies of its arguments, on everything but the CPU's own first calls."""

    def __call__(self, *args, **kwargs):
        if self.is_due:
            args = [one.contiguous() if isinstance(one, torch.Tensor) else one for one in args]
        return super().__call__(*args, **kwargs)


def failing(monkeypatch, is_wrong, overload="neg", kind=Doubled):
    """Make an overload wrong on the device, which is the CPU too: only what runs at a place of the device is."""
    op, func, args, kwargs = recorded_calls.recorded_call(overload)
    faulty = kind(func, is_wrong)
    run_at = conditions.run_at

    def at(*arguments):
        faulty.is_due = True
        try:
            return run_at(*arguments)
        finally:
            faulty.is_due = False

    monkeypatch.setattr(conditions, "run_at", at)
    monkeypatch.setattr(conditions, "recorded_call", lambda overload: (op, faulty, args, kwargs))


def test_a_failure_names_the_fewest_conditions_and_the_smallest_length(subject, monkeypatch):
    failing(monkeypatch, lambda result: result.ndim > 0 and result.shape[-1] > 40 and not torch.is_grad_enabled())
    conditions.check_under_conditions(subject, "neg", rows(is_contiguous=True))
    assert subject.failures
    for failure in subject.failures:
        text = str(failure.error)
        assert "gradients: no_grad" in text or "gradients: inference_mode" in text
        assert "a length of 41 or more" in text
        assert "place:" not in text
        assert "values:" not in text


def test_a_fault_in_more_than_five_dimensions_is_found(subject, monkeypatch):
    failing(monkeypatch, lambda result: result.ndim > 5)
    conditions.check_under_conditions(subject, "neg", rows(is_contiguous=True) + rows(is_contiguous=False))
    assert subject.failures
    assert all("size: six dimensions" in str(failure.error) for failure in subject.failures)


@pytest.mark.parametrize("overload", ["cumsum", "sort.stable", "median.dim", "cat", "amax"])
def test_the_dimension_that_a_call_names_is_lengthened(overload):
    _, func, args, kwargs = recorded_calls.recorded_call(overload)
    variations = Variations(func, args, kwargs)
    named = variations._named_dim
    assert named is not None
    before = tensors((args, kwargs))[0].shape
    after = tensors(variations.arguments("long rows", "as recorded"))[0].shape
    assert [dim for dim, (one, other) in enumerate(zip(before, after, strict=True)) if one != other] == [named % len(before)]


def test_a_mixed_layout_is_that_of_one_tensor_only():
    images = [torch.arange(16.0).view(1, 1, 4, 4), torch.arange(16.0).view(1, 1, 4, 4)]
    for layout, strides in (("first channels_last", [1, 16]), ("others channels_last", [16, 1])):
        found = all_arranged(images, layout)
        assert [one.stride(1) for one in found] == strides
        assert all(map(torch.equal, found, images))


def test_a_result_that_does_not_depend_on_strides_is_right_where_the_cpus_does(subject, monkeypatch):
    """The CPU's ``_add_relu`` makes NaN to NaN if its argument is contiguous, and to zero if it is strided."""
    failing(monkeypatch, lambda result: False, "_add_relu.Scalar", Copying)
    conditions.check_under_conditions(subject, "_add_relu.Scalar", rows(is_contiguous=False))
    assert [str(failure.error) for failure in subject.failures] == []


def test_a_failure_under_all_conditions_says_so(subject, monkeypatch):
    failing(monkeypatch, lambda result: True)
    conditions.check_under_conditions(subject, "neg", rows(is_contiguous=True))
    assert [str(failure.error).partition(":")[0] for failure in subject.failures] == ["under ordinary conditions"] * 3, "it stops then"


def test_the_program_of_a_failure_repeats_the_call(subject):
    program = conditions._program(subject, "neg", ORDINARY | {"size": "edge", "gradients": "no_grad"})
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "aten::neg gave the right results" in run.stdout


def test_an_overload_without_a_variant_is_called_as_it_is():
    op, func, args, kwargs = recorded_calls.recorded_call("_fft_r2c")
    call = ConditionedCall(op, func, args, kwargs)
    device = SimpleNamespace(devices=[1], optional_function=lambda name: None, capabilities=SimpleNamespace(can=lambda key: False))
    for place in ("another stream", "followed by empty_cache"):
        assert call.possible(device, ORDINARY | {"destination": "in place", "place": place}) == ORDINARY


@pytest.mark.parametrize("make", [Target.strided, Target.narrowed])
def test_memory_beside_the_elements_of_a_target_is_watched(make):
    target = make(torch.ones(3, 2))
    target.check_gaps()
    target.tensor.as_strided((3,), (target.tensor.stride(0),), target.tensor.storage_offset() - 1).zero_()
    with pytest.raises(AssertionError, match="was overwritten"):
        target.check_gaps()
