"""Shares without processes: every sample once, equally many batches, the order that Accelerate gives them."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, Sampler, SequentialSampler, TensorDataset

import accelkit
from accelkit.runtime.data.loaders import PreparedLoader
from accelkit.runtime.data.prepare_loader import prepare_loader
from accelkit.runtime.data.rebatching import count, rounds
from accelkit.runtime.data.samplers import ShardedBatches, ShardedDataset
from accelkit_builtin.accelerators.cpu import CPUAccelerator

LENGTHS, SIZES, WORLDS = st.integers(0, 40), st.integers(1, 6), st.integers(1, 5)


class Stream(IterableDataset):
    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(range(self.length))

    def __len__(self):
        return self.length


class Batches:
    """A batch sampler of the user's own."""

    def __init__(self, *batches, batch_size=None):
        self.batches = batches
        if batch_size:
            self.batch_size = batch_size

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


def batches(length, size, drop_last=False):
    return BatchSampler(SequentialSampler(range(length)), size, drop_last)


def shares(source, world, **options):
    return [list(ShardedBatches(source, world, rank, **options)) for rank in range(world)]


def test_a_short_batch_is_dropped_if_the_users_sampler_says_so():
    source = Batches([0, 1, 2, 3], [4, 5], batch_size=4)
    assert shares(source, 2, split_batches=True) == [[[0, 1], [4, 5]], [[2, 3], [0, 1]]]
    source.drop_last = True
    assert shares(source, 2, split_batches=True) == [[[0, 1]], [[2, 3]]]


def in_rounds(of_ranks):
    """Samples in the order of the job's batches, as a gather would give them."""
    return [sample for turn in itertools.zip_longest(*of_ranks, fillvalue=()) for batch in turn for sample in batch]


# What accelerate 1.14's BatchSamplerShard gives dataset length, batch size, processes, drop_last, split_batches, even_batches.
RECORDED = {
    (10, 3, 2, False, False, True): [[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 0, 1]]],
    (7, 2, 3, False, False, True): [[[0, 1], [6, 0]], [[2, 3], [1, 2]], [[4, 5], [3, 4]]],
    (7, 2, 3, False, False, False): [[[0, 1], [6]], [[2, 3]], [[4, 5]]],
    (7, 2, 3, True, False, True): [[[0, 1]], [[2, 3]], [[4, 5]]],
    (1, 2, 3, False, False, True): [[[0, 0]], [[0, 0]], [[0, 0]]],
    (10, 4, 2, False, True, True): [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [0, 1]]],
    (9, 4, 2, False, True, False): [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7]]],
    (3, 8, 2, False, True, True): [[[0, 1, 2, 0]], [[1, 2, 0, 1]]],
    (0, 2, 2, False, False, True): [[], []],
}


@pytest.mark.parametrize("case", RECORDED)
def test_order_and_filling_are_accelerates(case):
    length, size, world, drop_last, split_batches, even_batches = case
    assert shares(batches(length, size, drop_last), world, split_batches=split_batches, even_batches=even_batches) == RECORDED[case]


