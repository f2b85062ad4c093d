"""The parts of a loader's state, each alone: how it is divided, who follows its epochs, and the generators that its order is drawn from."""

from __future__ import annotations

import contextlib
import copy
import pickle
import random

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

import accelkit
from accelkit.runtime.data.division import Division
from accelkit.runtime.data.epoch_followers import EpochFollowers
from accelkit.runtime.data.loader_state import Epochs
from accelkit.runtime.data.order_states import OrderStates
from accelkit.runtime.data.resume import LaterBatches
from accelkit.runtime.data.samplers import ShardedDataset, SharedOrder


class Stream(IterableDataset):
    name = "eight"

    def __iter__(self):
        return iter(range(8))

    def __len__(self):
        return 8


class OwnBatches(BatchSampler):
    """A user's batch sampler."""


class Following(SequentialSampler):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch


def loader(**options):
    return DataLoader(list(range(24)), **{"batch_size": 4, **options})


def own_batches():
    return DataLoader(list(range(24)), batch_sampler=OwnBatches(SequentialSampler(range(24)), 4, False))


@pytest.mark.parametrize(
    ("given", "stride", "is_stream"),
    [(loader(), 12, False), (own_batches(), 3, False), (DataLoader(Stream(), batch_size=2), 6, True)],
)
def test_a_step_advances_by_the_samples_of_all_processes(given, stride, is_stream):
    division = Division(given, num_processes=3, step=3)
    assert (division.stride, division.is_stream) == (stride, is_stream)


def saved(division, position):
    return {**division.description(), "position": position}


def test_a_position_in_samples_survives_another_batch_size():
    assert Division(loader(batch_size=3)).checked_position(saved(Division(loader()), 8)) == 8


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (Division(own_batches()), Division(loader())),
        (Division(DataLoader(Stream(), batch_size=4)), Division(loader())),
        (Division(loader(), num_processes=2, is_shared=True), Division(loader())),
        (Division(DataLoader(Stream(), batch_size=4)), Division(DataLoader(Stream(), batch_size=3))),
    ],
    ids=["batch sampler", "stream", "shared", "stream's batches"],
)
def test_a_position_that_means_something_else_now_is_refused(before, now):
    assert now.checked_position(saved(before, 0)) == 0
    with pytest.raises(accelkit.CheckpointError):
        now.checked_position(saved(before, 8))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_what_divides_or_shortens_a_stream_can_be_copied_and_passes_attributes_and_length_on(copied):
    stream = Stream()
    later = copied(LaterBatches(DataLoader(stream, batch_size=3), 1))
    assert (later.batch_size, len(later), [batch.tolist() for batch in later]) == (3, 2, [[3, 4, 5], [6, 7]])
    assert [batch.tolist() for batch in later.starting_at(0, 1)] == [[6, 7]]
    share = copied(ShardedDataset(stream, num_processes=2, process_index=1, share=3))
    assert (share.name, len(share), list(share)) == ("eight", 6, [3, 4, 5, 1, 2, 3])
    order = copied(SharedOrder(BatchSampler(SequentialSampler(range(8)), 3, False), contextlib.nullcontext))
    assert (order.batch_size, len(order), list(order)) == (3, 3, [[0, 1, 2], [3, 4, 5], [6, 7]])


def test_followers_are_told_and_the_users_epoch_is_noticed():
    sampler = Following(range(24))
    followers = EpochFollowers(loader(sampler=sampler), is_active=True)
    assert followers.epoch_of_user() is None
    followers.set_epoch(3)
    assert (sampler.epoch, followers.epoch_of_user()) == (3, None)
    sampler.set_epoch(7)
    assert followers.epoch_of_user() == 7


def test_a_resumed_order_is_drawn_from_the_saved_states_and_leaves_no_trace():
    division = Division(loader(sampler=RandomSampler(range(24))))
    first = OrderStates(division)
    first.begin(0, has_workers=True)
    with first.drawing(is_resumed=False):
        order = torch.randperm(24).tolist()
    later = OrderStates(division)
    later.load_state_dict(first.state_dict(), is_active=True)
    later.resume()
    before = torch.get_rng_state(), random.getstate()
    with later.drawing(is_resumed=True):
        assert torch.randperm(24).tolist() == order
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_states_of_a_loader_with_other_generators_are_refused():
    with pytest.raises(accelkit.CheckpointError):
        OrderStates(Division(loader())).check({"generators": [torch.Generator().get_state()]})


def test_an_interrupted_pass_counts_and_a_loaded_one_goes_on():
    epochs = Epochs(Division(loader()))
    epochs.begin()
    epochs.position += 8
    state = epochs.state_dict()
    epochs.begin()
    assert (epochs.epoch, epochs.position, epochs.is_resumed) == (1, 0, False)
    epochs.load_state_dict(state)
    assert epochs.begin() == 8
    assert (epochs.epoch, epochs.is_resumed) == (0, True)
    epochs.finish()
    assert (epochs.epoch, epochs.position, epochs.is_resumed) == (1, 0, False)
