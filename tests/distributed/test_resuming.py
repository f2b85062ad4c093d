"""An epoch that goes on with a different number of processes or a different batch size: every sample exactly once."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

import accelkit
from accelkit.runtime.data.loaders import PreparedLoader
from accelkit.runtime.data.prepare_loader import prepare_loader
from accelkit_builtin.accelerators.cpu import CPUAccelerator


class Stream(IterableDataset):
    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(range(self.length))


class Pairs:
    """A batch sampler of the user's own."""

    def __init__(self, batch_size=2):
        self.batch_size = batch_size

    def __len__(self):
        return 12 // self.batch_size

    def __iter__(self):
        return (list(range(start, start + self.batch_size)) for start in range(0, 12, self.batch_size))


def prepared(loader, num_processes, rank, *, split=False, even=True, dispatch=False):
    """A process's loader. Every generator is its own, so that processes have nothing to tell each other when an epoch begins."""
    if num_processes == 1:
        return PreparedLoader(loader, None)
    return prepare_loader(
        loader,
        device=None,
        num_processes=num_processes,
        process_index=rank,
        split_batches=split,
        even_batches=even,
        dispatch_batches=dispatch,
        rng_types=(),
        accelerator=CPUAccelerator(),
    )


class Job:
    """The loaders of all processes of a job, which has one setting of everything that may change between two runs."""

    def __init__(self, data, *, processes, batch_size, split=False, even=True, **options):
        size = batch_size * processes if split else batch_size
        order = (torch.Generator().manual_seed(7) for _ in range(processes))
        self.loaders = [
            prepared(DataLoader(data, batch_size=size, generator=next(order), **options), processes, rank, split=split, even=even)
            for rank in range(processes)
        ]

    def load(self, state):
        for loader in self.loaders:
            loader.load_state_dict(state)

    def run(self, steps=None):
        """That many steps of an epoch, or the rest of it.

        Returns:
            The samples in the job's order, without those that are repeated to fill the last step, and the state that each process saves.
        """
        samples = []
        passes = [iter(loader) for loader in self.loaders]
        for turn in itertools.count():
            if turn == steps:
                break
            batches = [next(batches, None) for batches in passes]
            remainder = self.loaders[0].remainder
            given = [sample for batch in batches if batch is not None for sample in batch.tolist()]
            samples += given if remainder == -1 else given[:remainder]
            if batches[0] is None:
                return samples, None
        return samples, self.loaders[0].state_dict()


RUNS = st.fixed_dictionaries(
    {
        "processes": st.integers(1, 4),
        "batch_size": st.integers(1, 7),
        "split": st.booleans(),
        "even": st.booleans(),
    }
)


@pytest.mark.smoke
@pytest.mark.parametrize("examples", [200, pytest.param(5_000, marks=pytest.mark.soak)])
def test_every_sample_is_read_once_however_the_job_is_divided_anew(examples):
    num_interrupted = 0

    @settings(max_examples=examples, deadline=None, database=None)
    @given(
        length=st.integers(0, 60),
        epoch=st.integers(0, 2),
        shuffle=st.booleans(),
        drop_last=st.booleans(),
        runs=st.lists(st.tuples(RUNS, st.integers(0, 5)), min_size=1, max_size=3),
        last=RUNS,
    )
    def check(*, length, epoch, shuffle, drop_last, runs, last):
        nonlocal num_interrupted
        options = {"shuffle": shuffle, "drop_last": drop_last} if length else {}
        undisturbed = Job(range(length), processes=1, batch_size=1, **options)
        for _ in range(epoch):
            undisturbed.run()
        order, _ = undisturbed.run()

        found, state = [], None
        for run, steps in [*runs, (last, None)]:
            job = Job(range(length), **run, **options)
            if state is not None:
                job.load(state)
            else:
                for _ in range(epoch):
                    job.run()
            samples, state = job.run(steps)
            found += samples
            if state is None:
                break
            num_interrupted += 1
        left_over = run["processes"] * run["batch_size"] - 1 if drop_last else 0  # by the run that came to the end
        assert found == order[: len(found)]
        assert len(order) - len(found) <= left_over
        assert {loader.epoch for loader in job.loaders} == {epoch + 1}

    check()
    assert num_interrupted > examples // 2


@pytest.mark.parametrize(
    ("before", "after"),
    [((2, 6), (1, 12)), ((1, 12), (2, 6)), ((2, 6), (3, 4)), ((2, 6), (1, 6)), ((2, 6), (4, 7))],
    ids=str,
)
def test_the_rest_of_an_epoch_after_156_of_240_samples(before, after):
    first = Job(range(240), processes=before[0], batch_size=before[1], shuffle=True)
    used, state = first.run(13)
    assert len(used) == 156
    second = Job(range(240), processes=after[0], batch_size=after[1], shuffle=True)
    second.load(state)
    rest, _ = second.run()
    assert sorted(used + rest) == list(range(240))


