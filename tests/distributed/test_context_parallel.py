"""Context parallelism on two real processes, each with one half of every sequence: what they compute is what one process computes."""

from __future__ import annotations

import pytest
import ranks


@pytest.mark.parametrize("accelerator", [pytest.param("cpu", marks=pytest.mark.soak), "fake_xpu"])
def test_attention_losses_and_gradients_are_those_of_whole_sequences(accelerator):
    cases = ["attends", "layers", "recomputes", "losses", "divides"]
    for text in ranks.run("context_program.py", 2, accelerator, *cases):
        assert text.count("done") == len(cases)


def test_what_cannot_be_divided_is_refused(error_text):
    text, _ = ranks.run("context_program.py", 2, "cpu", "refuses")
    lines = [line for line in text.splitlines() if line.startswith("REFUSED")]
    assert len(lines) == 13
    for line in lines:
        assert line == error_text
