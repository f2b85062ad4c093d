"""ACCELKIT_VERIFY_COLLECTIVES: which calls are verified, and that ranks which part end in an error in every mode."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import ranks
from hypothesis import given
from hypothesis import strategies as st
from test_collectives import error_of

import accelkit
from accelkit.runtime.collectives import verification

MODES = ("always", "first", "off")


def in_mode(mode, **more):
    return {verification.VARIABLE: mode, **more}


@pytest.mark.parametrize("accelerator", ["cpu", pytest.param("fake_xpu", marks=pytest.mark.smoke)])
@pytest.mark.parametrize("mode", MODES)
def test_a_correct_program_has_the_same_results_in_every_mode(accelerator, mode):
    ranks.run("verification_program.py", 2, accelerator, "alike", "late", "in_rounds", "late", environ=in_mode(mode))


@pytest.mark.parametrize("mode", MODES[1:])
def test_every_collective_works_unverified(mode):
    cases = ["gather", "reduce", "broadcast", "pad", "metrics", "first"]
    cases += ["gradients", "differing"] if mode == "first" else []  # these expect errors of processes that differ
    ranks.run("runtime_collectives_program.py", 3, "cpu", *cases, environ=in_mode(mode))


@pytest.mark.parametrize("mode", MODES)
def test_a_rank_that_does_not_come_is_named_in_every_mode(mode, error_text):
    codes, texts = ranks.outcome("verification_program.py", 3, "cpu", "absent", environ=in_mode(mode, ACCELKIT_TIMEOUT="8"))
    assert codes[1] == 0
    for rank in (0, 2):
        assert codes[rank] != 0
        what, _, why = error_of("CollectiveError", texts[rank]).partition("\n  why: ")
        assert f"reduce (sum) of float32[1000] (call 7) on rank {rank}" in what
        assert "rank 1" in what
        assert "rank 1 (" in why
        assert f"last called gather of float32[1000]{'' if mode != 'off' else ' (not verified)'}" in why
    if "8000ms" in texts[0]:  # otherwise rank 2 was the first to end
        assert error_of("CollectiveError", texts[0]) == error_text


def test_ranks_of_which_only_some_verify_end_in_an_error(error_text):
    codes, texts = ranks.outcome("verification_program.py", 2, "cpu", "apart", environ=in_mode("first", ACCELKIT_TIMEOUT="8"))
    assert all(codes)
    for rank in (0, 1):
        error = error_of("CollectiveError", texts[rank])
        assert "gather of uint8[128] (not verified)" in error
        assert "gather of int16[64]" in error
        assert "a wrong result" not in texts[rank]
    assert error_of("CollectiveError", texts[1]).partition("; ")[0] == error_text


@pytest.mark.parametrize("mode", MODES[1:])
def test_unverified_calls_that_differed_are_found_at_the_next_exchange(mode, error_text):
    texts = ranks.run("verification_program.py", 2, "cpu", "late", environ=in_mode(mode))
    assert error_of("CollectiveError", texts[0]) == error_text


@pytest.mark.smoke
def test_ranks_in_different_modes_are_refused(error_text):
    codes, texts = ranks.outcome("verification_program.py", 2, "cpu", "disagree", environ=in_mode("off"))
    assert all(codes)
    error = error_of("ContradictionError", texts[0])
    assert f"{verification.VARIABLE} is off on rank 0 and first on rank 1" in error
    assert error == error_text


@pytest.mark.smoke
def test_an_unknown_mode_is_refused_when_the_runtime_is_made(error_text):
    code = "import accelkit; accelkit.Runtime('cpu')"
    environ = os.environ | {verification.VARIABLE: "sometimes"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environ)
    assert done.returncode != 0
    error = error_of("UsageError", done.stderr)
    assert f"{verification.VARIABLE}=sometimes" in error
    assert all(mode in error for mode in MODES)
    assert error == error_text


@pytest.mark.parametrize("given_value", ["", "Always", "1", "first "])
def test_only_the_modes_are_modes(given_value):
    with pytest.raises(accelkit.UsageError) as caught:
        verification.parse_mode(given_value)
    assert given_value in caught.value.what


def step(histories, calls, mode):
    """What ``verify`` does on ranks that make these calls; None if they part."""
    due = [history.is_due(mode, call) for history, call in zip(histories, calls, strict=True)]
    if len(set(due)) > 1:
        return None
    for history, call in zip(histories, calls, strict=True):
        if due[0]:
            history.forget_unverified()
            if len(set(calls)) == 1:
                history.add_verified(call)
        else:
            history.add_unverified(call)
    return due[0]


@pytest.mark.smoke
@given(st.lists(st.tuples(*[st.sampled_from("ABCD")] * 3) | st.sampled_from("ABCD").map(lambda call: (call,) * 3), max_size=300))
def test_ranks_that_make_the_same_call_decide_the_same(sequence):
    histories = [verification.History() for _ in range(3)]
    for calls in sequence:
        if step(histories, calls, "first") is None:
            assert len(set(calls)) > 1, "ranks part only at a call that differs"
            return


@pytest.mark.smoke
def test_first_verifies_three_calls_of_a_kind_and_each_hundredth():
    history = verification.History()
    due = [step([history], ["A"], "first") for _ in range(204)]
    assert [number for number, is_due in enumerate(due) if is_due] == [0, 1, 2, 102, 202]
    assert step([history], ["B"], "first") is True
    assert [step([verification.History()], ["A"], mode) for mode in ("always", "off")] == [True, False]
