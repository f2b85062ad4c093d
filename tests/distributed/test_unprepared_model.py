"""In a job of several processes, a backward pass without a prepared model is an error, because each process would train its own model."""

from __future__ import annotations

import json

import ranks


def test_a_model_that_is_not_prepared_is_not_trained(error_text):
    texts = ranks.run("unprepared_program.py", 2)
    found = [json.loads(text.partition("result: ")[2].splitlines()[0]) for text in texts]
    assert found[0] == found[1]
    errors = found[0].pop("errors")
    assert len(errors) == 2
    assert "each of the 2 processes" in errors[0]
    assert errors[0] == error_text
    assert found[0] == {
        "has gradients": False,
        "torch's own before": False,
        "torch's own after": True,
        "gradient": [[0.5, 0.5]],
    }