@settings(deadline=None)  # the machine may be busy
@given(length=LENGTHS, size=SIZES, world=WORLDS, drop_last=st.booleans(), split_batches=st.booleans(), even_batches=st.booleans())
def test_every_sample_once_then_filling(*, length, size, world, drop_last, split_batches, even_batches):
    size *= world if split_batches else 1
    samplers = [
        ShardedBatches(batches(length, size, drop_last), world, rank, split_batches=split_batches, even_batches=even_batches)
        for rank in range(world)
    ]
    of_ranks = [list(sampler) for sampler in samplers]
    given_out = in_rounds(of_ranks)
    whole = length - length % (size if split_batches else size * world) if drop_last else length
    assert given_out[:whole] == list(range(whole)), "each once, and in their order"
    assert {sampler.remainder for sampler in samplers} == {samplers[0].remainder}
    if even_batches or drop_last:
        assert {len(batch) for share in of_ranks for batch in share} <= {size // world if split_batches else size}
        assert len(set(map(len, of_ranks))) == 1
    if not even_batches or drop_last:
        assert len(given_out) == whole, "nothing twice"
    if samplers[0].remainder > 0:
        last = sum(len(share[-1]) for share in of_ranks)
        assert len(given_out) - last + samplers[0].remainder == length, "what is no repetition comes first"
    else:
        assert len(given_out) == whole
    assert [len(sampler) for sampler in samplers] == [len(share) for share in of_ranks]
    everybody = ShardedBatches(batches(length, size, drop_last), world, None, split_batches=split_batches, even_batches=even_batches)
    assert len(everybody) == len(list(everybody))
    assert [sample for batch in everybody for sample in batch] == given_out, "rank 0 reads the same for all"


@settings(deadline=None)  # the machine may be busy
@given(length=LENGTHS, size=SIZES, world=WORLDS, other=WORLDS, split_batches=st.booleans(), steps=st.integers(0, 8))
def test_resuming_on_another_number_of_processes_gives_the_rest(*, length, size, world, other, split_batches, steps):
    size *= world * other if split_batches else 1
    before = [ShardedBatches(batches(length, size), world, rank, split_batches=split_batches) for rank in range(world)]
    used = in_rounds([list(itertools.islice(sampler, steps)) for sampler in before])[:length]
    first = steps * (1 if split_batches else world) * size
    rest = in_rounds(
        [list(ShardedBatches(batches(length, size), other, rank, split_batches=split_batches).starting_at(first)) for rank in range(other)]
    )
    assert (used + rest)[:length] == list(range(length))


def test_batches_of_any_kind_of_sampler():
    uneven = Batches([0, 1, 2], [3], [4, 5], [6, 7], [8])
    assert shares(uneven, 2) == [[[0, 1, 2], [4, 5], [8]], [[3], [6, 7], [0, 1, 2]]], "of unknown size: repeated whole"
    named = Batches([0, 1], [2, 3, 4], [5], [6], batch_size=3)
    assert shares(named, 2) == [[[0, 1], [5, 0, 1]], [[2, 3, 4], [6, 2, 3]]], "a short batch in the middle is lost to nobody"
    keys = SequentialSampler(range(5))
    assert shares(keys, 2, holds_lists=False) == [[0, 2, 4], [1, 3, 0]]
    sampler = ShardedBatches(keys, 2, 0, holds_lists=False)
    assert (len(list(sampler)), len(sampler), sampler.remainder) == (3, 3, -1)
    short = Batches([0, 1, 2, 3], [4], [5, 6, 7, 8], batch_size=4)
    assert shares(short, 2, split_batches=True) == [[[0, 1], [4], [5, 6]], [[2, 3], [0], [7, 8]]]
    assert shares(short, 2, split_batches=True, even_batches=False) == [[[0, 1], [4], [5, 6]], [[2, 3], [7, 8]]]


def test_no_process_gets_an_empty_piece_of_a_last_batch_of_unknown_size():
    source = Batches([0, 1, 2, 3], [4])
    sampler = ShardedBatches(source, 2, 0, split_batches=True)
    assert (list(sampler), sampler.remainder) == ([[0, 1], [4]], 1)
    assert shares(source, 2, split_batches=True) == [[[0, 1], [4]], [[2, 3], [0]]]
    assert shares(source, 2, split_batches=True, even_batches=False) == [[[0, 1], [4]], [[2, 3]]]


@settings(deadline=None)  # the machine may be busy
@given(LENGTHS, SIZES, WORLDS, st.booleans(), st.booleans())
def test_a_stream_is_shared_as_batches_are(length, size, world, drop_last, even_batches):
    datasets = [ShardedDataset(Stream(length), world, rank, size, even_batches=even_batches, drop_last=drop_last) for rank in range(world)]
    of_ranks = [list(dataset) for dataset in datasets]
    in_batches = [chunks(share, size) for share in of_ranks]
    given_out = in_rounds(in_batches)
    whole = length - length % (size * world) if drop_last else length
    assert given_out[:whole] == list(range(whole))
    assert [len(dataset) for dataset in datasets] == [len(share) for share in of_ranks]
    if even_batches or drop_last:
        assert len(set(map(len, of_ranks))) == 1
        assert given_out[whole:] == [number % min(length, size * world) for number in range(len(given_out) - whole)], "from the beginning"
        assert datasets[0].remainder == (length % (size * world) or -1 if not drop_last else -1)
    else:
        assert len(given_out) == length


def chunks(items, size):
    return [items[start : start + size] for start in range(0, len(items), size)]


@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.integers(1, 4), max_size=20), st.integers(1, 4), WORLDS, st.booleans(), st.booleans())
def test_a_stream_of_short_batches_is_cut_anew(sizes, share, world, drop_last, even_batches):
    """As of several workers, each of which ends with a short batch."""
    sizes = [share, *(min(size, share) for size in sizes)]
    total = sum(sizes)
    numbers = torch.arange(total).split(sizes)
    made = [{"x": part, "name": [str(number) for number in part.tolist()], "scale": torch.tensor(2.0)} for part in numbers]
    found = list(rounds(made, world, share, even_batches=even_batches, drop_last=drop_last))
    flat = torch.cat([torch.empty(0, dtype=torch.int64), *(batch["x"] for turn, _ in found for batch in turn)]).tolist()
    whole = total - total % (share * world) if drop_last else total
    assert flat[:whole] == list(range(whole))
    assert flat[whole:] == [number % total for number in range(len(flat) - whole)], "filled from the beginning"
    for turn, _ in found[:-1]:
        assert [count(batch) for batch in turn] == [share] * world
    for turn, remainder in found[-1:]:
        assert not even_batches or len({count(batch) for batch in turn}) == 1
        assert remainder == (-1 if len(flat) == whole else total % (share * world))
        assert even_batches or len(flat) == whole
    for turn, _ in found:
        for batch in turn:
            assert batch["name"] == [str(number) for number in batch["x"].tolist()]
            assert batch["scale"].item() == 2.0


