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
    for rank, told in enumerate(found[strategy]):
        assert told["halves"] == [[2 * rank, 2 * rank], [-2 * rank, -2 * rank]]
        assert told["gathered"] == told["again"] == [0, 0, 1, 1]
        assert told["scattered"] == told["half"] == [2, 2]
        assert told["total"] == told["future"] == [2, 2]
        assert told["is_completed"]
        assert told["object"] == {"from": 1}


COLLECTIVES = [
    *("allreduce_coalesced", "reduce", "gather", "scatter", "all_gather", "reduce_scatter"),
    *("all_to_all_single", "send and recv"),
]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_collective_has_the_result_that_gloo_has_on_the_cpu(found, name):
    for told in found["ddp"]:
        assert told["through the host"][name] == told["through gloo"][name]
    assert any(told["through gloo"][name] for told in found["ddp"])


def test_every_collective_of_the_program_is_compared(found):
    assert list(found["ddp"][0]["through gloo"]) == COLLECTIVES


def test_all_to_all_of_a_list_is_that_of_one_tensor(found):
    for told in found["ddp"]:
        assert told["all_to_all"] == told["through gloo"]["all_to_all_single"]


def test_what_is_received_is_there_only_after_the_wait(found):
    sender, receiver = found["ddp"]
    assert receiver["transfer"] == [False, True, True]
    assert sender["transfer"][1:] == [True, True]


def test_a_barrier_waits_for_the_others(found):
    assert all(told["has_waited"] for told in found["ddp"])


def test_fsdp_trains_as_ddp_does(found):
    (whole, _), (gathered, other) = found["ddp"], found["fsdp"]
    assert other["weights"] == {}, "only rank 0 has the whole weights"
    assert gathered["weights"].keys() == whole["weights"].keys()
    for key, value in whole["weights"].items():
        torch.testing.assert_close(torch.tensor(gathered["weights"][key]), torch.tensor(value), msg=key)
