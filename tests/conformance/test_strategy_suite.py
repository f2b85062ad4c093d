"""The conformance suite on strategies: a sample of what it finds and of what passes."""

import dataclasses
from pathlib import Path

import pytest

from accelkit_conformance import certification, profiles
from accelkit_conformance.mutants import find
from accelkit_conformance.oracle.strategy_jobs import shared_folder
from accelkit_conformance.run import accelerators_for, find_subject
from accelkit_conformance.runner import Executor
from accelkit_conformance.subject import Subject
from accelkit_conformance.worker_pool import Order

pytestmark = pytest.mark.usefixtures("forked_workers")

STEPS = "strategy_gradients/steps_equal_one_process[2]"
STATE = "strategy_state/state_is_restored[1]"


def results_on_cpu(tmp_path, record, *tests):
    executor = Executor(Order(record, accelerators=accelerators_for("strategy", ["cpu"])), tmp_path, reruns=0)
    try:
        return [executor.run(test) for test in tests]
    finally:
        executor.close()


@pytest.mark.parametrize(
    ("mutant", "test", "defect"),
    [
        ("never_averages", STEPS, "gradients are not averaged over the 2 processes"),
        ("returns_a_copy", STATE, "load_state did not restore the weights that save_state saved"),
    ],
)
def test_a_broken_strategy_fails_with_a_message_that_names_the_defect(tmp_path, mutant, test, defect):
    (found,) = results_on_cpu(tmp_path, find(mutant).record(find_subject("ddp", "strategy")), test)
    assert found.kind == "fail"
    assert defect in found.reason


def test_processes_that_compute_layers_together_share_their_samples(tmp_path):
    """Two defects of such a strategy are detected, and the strategy from which the mutants are derived has none."""
    meshes = "accelkit_conformance.mutants.strategy_meshes"
    subject = find_subject("parallel", "strategy")
    kinds = {}
    for name in ("TensorParallel", "SwapsGroups", "ForgetsReduction"):
        record = dataclasses.replace(subject, value=f"{meshes}:{name}")
        (found,) = results_on_cpu(tmp_path, record, STEPS)
        kinds[name] = found.kind
        assert found.kind == "pass" or "the weights differ from those of one process" in found.reason
    assert kinds == {"TensorParallel": "pass", "SwapsGroups": "fail", "ForgetsReduction": "fail"}


def test_processes_with_the_same_samples_have_the_same_dropout(tmp_path):
    meshes = "accelkit_conformance.mutants.strategy_meshes"
    subject = find_subject("parallel", "strategy")
    reasons = {}
    for name in ("TensorParallel", "SeedsByRank"):
        record = dataclasses.replace(subject, value=f"{meshes}:{name}")
        (found,) = results_on_cpu(tmp_path, record, "strategy_gradients/same_samples_have_the_same_dropout[2]")
        reasons[name] = (found.kind, found.reason)
    assert reasons["TensorParallel"] == ("pass", "")
    assert reasons["SeedsByRank"][0] == "fail"
    assert "but their masks are not the same" in reasons["SeedsByRank"][1]


def test_a_failed_check_leaves_no_folder():
    subject = Subject(find_subject("single_device", "strategy"), object)
    with pytest.raises(ZeroDivisionError), shared_folder(subject) as folder:
        raise ZeroDivisionError
    assert not Path(folder).exists()


@pytest.mark.parametrize("test", ["strategy_gradients/buffers[2]", "strategy_state/initial_weights_are_those_of_rank_0[2]"])
def test_buffers_that_one_rank_lacks_leave_no_rank_waiting(tmp_path, test):
    record = dataclasses.replace(find_subject("ddp", "strategy"), value="missing_buffers:MissingBuffers")
    (found,) = results_on_cpu(tmp_path, record, test)
    assert found.kind == "fail"
    assert "the model has no buffer scale, the model has no buffer passes (rank 1 of 2)" in found.reason


def test_an_engine_without_a_fault_passes(tmp_path):
    value = "accelkit_conformance.mutants.strategy_engines:AveragingEngineStrategy"
    record = dataclasses.replace(find_subject("ddp", "strategy"), value=value)
    tests = ["strategy_steps/zero_grad_discards_gradients[1]", "strategy_steps/infinite_gradients_make_all_processes_skip[1]"]
    assert [result.kind for result in results_on_cpu(tmp_path, record, *tests)] == ["pass", "pass"]


def test_only_a_strategy_that_is_not_distributed_may_skip_the_checks_on_several_processes(tmp_path):
    """The results on two processes stand for all tests of the profile that have no result of their own here."""
    tests = profiles.suite("smoke", "2.13", "strategy").tests
    (single,) = results_on_cpu(tmp_path, find_subject("single_device", "strategy"), STEPS)
    assert single.is_declared_none
    assert "is_distributed is False" in single.reason
    ran = [dataclasses.replace(single, id=test, kind="pass", reason="") for test in tests if test != STEPS]
    assert certification.objections(tests, [*ran, single], is_whole=True) == []
    lacking = dataclasses.replace(single, reason="2 processes need as many devices")
    assert "tests of the mandatory areas were run" in certification.objections(tests, [*ran, lacking], is_whole=True)[0]
