"""Devices of kinds that the authors of the suite do not have: each result is one of the device, and names what failed."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from accelkit.selection import resolve
from accelkit_conformance import report, terminal
from accelkit_conformance.oracle.sample_transfer import has_memory, has_storage, to_device
from accelkit_conformance.results import Result
from accelkit_conformance.runner import Executor
from accelkit_conformance.worker_pool import Order

pytestmark = pytest.mark.usefixtures("forked_workers")


@pytest.fixture
def run(tmp_path):
    """Run tests on a class of ``unusual_devices``, in one worker, and return the results."""

    def run(name, *tests):
        executor = Executor(Order(dataclasses.replace(resolve("fake_xpu"), value=f"unusual_devices:{name}")), tmp_path)
        try:
            return [executor.run(test) for test in tests]
        finally:
            executor.close()

    return run


def test_streams_events_and_memory_need_no_module(run):
    tests = ["capabilities/streams", "capabilities/events", "capabilities/memory_statistics", "streams/current_stream_is_kept"]
    tests += [
        "streams/waiting_streams_see_the_value",
        "streams/events_are_done_after_waiting",
        "streams/device_synchronize_covers_all_streams",
    ]
    tests += ["memory/peak_is_kept_and_reset", "device/synchronize_waits"]
    assert {result.id: result.reason for result in run("BareModule", *tests) if result.kind != "pass"} == {}


def test_memory_that_another_thread_frees_a_moment_later_is_no_leak(run):
    tests = ["memory/errors_leave_nothing[matmul]", "memory/errors_leave_nothing[hook]"]
    tests += ["memory/out_of_memory_in_an_operator", "memory/training_does_not_leak"]
    tests += [f"memory/operators_leave_nothing[{name}]" for name in ("mul", "matmul")]
    assert {result.id: result.reason for result in run("FreesLate", *tests) if result.kind != "pass"} == {}


def test_a_device_with_one_stream_does_not_support_streams(run):
    (result,) = run("OneStream", "streams/current_stream_is_kept")
    assert (result.kind, "the device has only one" in result.reason) == ("unsupported", True), result


def test_no_operator_is_lost_on_tensors_without_a_storage(run):
    tests = ["operators/forward[add,float32]", "operators/forward[mul,float32]", "operators/forward[clone,float32]"]
    tests += [
        "layout/noncontiguous_inputs[abs]",
        "layout/guard_bands[add_]",
        "autograd/backward[add,float32]",
        "serialization/views_and_layouts",
    ]
    assert {result.id: result.reason for result in run("NoStorage", *tests) if result.kind != "pass"} == {}


def test_a_tensor_without_a_storage_is_copied_on_its_own():
    def copy(opaque):
        assert not has_storage(opaque)
        assert not has_memory(opaque)
        return to_device([opaque], torch.device("cpu"))[0]

    values = torch.arange(6.0).view(2, 3)
    assert torch.equal(torch.func.vmap(copy)(values), values)


def test_an_error_that_comes_late_is_that_of_its_test(run):
    own, innocent = run("LateErrors", "capabilities/subnormals", "device/synchronize_waits")
    assert (own.kind, own.reason) == ("fail", "reported late: RuntimeError: a kernel has failed")
    assert innocent.kind == "pass", innocent.reason


def test_an_error_that_comes_after_a_failure_does_not_fail_the_next_test(run):
    failed, innocent = run("LateErrorsAfterFailures", "capabilities/subnormals", "device/synchronize_waits")
    assert failed.reason == "they are flushed to zero"
    assert innocent.kind == "pass", innocent.reason


def test_an_error_that_is_due_may_come_late(run):
    results = run("RefusesLate", "errors/dtypes_that_do_not_fit", "errors/factorisations_that_fail")
    assert {result.id: result.reason for result in results if result.kind != "pass"} == {}


def test_an_error_that_is_due_must_come(run):
    for result in run("AcceptsEverything", "errors/dtypes_that_do_not_fit", "errors/factorisations_that_fail"):
        assert (result.kind, result.step) == ("fail", "comparison"), result
        assert "did not raise an error" in result.reason


def test_only_the_test_that_poisons_its_process_fails(run):
    poisons, *others = run("Poisoned", *[f"operators/forward[{name},float32]" for name in ("mul", "add", "sub")])
    assert (poisons.kind, poisons.step) == ("fail", "operator"), poisons
    assert "the queue has failed" in poisons.notes[0]
    assert [(one.kind, one.attempts) for one in others] == [("pass", 1), ("pass", 1)]


@pytest.mark.parametrize("device", ["fake_xpu", "declared", "option"])
def test_the_first_call_of_a_kernel_may_take_longer_if_this_is_declared(tmp_path, monkeypatch, device):
    monkeypatch.setenv("FAKE_XPU_FAULT", "slow_first_call@6000")
    record = resolve("fake_xpu")
    if device == "declared":
        record = dataclasses.replace(record, value="unusual_devices:Compiles")
    executor = Executor(Order(record, seconds=5, first_call_timeout=60.0 if device == "option" else None), tmp_path)
    try:
        result = executor.run("operators/forward[abs,float32]")
    finally:
        executor.close()
    if device == "fake_xpu":
        assert result.kind == "timeout"
        assert "no answer within 5 s" in result.reason
        assert "--timeout" in result.reason
        assert "--first-call-timeout" in result.reason
    else:
        assert result.kind == "pass", result
        assert result.seconds < 5
        assert "its first run took" in result.notes[0]


def test_wrong_numbers_are_failures_even_if_nothing_is_declared(run):
    for result in run("WrongUndeclared", "operators/forward[add,float64]", "capabilities/dtype[float64]"):
        assert (result.kind, result.step) == ("fail", "comparison"), result


def test_what_has_no_effect_is_a_failure_even_if_it_is_not_declared(run):
    tests = ["random/reseeding_repeats", "capabilities/memory_statistics", "capabilities/numbered_devices", "device/bad_index_raises"]
    for result in run("IgnoresWhatItIsTold", *tests):
        assert (result.kind, result.step) == ("fail", "comparison"), result


def test_a_random_state_that_cannot_be_read_is_unsupported(run):
    (result,) = run("WithoutRandomState", "capabilities/random_state")
    assert result.kind == "unsupported", result
    assert "there is no random state" in result.reason


def test_what_raises_and_is_not_declared_is_unsupported(run):
    (result,) = run("RaisesUndeclared", "operators/forward[add,float64]")
    assert (result.kind, result.step, result.error) == ("unsupported", "operator", "NotImplementedError")
    assert (
        "dtype.float64: undeclared, and does not work for 8 of 8 inputs (NotImplementedError: no kernel for aten::add.Tensor)"
        in result.reason
    )
    assert "Traceback" in result.detail
    assert "fake_xpu" in result.reproducer
    assert "import accelkit;" in result.reproducer, "the accelerator overrides load"


def test_the_program_for_a_failure_needs_only_the_vendor_s_package(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_XPU_FAULT", "nan@add")
    executor = Executor(Order(resolve("fake_xpu")), tmp_path)
    try:
        result = executor.run("operators/forward[add,float32]")
    finally:
        executor.close()
    assert result.kind == "fail", result
    assert "import accelkit_fake_xpu.torch_backend\n" in result.reproducer
    assert "accelkit.select" not in result.reproducer


def test_a_capability_whose_absence_shows_in_a_result_may_be_undeclared(run):
    for result in run("FlushesUndeclared", "capabilities/subnormals", "operators/subnormal_numbers[mul]"):
        assert (result.kind, result.step) == ("unsupported", "comparison"), result


def test_a_failure_of_the_suite_s_helper_is_called_so(run):
    (result,) = run("CannotCopy", "operators/forward[add,float64]")
    assert (result.kind, result.step) == ("unsupported", "helper placed")
    assert "in the suite's helper function placed(): NotImplementedError: no kernel for aten::set_" in result.reason


def test_a_distribution_that_is_missing_is_not_a_failure_of_a_helper(run):
    (result,) = run("CannotDraw", "random/continuous_distributions[exponential_]")
    assert (result.kind, result.step) == ("fail", "operator"), result
    assert result.reason == "NotImplementedError: no kernel for aten::exponential_"


def test_any_error_refuses_an_unknown_dtype_of_autocast(run):
    (result,) = run("WithoutAutocast", "precision/unsupported_dtypes_are_reported")
    assert result.kind == "pass", result.reason


def test_serialization_needs_no_dtype_that_is_not_declared(run):
    (result,) = run("LacksBFloat16", "serialization/safetensors_bytes")
    assert result.kind == "pass", result.reason


def test_operators_that_draw_no_numbers_need_no_random_state(run):
    (result,) = run("WithoutRandomState", "operators/forward[nn.functional.scaled_dot_product_attention,float32]")
    assert result.kind == "pass", result.reason


def test_a_device_that_holds_no_number_fails_only_tests_that_need_one(run):
    needs_none, needs_one = run("OnlyVectors", "device/string_round_trip", "device/scalars_come_back")
    assert needs_none.kind == "pass", needs_none.reason
    assert "this device holds only vectors" in needs_one.reason, needs_one


def test_copies_to_dtypes_that_are_not_declared_are_compared_if_there_are_any(run):
    found = [run(name, "transfer/copies_convert")[0] for name in ("LacksBFloat16", "OnlyFloat32", "ConvertsWrongly")]
    assert [one.kind for one in found] == ["pass", "unsupported", "fail"], found
    assert found[1].reason == "the device converts float32 to none of float64, float16, bfloat16, int32, int64, bool"
    assert "int32" in found[2].reason


def test_a_device_that_cannot_make_the_argument_of_an_operator_is_not_said_to_raise_the_wrong_error(run):
    (result,) = run("OneShape", "errors/missing_operators_raise")
    assert (result.kind, result.reason) == ("fail", "RuntimeError: this device holds only tensors of 4096 elements")


def test_a_factory_that_ignores_the_cpu_fails_only_the_test_of_factories(run):
    factories, bands = run("KeepsFactories", "device/tensors_know_their_device", "layout/guard_bands[fill_]")
    assert (factories.kind, bands.kind) == ("fail", "pass"), (factories, bands)
    assert "device='cpu' made a tensor on fake_xpu:0" in factories.reason


# -- areas that are mostly unsupported --------------------------------------------------------------------------------


def unsupported(number, error="RuntimeError: no kernel", area="operators"):
    which = f" for {number} of 8 inputs" if number else ""
    return Result(f"{area}/forward[{number}]", "unsupported", reason=f"dtype.float64: undeclared, and does not work{which} ({error})")


def test_an_area_that_is_mostly_unsupported_is_described_with_its_commonest_cause():
    results = [unsupported(number, f"RuntimeError: no kernel at {number}") for number in range(3)]
    results += [unsupported(3, "KeyError: 'x'"), *(Result(f"operators/forward[{number}]", "pass") for number in range(4, 10))]
    results += [Result(f"layout/noncontiguous_inputs[{number}]", "pass") for number in range(9)]
    (line,) = report.unsupported_areas(results)
    assert line == "operators: 4 of 10 tests are unsupported, 3 of them because of: RuntimeError: no kernel at 0"


def test_a_third_is_not_yet_described_and_what_is_declared_none_never_is():
    results = [unsupported(0), *(Result(f"operators/forward[{number}]", "pass") for number in range(1, 3))]
    results += [Result("streams/waiting_streams_see_the_value", "unsupported", reason="streams: declared none")]
    assert report.unsupported_areas(results) == []


def test_the_summary_begins_with_such_areas():
    from example_reports import make_report

    made = make_report(results=[unsupported(0)])
    assert terminal.summary_lines(made)[0].startswith("operators: 1 of 1 tests are unsupported")


def test_processes_that_cannot_share_a_device_need_as_many_devices(run):
    for result in run("OneExclusiveDevice", "capabilities/process_group[2]", "collectives/all_reduce[2,SUM,float32]"):
        assert result.kind == "unsupported", result
        assert "2 processes need as many devices, but only 1 is available; the process group cannot share a device" in result.reason
        assert "Duplicate device: rank 0 and rank 1" in result.reason


def test_an_operator_that_pytorch_has_only_for_the_cpu_may_be_missing(run):
    missing, present = run("LacksHistograms", "operators/forward[histogram,float32]", "layout/noncontiguous_inputs[histc]")
    assert (missing.kind, "PyTorch itself implements this only for the CPU" in missing.reason) == ("unsupported", True), missing
    assert present.kind == "pass", present


@pytest.mark.parametrize("test", ["warnings_are_not_errors", "calls_are_repeated[assignment]", "calls_are_repeated[scatter]"])
def test_a_value_of_another_element_is_wrong(run, test):
    (result,) = run("AssignsToTheNext", f"determinism/{test}")
    assert (result.kind, "an element has none of the values that were assigned to it" in result.reason) == ("fail", True), result


def test_the_name_of_a_device_is_a_location(run):
    (result,) = run("LoadsNamesToTheCPU", "serialization/forms_of_locations")
    assert (result.kind, "with map_location=the name of the device, a tensor was loaded to cpu" in result.reason) == ("fail", True), result
