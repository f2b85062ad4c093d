"""The suite for hook plugins: a plugin that works passes, and mistakes fail with a message that names the hook and the defect."""

from __future__ import annotations

import pytest

from accelkit.discovery import loading
from accelkit_conformance import checks
from accelkit_conformance.mutants import find
from accelkit_conformance.mutants.hook_log import RECORD
from accelkit_conformance.runner import Executor
from accelkit_conformance.subject import Subject
from accelkit_conformance.worker_pool import Order

pytestmark = pytest.mark.usefixtures("forked_workers")

CHECKS = [one for one in checks.all_checks() if one.area in ("hooks_calls", "hooks_order")]


def failure(record, test):
    found, parameters = checks.find(test)
    try:
        found.function(Subject(record, loading.load_class(record)), *parameters)
    except AssertionError as error:
        return str(error)
    return ""


def test_a_plugin_that_works_passes():
    assert {one.name: failure(RECORD, f"{one.area}/{one.name}") for one in CHECKS} == {one.name: "" for one in CHECKS}


@pytest.mark.parametrize(
    ("mutant", "test", "text"),
    [
        ("raises_at_start", "hooks_calls/events_return_in_time", "runtime_created raised AttributeError"),
        ("waits_for_server", "hooks_calls/events_return_in_time", "setup_device did not return within 2 s: it was at hook_plugins.py"),
        ("statistic_is_text", "hooks_calls/statistics_are_numbers_by_name", "room.temperature is '21 C' (str) instead of a number"),
        ("requeue_says_what", "hooks_calls/requeue_returns_a_bool_or_none", "requeue returned 'not requeued' (str)"),
        ("sets_variables", "hooks_calls/process_is_unchanged", "runtime_created changed os.environ['HOOK_LOG_RUN']"),
        ("drops_precision", "hooks_order/wrappers_pass_results_on", "the wrapper of make_precision returned None"),
        ("swallows_errors", "hooks_order/wrappers_pass_errors_on", "the wrapper of setup_device swallowed the error"),
    ],
)
def test_a_mistake_is_named(mutant, test, text):
    assert text in failure(find(mutant).record(RECORD), test)


@pytest.mark.parametrize(
    ("mutant", "test", "text"),
    [
        (
            "tries_forever",
            "events_return_in_time",
            "checkpoint_saved did not return within 2 s, and cannot be interrupted: it was at ",
        ),
        ("constructor_waits", "events_return_in_time", "the constructor did not return within 2 s: it was at threading.py"),
        ("never_leaves_c", "doctor_checks_are_availabilities", "no answer within 12 s (--timeout raises the limit), in doctor_checks"),
    ],
)
def test_a_hook_that_hangs_is_named_and_the_run_goes_on(tmp_path, mutant, test, text):
    executor = Executor(Order(find(mutant).record(RECORD), seconds=12), tmp_path)
    try:
        result, other = executor.run(f"hooks_calls/{test}"), executor.run("contract/class_is_documented")
    finally:
        executor.close()
    assert text in result.reason
    assert result.kind == ("fail" if mutant == "constructor_waits" else "timeout")
    assert other.kind == "pass"


def test_a_hook_that_hangs_may_be_expected(tmp_path):
    test = "hooks_calls/events_return_in_time"
    declared = {"test": test, "reason": "known", "issue": "x", "expires": "2999-01-01"}
    for error, kind in (("timeout", "expected-failure"), ("SIGSEGV", "timeout")):
        executor = Executor(Order(find("tries_forever").record(RECORD), expectations=({**declared, "error": error},), seconds=12), tmp_path)
        try:
            assert executor.run(test).kind == kind
        finally:
            executor.close()
