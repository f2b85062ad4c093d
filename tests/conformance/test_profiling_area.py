"""The checks of what torch.profiler records: each wrong recording of the fake XPU fails with a message that names the defect."""

from __future__ import annotations

import pytest

from accelkit.selection import resolve
from accelkit_conformance.mutants import find
from accelkit_conformance.runner import Executor
from accelkit_conformance.worker_pool import Order

pytestmark = pytest.mark.usefixtures("forked_workers")


@pytest.mark.parametrize(
    ("name", "test", "said"),
    [
        ("records_no_kernels", "recordings_contain_no_other_work", "no kernel of the matmuls was recorded"),
        ("records_microseconds_as_nanoseconds", "kernels_have_the_time_that_they_take", "1 recorded kernels take 0."),
        ("records_on_another_clock", "kernels_start_after_their_call", "us before it was launched"),
        ("records_kernels_twice", "kernels_have_the_time_that_they_take", "2 recorded kernels take"),
        (
            "keeps_old_recordings",
            "recordings_contain_no_other_work",
            "two recordings of the same work have 3 and 6 kernels and copies",
        ),
        ("records_the_operator_before", "time_belongs_to_the_operator_that_was_called", "no device time is attributed to the addition"),
        ("records_device0", "kernels_have_their_device", "work on fake_xpu:1 was recorded on the devices [0]"),
        ("records_no_freed_memory", "memory_is_recorded", "and then []"),
        ("computes_differently_while_recorded", "recording_changes_no_result", "while it was recorded"),
    ],
)
def test_a_wrong_recording_fails_with_the_defect(tmp_path, name, test, said):
    executor = Executor(Order(find(name).record(resolve("fake_xpu"))), tmp_path)
    try:
        found = executor.run(f"profiling/{test}")
    finally:
        executor.close()
    assert found.kind == "fail", found
    assert said in found.reason
