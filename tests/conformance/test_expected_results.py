"""What becomes of tests that are expected to fail."""

import pytest
from executed import results_of

from accelkit.selection import resolve
from accelkit_conformance.expectations import ORIGIN_OF_TORCH_DEFECTS
from accelkit_conformance.mutants import find
from accelkit_conformance.runner import Executor
from accelkit_conformance.worker_pool import Order

pytestmark = pytest.mark.usefixtures("forked_workers")


def test_an_expected_failure_is_held_to_its_samples(tmp_path):
    """Each test has a declaration of its own, so that one worker runs them all."""
    declared = {
        "float32": ({"sample": "'alpha' in kwargs"}, "expected-failure"),
        "float64": ({"sample": "'alpha' not in kwargs"}, "fail"),  # what was not declared failed
        "float16": ({"sample": "True"}, "unexpected-pass"),  # what was declared to fail passes
        "bfloat16": ({"error": "AssertionError"}, "expected-failure"),
        "complex64": ({"error": "ValueError"}, "fail"),
    }
    tests = {f"operators/forward[add,{dtype}]": row for dtype, row in declared.items()}
    shared = {"reason": "known", "issue": "x", "expires": "2999-01-01", "dtypes": ()}
    expectations = tuple({"test": test, **shared, **declaration} for test, (declaration, _) in tests.items())
    order = Order(find("ignores_alpha").record(resolve("fake_xpu")), expectations=expectations)
    found = results_of(Executor(order, tmp_path), *tests)
    assert {test: result.kind for test, result in found.items()} == {test: kind for test, (_, kind) in tests.items()}


def test_a_defect_of_torch_may_occur_and_need_not(tmp_path):
    """If there are reasons of a vendor and of torch, the vendor's is reported, whatever the order of the samples."""
    torchs = {"reason": "torch's", "issue": "x", "expires": "2999-01-01", "dtypes": (), "origin": ORIGIN_OF_TORCH_DEFECTS}
    vendors = {**torchs, "reason": "the vendor's", "origin": "expected_failures.toml", "sample": "kwargs.get('alpha') == -3.125"}
    selects = {**torchs, "sample": "'alpha' in kwargs"}
    broken = {
        "float32": ([torchs], "expected-failure", "torch's (x)"),
        "float64": ([selects], "expected-failure", "torch's (x)"),
        "float16": ([{**torchs, "sample": "'alpha' not in kwargs"}], "fail", "alpha=2"),
        "bfloat16": ([vendors, selects], "expected-failure", "the vendor's (x)"),
    }
    right = {
        "float32": ([torchs], "pass", ""),
        "float64": ([selects], "pass", ""),
        "float16": ([selects, vendors], "unexpected-pass", "the vendor's"),
    }
    for record, rows in ((find("ignores_alpha").record(resolve("fake_xpu")), broken), (resolve("fake_xpu"), right)):
        tests = {f"operators/forward[add,{dtype}]": row for dtype, row in rows.items()}
        declared = tuple({"test": test, **one} for test, (given, _, _) in tests.items() for one in given)
        found = results_of(Executor(Order(record, expectations=declared), tmp_path), *tests)
        for test, (_, kind, reason) in tests.items():
            assert found[test].kind == kind, found[test]
            assert reason in found[test].reason


def test_an_expected_crash_takes_no_other_input_with_it(tmp_path):
    test = "operators/forward[topk,float32]"
    declared = {"test": test, "reason": "known", "issue": "x", "expires": "2999-01-01", "dtypes": ()}
    record = find("segfaults").record(resolve("fake_xpu"))

    def run(*declarations):
        executor = Executor(Order(record, expectations=tuple({**declared, **more} for more in declarations)), tmp_path)
        return results_of(executor, test)[test]

    found = run({"sample": "ndim == 0", "error": "SIGSEGV"})
    assert (found.kind, found.error, found.reason) == ("expected-failure", "SIGSEGV", "known (x)")
    assert found.samples == 5, "the four that have dimensions, and the first that has none"
    assert run({"sample": "ndim == 0", "error": "SIGABRT"}).kind == "crash", "another signal"
    assert run({"sample": "ndim == 1", "error": "SIGSEGV"}).kind == "crash", "another input"
    assert run({"sample": "True", "error": "SIGSEGV"}).kind == "unexpected-pass", "some of these inputs are right"
    assert run({"error": "SIGSEGV"}).kind == "expected-failure"
    assert run({"sample": "ndim == 0", "error": "SIGSEGV"}, {"sample": "ndim > 0"}).kind == "unexpected-pass"


def test_a_hang_may_be_expected(tmp_path):
    test = "operators/forward[topk,float32]"
    declared = {"test": test, "reason": "known", "issue": "x", "expires": "2999-01-01"}
    for error, kind in (("timeout", "expected-failure"), ("SIGSEGV", "timeout")):
        order = Order(find("hangs").record(resolve("fake_xpu")), expectations=({**declared, "error": error},), seconds=8)
        assert results_of(Executor(order, tmp_path), test)[test].kind == kind


def test_a_crash_that_is_expected_and_does_not_come_is_told(tmp_path):
    test = "operators/forward[topk,float32]"
    declared = {"test": test, "reason": "known", "issue": "x", "expires": "2999-01-01", "error": "SIGSEGV"}
    for more in ({}, {"sample": "ndim == 0"}):
        found = results_of(Executor(Order(resolve("cpu"), expectations=({**declared, **more},)), tmp_path), test)
        assert found[test].kind == "unexpected-pass", found[test]
