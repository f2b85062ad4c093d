"""The backend ``host``: the strategies and collectives that torch calls on a process group written in Python."""

from __future__ import annotations

import json

import pytest
import ranks
import torch


@pytest.fixture(scope="module")
def found():
    """What rank 0 and rank 1 print, by strategy."""
    texts = {strategy: ranks.run("host_backend_program.py", 2, strategy) for strategy in ("ddp", "fsdp")}
    return {strategy: [json.loads(text.partition("result: ")[2].splitlines()[0]) for text in both] for strategy, both in texts.items()}


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_what_torch_calls_on_the_group(found, strategy):
    for told in found[strategy]:
        assert told["gathered"] == told["again"] == [0, 0, 1, 1]
        assert told["scattered"] == told["half"] == [2, 2]
        assert told["total"] == told["future"] == [2, 2]
        assert told["is_completed"]
        assert told["object"] == {"from": 1}


def test_fsdp_trains_as_ddp_does(found):
    (whole, _), (gathered, other) = found["ddp"], found["fsdp"]
    assert other["weights"] == {}, "only rank 0 has the whole weights"
    assert gathered["weights"].keys() == whole["weights"].keys()
    for key, value in whole["weights"].items():
        torch.testing.assert_close(torch.tensor(gathered["weights"][key]), torch.tensor(value), msg=key)