def test_one_sample_fills_the_only_round_of_many_processes():
    ((shares, remainder),) = rounds([torch.tensor([7])], 5, 1, even_batches=True, drop_last=False)
    assert ([share.tolist() for share in shares], remainder) == ([[7]] * 5, 1)


def test_batches_that_cannot_be_cut_are_given_whole(error_text):
    ragged = [[torch.zeros(3), torch.zeros(2)], [torch.zeros(1), torch.zeros(5)], [torch.ones(1), torch.zeros(2)]]
    ((first, second), _), (last, remainder) = rounds(ragged, 2, 2, even_batches=True, drop_last=False)
    assert [first, second, *last] == [*ragged, ragged[0]]
    assert remainder == -1
    assert len(list(rounds(ragged, 2, 2, even_batches=True, drop_last=True))) == 1
    by_sample = [[torch.zeros(3), torch.ones(3)] for _ in range(4)]  # two samples of three numbers each, not three of two
    assert [turn for turn, _ in rounds(by_sample, 2, 2, even_batches=True, drop_last=False)] == [by_sample[:2], by_sample[2:]]
    mixed = [torch.zeros(2), torch.zeros(2), torch.zeros(())]
    with pytest.raises(accelkit.PrepareError, match="dispatch_batches=False") as caught:
        list(rounds(mixed, 1, 2, even_batches=True, drop_last=False))
    assert caught.value == error_text


def test_batches_with_different_fields_are_refused(error_text):
    made = [{"x": torch.zeros(2)}, {"x": torch.zeros(1)}, {"x": torch.zeros(3), "y": torch.zeros(3)}]
    with pytest.raises(accelkit.PrepareError, match="dispatch_batches=False") as caught:
        list(rounds(made, 2, 2, even_batches=True, drop_last=False))
    assert caught.value == error_text


def prepared(loader, **options):
    """On two processes, of which nobody asks the other anything as long as no epoch begins."""
    defaults = {"split_batches": False, "even_batches": True, "dispatch_batches": None, "rng_types": ("generator",)}
    made = {"device": None, "num_processes": 2, "process_index": 0, "accelerator": CPUAccelerator()}
    return prepare_loader(loader, **made | defaults | options)