def test_a_stream_goes_on_where_a_step_begins(error_text):
    saved = Job(Stream(48), processes=1, batch_size=4).run(3)
    later = Job(Stream(48), processes=1, batch_size=6)
    later.load(saved[1])
    assert saved[0] + later.run()[0] == list(range(48))
    with pytest.raises(accelkit.CheckpointError, match="stream.* 12 samples.* 5 ") as caught:
        Job(Stream(48), processes=1, batch_size=5).load(saved[1])
    assert caught.value == error_text


def test_a_stream_that_workers_share_goes_on_only_as_it_was(error_text):
    saved = Job(Stream(16), processes=1, batch_size=2, num_workers=1).run(2)[1]
    Job(Stream(16), processes=1, batch_size=2, num_workers=1).load(saved)
    for change in ({"batch_size": 4}, {"num_workers": 2}, {"num_workers": 0}, {"processes": 2}):
        with pytest.raises(accelkit.CheckpointError, match="worker processes") as caught:
            Job(Stream(16), **{"processes": 1, "batch_size": 2, "num_workers": 1} | change).load(saved)
    assert caught.value == error_text


def test_a_stream_that_one_process_reads_for_all_goes_on_with_any_number_of_them():
    def loader():
        return DataLoader(Stream(16), batch_size=2, num_workers=1)

    state = prepared(loader(), 2, 0, dispatch=True).state_dict() | {"position": 4}
    for num_processes in (1, 2):
        prepared(loader(), num_processes, 0, dispatch=True).load_state_dict(state)
    with pytest.raises(accelkit.CheckpointError, match="worker processes"):
        prepared(loader(), 2, 0).load_state_dict(state)


def test_batches_of_the_users_own_sampler_are_counted_as_batches(error_text):
    def loader(size, processes=1, rank=0):
        return prepared(DataLoader(range(12), batch_sampler=Pairs(size)), processes, rank)

    passes = [iter(loader(2, 2, rank)) for rank in range(2)]
    used = [sample for batches in passes for sample in next(batches).tolist()]
    state = passes[0].gi_frame.f_locals["self"].state_dict()
    alone = loader(2)
    alone.load_state_dict(state)
    assert used + [sample for batch in alone for sample in batch.tolist()] == list(range(12))
    with pytest.raises(accelkit.CheckpointError, match="batch sampler") as caught:
        loader(3).load_state_dict(state)
    assert caught.value == error_text
    with pytest.raises(accelkit.CheckpointError, match="batch sampler"):
        prepared(DataLoader(range(12), batch_size=2), 1, 0).load_state_dict(state)


def test_a_sampler_that_divides_itself_goes_on_with_another_batch_size_only():
    def loader(size, replicas=2):
        sampler = DistributedSampler(range(24), replicas, 0, shuffle=False)
        return prepared(DataLoader(range(24), batch_size=size, sampler=sampler), replicas, 0)

    first = loader(2)
    batches = iter(first)
    used = next(batches).tolist() + next(batches).tolist()
    state = first.state_dict()
    later = loader(4)
    later.load_state_dict(state)
    assert used + [sample for batch in later for sample in batch.tolist()] == list(range(0, 24, 2))
    with pytest.raises(accelkit.CheckpointError, match="sampler"):
        loader(2, replicas=3).load_state_dict(state)
    with pytest.raises(accelkit.CheckpointError, match="sampler"):
        prepared(DataLoader(range(24), batch_size=2), 2, 0).load_state_dict(state)


def test_a_dataset_of_another_kind_or_length():
    state = Job(range(10), processes=1, batch_size=2).run(2)[1]
    with pytest.raises(accelkit.CheckpointError, match="stream"):
        Job(Stream(10), processes=1, batch_size=2).load(state)
    with pytest.warns(UserWarning, match="10 .* 12"):
        Job(range(12), processes=1, batch_size=2).load(state)


def test_a_position_in_batches_is_still_understood():
    """As it was saved before positions were counted in samples."""
    first = Job(range(10), processes=1, batch_size=2)
    used, state = first.run(2)
    older = {name: state[name] for name in ("epoch", "is_under_way", "is_told", "host", "generators", "num_processes", "step")}
    later = Job(range(10), processes=1, batch_size=2)
    with warnings.catch_warnings(action="error"):
        later.load(older | {"num_batches": 2})
    assert used + later.run()[0] == list(range(10))
