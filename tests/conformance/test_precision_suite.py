"""The suite for precisions: a built-in one passes, and broken ones fail with a message that names the defect."""

from __future__ import annotations

import dataclasses

import pytest

from accelkit_conformance import selftest
from accelkit_conformance.mutants import Mutant, find
from accelkit_conformance.run import accelerators_for, find_subject
from accelkit_conformance.runner import Executor
from accelkit_conformance.worker_pool import Order

pytestmark = pytest.mark.usefixtures("forked_workers")


def outcome(folder, mutant, *tests, **record):
    base = dataclasses.replace(find_subject(mutant.base, "precision"), **record)
    order = Order(mutant.record(base), accelerators=accelerators_for("precision", ["cpu"]))
    executor = Executor(order, folder)
    try:
        return [executor.run(test) for test in tests]
    finally:
        executor.close()


@pytest.mark.parametrize(
    ("name", "test", "said"),
    [
        ("converts_only_the_top", "precision_dtypes/arguments_are_converted_wherever_they_are", "is in torch.float32, and another one in"),
        ("never_skips", "precision_scaling/infinite_gradients_are_skipped[inf]", "a step with inf in a gradient was not skipped"),
        ("forgets_its_scale", "precision_state/checkpoints_restore_everything", "the scale was 32768, and is 65536 after loading"),
    ],
)
def test_a_broken_precision_fails_with_the_defect(tmp_path, name, test, said):
    (found,) = outcome(tmp_path, find(name), test)
    assert found.kind == "fail"
    assert said in found.reason


@pytest.mark.parametrize("name", ["16-mixed", "32-true"])
def test_a_precision_without_a_fault_passes_the_same_tests(tmp_path, name):
    healthy = Mutant("healthy", "", "", find_subject(name, "precision").value, "", "precision", name)
    tests = [one for one in selftest.suite_of(healthy) if "dtypes/" in one or "lifecycle/" in one or "state/checkpoints" in one]
    found = outcome(tmp_path, healthy, *tests)
    assert {one.id: one.reason for one in found if one.kind != "pass"} == {}


NO_MODULE = """
from accelkit import Precision

class {cls}(Precision):
    \"\"\"A precision.\"\"\"
    {body}
"""


@pytest.mark.parametrize(
    ("body", "static", "said"),
    [
        ("def convert_module(self, module): module.float()", "methods_return_values", "returned None (NoneType) instead of a module"),
        ("def optimizer_step(self, optimizer): return None", "methods_keep_their_signatures", "optimizer_step"),
    ],
    ids=["returns_none", "wrong_signature"],
)
def test_precisions_that_the_docstring_alone_certified_fail(tmp_path, monkeypatch, body, static, said):
    (tmp_path / "vendor_precision.py").write_text(NO_MODULE.format(cls="Vendor", body=body))
    monkeypatch.syspath_prepend(tmp_path)
    vendor = Mutant("vendor", "", "", "vendor_precision:Vendor", "", "precision", "32-true")
    tests = [f"contract/{static}", "precision_gradients/a_step_matches_float64"]
    of_class, of_step = outcome(tmp_path, vendor, *tests, distribution="vendor-precision", version="1.0")
    assert (of_class.kind, of_step.kind) == ("fail", "fail")
    method = body.removeprefix("def ").partition("(")[0]
    assert f"Vendor.{method}" in of_class.reason
    assert {"convert_module": "returns None", "optimizer_step": "has no argument 'step'"}[method] in of_class.reason
    assert said in of_step.reason