def test_what_cannot_be_divided_is_refused(error_text):
    loader = DataLoader(range(8), batch_size=3)
    with pytest.raises(accelkit.PrepareError, match="batch of 3 .*2 processes") as caught:
        prepared(loader, split_batches=True)
    assert caught.value == error_text
    with pytest.raises(accelkit.PrepareError, match="split_batches") as caught:
        prepared(DataLoader(range(8), batch_sampler=Batches([0, 1])), split_batches=True)
    assert caught.value == error_text
    own = DataLoader(range(8), sampler=DistributedSampler(range(8), 2, 0))
    for option in ("split_batches", "dispatch_batches"):
        with pytest.raises(accelkit.PrepareError, match=r"DistributedSampler") as caught:
            prepared(own, **{option: True})
        assert option in caught.value.what
        assert caught.value == error_text


def test_lengths_and_sizes():
    data = TensorDataset(torch.arange(10))
    assert (len(prepared(DataLoader(data, batch_size=3))), prepared(DataLoader(data, batch_size=3)).total_batch_size) == (2, 6)
    split = prepared(DataLoader(data, batch_size=4), split_batches=True)
    assert (len(split), split.total_batch_size) == (3, 4)
    own = prepared(DataLoader(data, batch_size=2, sampler=DistributedSampler(data, 2, 0)))
    assert (len(own), own.total_batch_size, own.loader.sampler.num_replicas) == (3, 4, 2)
    dispatched = prepared(DataLoader(data, batch_size=3), dispatch_batches=True)
    assert (len(dispatched), dispatched.total_batch_size, dispatched.batch_size) == (2, 6, 3)
    for stream_of, lengths in ((10, (2, 1)), (12, (2, 2))):
        stream = DataLoader(Stream(stream_of), batch_size=3)
        dropping = DataLoader(Stream(stream_of), batch_size=3, drop_last=True)
        for dispatch in (None, False):
            found = [len(prepared(loader, dispatch_batches=dispatch)) for loader in (stream, dropping)]
            assert tuple(found) == lengths
    assert prepared(DataLoader(data, batch_size=None)).total_batch_size is None
    with pytest.raises(TypeError, match="has no len"):
        len(prepared(DataLoader(Endless(), batch_size=2), dispatch_batches=False))


class Endless(IterableDataset):
    def __iter__(self):
        return itertools.count()


class Shuffled(Sampler):
    """Draws from Python's generator, and is told epochs."""

    def __init__(self):
        self.told = []

    def set_epoch(self, epoch):
        self.told.append(epoch)

    def __len__(self):
        return 10

    def __iter__(self):
        return iter(random.sample(range(10), 10))


@pytest.mark.parametrize(
    "options", [{"shuffle": True}, {"sampler": Shuffled()}, {"shuffle": True, "batch_size": None}], ids=["shuffle", "sampler", "samples"]
)
def test_one_process_goes_on_in_the_middle_too(options):
    def make():
        return PreparedLoader(DataLoader(range(10), **{"batch_size": 2} | options), None)

    loader, state, rest = make(), {}, []
    for epoch in range(2):
        for number, batch in enumerate(loader):
            if epoch == 1 and number == 2:
                state = loader.state_dict()
            elif state:
                rest.append(batch.tolist() if isinstance(batch, torch.Tensor) else batch)
    resumed = make()
    resumed.load_state_dict(state)
    drawn = torch.get_rng_state(), random.getstate()
    assert [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in resumed] == rest
    assert torch.equal(torch.get_rng_state(), drawn[0]), "what training draws is what its checkpoint says"
    assert random.getstate() == drawn[1]
    assert (resumed.epoch, loader.epoch) == (2, 2)


def test_one_process_tells_epochs_only_when_asked_to():
    sampler = Shuffled()
    loader = PreparedLoader(DataLoader(range(10), sampler=sampler), None)
    list(loader)
    assert sampler.told == []
    loader.set_epoch(4)
    list(loader)
    list(loader)
    assert (sampler.told, loader.epoch) == ([4, 4, 5], 6)
    resumed = PreparedLoader(DataLoader(range(10), sampler=sampler), None)
    resumed.load_state_dict(loader.state_dict())
    list(resumed)
    assert sampler.told[3:] == [6], "between two epochs too"
