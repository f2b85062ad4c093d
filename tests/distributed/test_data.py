"""Data on real processes: each gets its share, in rank 0's order, and goes on in the middle as if nothing had happened."""

from __future__ import annotations

import itertools
import json
import random

import pytest
import ranks
import torch

CASES = ("shares", "streams", "structures", "orders", "epochs", "resuming", "refused", "skipping", "device", "missing")


@pytest.fixture(scope="module", params=[pytest.param(2, marks=pytest.mark.smoke), 3])
def job(request):
    """Number of processes, and what every rank found: the cases of data_program.py."""
    texts = ranks.run("data_program.py", request.param, *CASES)
    return request.param, [json.loads(text.partition("result: ")[2].splitlines()[0]) for text in texts]


def in_rounds(of_ranks):
    """Samples in the order of the job's batches, as a gather would give them."""
    return [sample for turn in itertools.zip_longest(*of_ranks, fillvalue=()) for batch in turn for sample in batch]


def test_every_process_gets_its_share(job):
    world, found = job
    full = -(-10 // (3 * world)) * 3 * world
    cycle = [number % 10 for number in range(full)]
    for dispatch in (False, True):
        for name, wanted, remainder in (
            ("even", [*range(10), *cycle[: full - 10]], 10 % (3 * world)),
            ("uneven", [*range(10)], -1),
            ("small", [0] * 3 * world, 1),
            ("small uneven", [0], -1),
            ("empty", [], None),
        ):
            passes = [rank["shares"][f"{name} {dispatch}"] for rank in found]
            assert in_rounds([batches for batches, _ in passes]) == wanted, name
            assert {json.dumps(end) for batches, end in passes if batches} <= {json.dumps([True, remainder])}, name
    assert [rank["shares"]["workers"] for rank in found] == [rank["shares"]["even False"] for rank in found]
    split = [rank["shares"]["split"] for rank in found]
    assert in_rounds([batches for batches, _ in split]) == [*range(4 * world + 1), *range(2 * world - 1)]
    assert all(end == [True, 1] for _, end in split)
    singles = [rank["shares"]["no batches"] for rank in found]
    assert [number for turn in zip(*[batches for batches, _ in singles], strict=True) for number in turn][:5] == [*range(5)]


def test_a_stream_is_read_once_and_divided(job):
    world, found = job
    for name in ("0 None True", "0 None False", "split", "0 False True", "split shared"):
        passes = [rank["streams"][name] for rank in found]
        given_out = in_rounds([batches for batches, _ in passes])
        assert given_out[:17] == [*range(17)], name
        rest = 17 % (2 * world)
        lacking = {"0 None True": -rest % world, "split": -rest % world, "0 None False": 0}.get(name, 2 * world - rest)
        assert given_out[17:] == [*range(lacking)], "filled from the beginning"
        assert all(end == [True, rest if lacking else -1] for batches, end in passes if len(batches) == len(passes[0][0]))
    for name in ("2 None True", "2 False True"):
        passes = [batches for batches, _ in (rank["streams"][name] for rank in found)]
        given_out = in_rounds(passes)
        assert sorted(set(given_out)) == [*range(17)], "two workers: nobody's part is lost"
        assert len({tuple(map(len, batches)) for batches in passes}) == 1
    (dispatched, end), *_ = (rank["streams"]["2 None True"] for rank in found)
    assert end[1] == (17 - 2 * world * (len(dispatched) - 1) if 17 % world else -1), "of a dispatched one it is known"
    opaque = [rank["streams"]["no batches"][0] for rank in found]
    assert [number for turn in zip(*opaque, strict=True) for number in turn] == [*range(5), *range(-5 % world)]
    by_workers = in_rounds([rank["streams"]["order of workers"][0] for rank in found])
    assert sorted(set(by_workers)) == [*range(20)], "workers of all ranks shuffle alike, so that shares fit together"
    assert by_workers[:20] != [*range(20)]


def test_what_travels_arrives_as_it_was(job):
    _, found = job
    assert [rank["structures"] for rank in found] == [3] * len(found)


def test_the_order_is_that_of_rank_0_alone(job):
    """And so are rank 0's random numbers afterwards; other ranks keep their own."""
    world, found = job
    draws = {"generator": 0, "dispatched": 0, "workers": 1}  # a loader's iterator draws a seed for its workers
    for name in ("shuffle", "workers", "generator", "weighted", "python", "dispatched"):
        _, (alone, after_alone) = found[0]["orders"][name]
        for number, wanted in enumerate(alone):
            given_out = in_rounds([rank["orders"][name][0][0][number] for rank in found])
            assert given_out[:10] == [sample for batch in wanted for sample in batch], (name, number)
        assert len({json.dumps(one) for one in alone}) == 3, "another order each epoch"
        assert found[0]["orders"][name][0][1] == after_alone, name
        for rank in range(1, world):
            torch.manual_seed(100 + rank)
            for _ in range(draws.get(name, 3)):
                torch.empty((), dtype=torch.int64).random_()
            own = [torch.rand(1).item(), random.Random(100 + rank).random()]
            assert found[rank]["orders"][name][0][1] == own, (name, rank)
    assert len({rank["orders"][name] for rank in found for name in ("torch", "cpu", "torch generator")}) == 1, "unless that is asked for"


def test_epochs_are_told_and_followed(job):
    world, found = job
    for number, epoch in enumerate((0, 1, 7)):
        wanted = torch.randperm(10, generator=torch.Generator().manual_seed(3 + epoch)).tolist()
        wanted += wanted[: -10 % world]
        for rank in range(world):
            batches = found[rank]["epochs"]["sampler"][number]
            assert [sample for batch in batches for sample in batch] == wanted[rank::world], "not divided twice"
    for rank in found:
        assert rank["epochs"]["counted"] == [8, 10], "a pass that was broken off counts"
        first, _, again = rank["epochs"]["stream"]
        assert first == again
        assert rank["epochs"]["told"] == [0, 1, 0, 0]
    orders = [in_rounds([rank["epochs"]["stream"][number] for rank in found]) for number in range(2)]
    assert sorted(orders[0]) == [*range(6)]
    assert orders[0] != orders[1]


def test_a_resumed_epoch_gives_the_rest(job):
    """That it is the undisturbed one's is asserted by each rank; here: the ranks' rests, and that of one process, are the same samples."""
    world, found = job
    for name, (_, alone) in found[0]["resuming"].items():
        rests = [rank["resuming"][name][0] for rank in found]
        used = 2 * 2 * world
        given_out = in_rounds(rests)[: 25 - used]
        assert len(set(given_out)) == 25 - used, name
        if alone is not None:
            assert given_out == [sample for batch in alone for sample in batch], name


def test_what_cannot_go_on_says_why(job):
    world, found = job
    for number, rank in enumerate(found):
        by_sampler, stream, other, failed, failed_while_skipping = rank["refused"]
        assert f"on {world + 1} processes with batches of 2 cannot continue with {world} processes" in by_sampler
        assert "why: its own sampler divides it; it was at sample 4 of a process's share" in by_sampler
        assert f"what to do: resume as it was saved ({world + 1} processes with batches of 2)" in by_sampler
        assert f"a stream, saved after 14 samples, which is not a multiple of the {2 * world} that a step takes now" in stream
        why = "its order was drawn from 1 generators of its own; this one has 0"
        assert f"the saved position belongs to another loader\n  why: {why}" in other
        assert (
            failed
            == failed_while_skipping
            == (
                "rank 0 could not read the next batch\n  why: OSError: the disk is gone\n  what to do: see the log of rank 0"
                if number
                else "the disk is gone"
            )
        )


def test_whoever_does_not_come_is_named(job):
    world, found = job
    assert "the start of epoch 0 of prepared loader 0 (call " in found[0]["missing"]
    assert f"on rank 0 timed out waiting for rank {world - 1}\n" in found[0]["missing"]


def test_skipping_batches(job):
    world, found = job
    later = in_rounds([rank["skipping"][0] for rank in found])
    assert later[: 20 - 2 * world] == [*range(2 * world, 20)]
    assert in_rounds([rank["skipping"][1] for rank in found])[:20] == [*range(20)]
    length = -(-20 // (2 * world))
    assert all(rank["skipping"][2] == [length - 1, length] for rank in found)


def test_batches_on_a_device_of_its_own(job):
    _, found = job
    shares = [rank["device"][0] for rank in found]
    half = len(shares[0]) // 2
    assert in_rounds([share[:half] for share in shares]) == in_rounds([share[half:] for share in shares])
    assert in_rounds([share[:half] for share in shares])[:10] == [*range(10)]
    assert len({tuple(rank["device"][1]) for rank in found}) == 1, "the device's generator is rank 0's"
