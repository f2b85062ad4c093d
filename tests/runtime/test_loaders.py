"""Data on one process: batches move, loaders know their end, batches are skipped."""

from __future__ import annotations

import collections
import dataclasses
import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import accelkit
from accelkit.runtime.data.loaders import PreparedLoader
from accelkit.runtime.data.prepare_loader import check_split
from accelkit_builtin.strategies.single_device import SingleDeviceStrategy


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))


class Counting(Dataset):
    read: list = []  # noqa: RUF012 # what was read, across the loader

    def __len__(self):
        return 10

    def __getitem__(self, index):
        self.read.append(index)
        return index


Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass(frozen=True)
class Sample:
    pixels: torch.Tensor
    label: str


class Encoded(collections.UserDict):
    """As tokenizers return: a mapping with a ``to`` of nobody's, and attributes of its own."""


def test_batches_of_any_nesting_move(rt):
    meta = torch.device("meta")
    batch = {
        "list": [torch.ones(1), "text", 3],
        "named": Point(torch.ones(2), None),
        "data": Sample(torch.ones(3), "seven"),
        "default": collections.defaultdict(list, a=torch.ones(1)),
        "user": Encoded(ids=torch.ones(4)),
        "object": nn.utils.rnn.pack_sequence([torch.ones(2)]),
    }
    from accelkit.runtime.data.device_transfer import move

    moved = move(batch, meta)
    assert moved["list"][0].is_meta
    assert moved["list"][1:] == ["text", 3]
    assert type(moved["named"]) is Point
    assert moved["named"].x.is_meta
    assert moved["data"].pixels.is_meta
    assert moved["data"].label == "seven"
    assert moved["default"].default_factory is list
    assert type(moved["user"]) is Encoded
    assert moved["user"]["ids"].is_meta
    assert moved["object"].data.is_meta
    assert not batch["data"].pixels.is_meta, "the original is untouched"
    assert rt.to_device(batch) is not None


def test_a_prepared_loader_is_the_loader_with_batches_elsewhere():
    loader = DataLoader(TensorDataset(torch.arange(10.0)), batch_size=4)
    prepared = PreparedLoader(loader, torch.device("meta"))
    ends = []
    for (batch,) in prepared:
        assert batch.is_meta
        ends.append(prepared.is_at_end)
    assert ends == [False, False, True]
    assert (len(prepared), prepared.batch_size, prepared.dataset) == (3, 4, loader.dataset)
    assert len(list(PreparedLoader(DataLoader([]), None))) == 0
    assert pickle.loads(pickle.dumps(prepared)).batch_size == 4


def test_skipping_batches_reads_no_skipped_sample(rt):
    Counting.read.clear()
    skipped = rt.skip_first_batches(DataLoader(Counting(), batch_size=3), 2)
    assert [batch.tolist() for batch in skipped] == [[6, 7, 8], [9]]
    assert Counting.read == [6, 7, 8, 9]
    assert len(skipped) == 2
    streamed = rt.skip_first_batches(DataLoader(Stream(), batch_size=3), 3)
    assert [batch.tolist() for batch in streamed] == [[9]]
    prepared = PreparedLoader(DataLoader(Counting(), batch_size=5), torch.device("meta"))
    assert len(rt.skip_first_batches(prepared, 1)) == 1


def test_an_indivisible_batch_cannot_be_split(error_text):
    check_split(DataLoader(range(8), batch_size=4), 2)
    with pytest.raises(accelkit.PrepareError) as caught:
        check_split(DataLoader(range(8), batch_size=4), 3)
    assert "batch of 4" in caught.value.what
    assert "3 processes" in caught.value.what
    assert "split_batches=False" in caught.value.hint
    assert caught.value == error_text
    assert accelkit.Runtime(accelerator="cpu", split_batches=True).prepare(DataLoader(range(8), batch_size=3)).batch_size == 3


@pytest.mark.parametrize("is_shuffled", [True, False])
def test_a_loader_goes_on_in_the_middle_of_an_epoch(tmp_path, is_shuffled):
    """On one process too: the batches that were still to come, in the order that was drawn, and the next epoch as it would have been."""

    def made():
        rt = accelkit.Runtime(accelerator="cpu")
        torch.manual_seed(3)
        _, loader = rt.prepare(torch.nn.Linear(1, 1), DataLoader(Counting(), batch_size=3, shuffle=is_shuffled))
        return rt, loader

    rt, loader = made()
    straight = [batch.tolist() for _ in range(2) for batch in loader]
    rt, loader = made()
    begun = iter(loader)
    first = [next(begun).tolist(), next(begun).tolist()]
    rt.save_state(tmp_path)
    rt, loader = made()
    rt.load_state(tmp_path)
    assert first + [batch.tolist() for _ in range(2) for batch in loader] == straight


def test_a_strategy_that_counts_its_batches_leaves_them_as_they_are():
    class Counted(SingleDeviceStrategy):
        batches = 0

        def place_batch(self, batch):
            self.batches += 1
            return super().place_batch(batch)

    strategy = Counted()
    rt = accelkit.Runtime("cpu", strategy=strategy)
    loader = rt.prepare(DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2))
    assert [batch[0].tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
    assert strategy.batches == 3
