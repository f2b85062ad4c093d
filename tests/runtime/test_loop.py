"""The loop: gradients, accumulation, collectives on one process, data, saving, seeding."""

from __future__ import annotations

import collections
import dataclasses
import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import accelkit
from accelkit.runtime.data.loaders import PreparedLoader, check_split


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


# -- gradients --------------------------------------------------------------------------------------------------------


def flags(rt, model, loader):
    """Whether gradients are complete, batch by batch, without training."""
    found = []
    for _ in loader:
        with rt.accumulate(model):
            found.append(rt.sync_gradients)
    return found


def test_accumulating_equals_one_large_batch():
    torch.manual_seed(0)
    data = torch.randn(10, 4)
    model, twin = nn.Linear(4, 1), nn.Linear(4, 1)
    twin.load_state_dict(model.state_dict())
    rt = accelkit.Runtime(accelerator="cpu", gradient_accumulation_steps=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    model, optimizer, scheduler, loader = rt.prepare(model, optimizer, scheduler, DataLoader(TensorDataset(data), batch_size=2))
    synced = []
    validation = rt.prepare(DataLoader(TensorDataset(data), batch_size=5))
    assert len(list(validation)) == 2
    assert not validation.is_at_end, "a loop that is over completes nobody's steps"
    assert [flags(rt, model, loader) for _ in range(2)] == [[False, True, False, True, True]] * 2, "an epoch begins anew"
    for (batch,) in loader:
        with rt.accumulate(model):
            rt.backward(model(batch).square().mean())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            synced.append(rt.sync_gradients)
    assert synced == [False, True, False, True, True], "the last batch of an epoch completes the step"
    assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5**3

    reference = torch.optim.SGD(twin.parameters(), lr=0.1)
    for number, chunk in enumerate((data[:4], data[4:8], data[8:])):
        loss = twin(chunk).square().mean()
        (loss / 2 if number == 2 else loss).backward()
        reference.step()
        reference.zero_grad()
        reference.param_groups[0]["lr"] *= 0.5
    torch.testing.assert_close(model.weight, twin.weight)


def test_a_step_outside_accumulate_acts():
    rt = accelkit.Runtime(accelerator="cpu", gradient_accumulation_steps=4)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rt.prepare(model, optimizer)
    before = model.weight.detach().clone()
    rt.backward(model(torch.ones(1, 1)).sum())
    optimizer.step()
    assert not torch.equal(model.weight, before)
    assert isinstance(optimizer, torch.optim.SGD)
    assert rt.gradient_accumulation_steps == 4


def test_without_accumulation_backward_is_torchs_own(rt):
    rt.prepare(nn.Linear(1, 1))
    assert rt.backward is torch.Tensor.backward
    assert rt.sync_gradients
    with rt.accumulate(), rt.no_sync(nn.Linear(1, 1)):
        pass


def test_clipping(rt):
    model = rt.prepare(nn.Linear(3, 1))
    rt.backward(model(torch.full((1, 3), 10.0)).sum())
    norm = rt.clip_grad_norm_(model.parameters(), 1.0)
    torch.testing.assert_close(norm, torch.tensor(301.0).sqrt())
    torch.testing.assert_close(torch.cat([p.grad.flatten() for p in model.parameters()]).norm(), torch.tensor(1.0))
    rt.clip_grad_value_(model.parameters(), 0.1)
    assert max(p.grad.abs().max() for p in model.parameters()) <= 0.1


# -- one process ------------------------------------------------------------------------------------------------------


def test_on_one_process_the_collectives_are_the_identity(rt, capsys):
    batch = {"a": torch.ones(2), "b": [torch.zeros(1)]}
    for call in (rt.gather, rt.gather_for_metrics, rt.reduce, rt.broadcast, rt.pad_across_processes):
        assert call(batch) is batch
    assert rt.gather_for_metrics(["text"]) == ["text"]
    torch.testing.assert_close(rt.reduce(batch, scale=2.0)["a"], torch.full((2,), 2.0))
    rt.wait_for_everyone()
    assert (rt.num_processes, rt.process_index, rt.local_process_index) == (1, 0, 0)
    assert rt.is_main_process
    assert rt.is_local_main_process
    rt.print("hello", end="!")
    assert capsys.readouterr().out == "hello!"
    assert rt.on_main_process(lambda x: x + 1)(1) == 2
    with rt.main_process_first():
        pass


def test_collectives_refuse_what_they_cannot_do(rt):
    with pytest.raises(TypeError, match="gather takes nested tensors, and was given str"):
        rt.gather(["text"])
    with pytest.raises(ValueError, match="one of sum, mean, max, min, product, none"):
        rt.reduce(torch.ones(1), "median")
    with pytest.raises(ValueError, match="there are processes 0 to 0"):
        rt.broadcast(torch.ones(1), from_process=1)


# -- data -------------------------------------------------------------------------------------------------------------

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
    from accelkit.runtime.data.loaders import move

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


def test_an_indivisible_batch_cannot_be_split():
    check_split(DataLoader(range(8), batch_size=4), 2)
    with pytest.raises(accelkit.PrepareError, match="a batch of 4 cannot be split among 3 processes"):
        check_split(DataLoader(range(8), batch_size=4), 3)
    assert accelkit.Runtime(accelerator="cpu", split_batches=True).prepare(DataLoader(range(8), batch_size=3)).batch_size == 3


# -- saving -----------------------------------------------------------------------------------------------------------


def trained(tmp_path=None, **options):
    rt = accelkit.Runtime(accelerator="cpu", seed=7, **options)
    assert rt.device
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    return rt, *rt.prepare(model, optimizer, scheduler)


def step(rt, model, optimizer, scheduler):
    rt.backward(model(torch.randn(8, 4)).square().mean())
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "64-true"])
def test_three_steps_and_three_more_are_six_steps_bit_for_bit(tmp_path, precision):
    straight = trained(precision=precision)
    for _ in range(3):
        step(*straight)
    saved = straight[0].save_state(tmp_path)
    for _ in range(3):
        step(*straight)
    resumed = trained(precision=precision)
    resumed[0].load_state(saved)
    for _ in range(3):
        step(*resumed)
    for one, other in zip(straight[1].parameters(), resumed[1].parameters(), strict=True):
        assert torch.equal(one, other)
    assert straight[3].get_last_lr() == resumed[3].get_last_lr()


def test_a_compiled_model_saves_the_bare_models_keys(rt, tmp_path):
    model = rt.prepare(torch.compile(nn.Linear(2, 2), backend="eager"))
    rt.save_state(tmp_path)
    fresh = accelkit.Runtime(accelerator="cpu")
    bare = fresh.prepare(nn.Linear(2, 2))
    fresh.load_state(tmp_path)
    assert torch.equal(bare.weight, model.weight)


def test_loading_into_other_objects_is_refused(rt, tmp_path):
    rt.prepare(nn.Linear(2, 2))
    rt.save_state(tmp_path)
    with pytest.raises(accelkit.CheckpointError, match="nothing is prepared for model_0"):
        accelkit.Runtime(accelerator="cpu").load_state(tmp_path)
    other = accelkit.Runtime(accelerator="cpu")
    other.prepare(nn.Linear(3, 2))
    with pytest.raises(accelkit.CheckpointError, match="model_0 \\(Linear\\) does not take its state.*\\n.*size mismatch"):
        other.load_state(tmp_path)


def test_registered_objects_are_saved_too(rt, tmp_path):
    class Counter:
        def __init__(self):
            self.count = 0

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    counter = Counter()
    rt.register_for_checkpointing(counter)
    counter.count = 3
    rt.save_state(tmp_path)
    counter.count = 0
    rt.load_state(tmp_path)
    assert counter.count == 3
    with pytest.raises(accelkit.PrepareError, match="it has no state_dict and no load_state_dict"):
        rt.register_for_checkpointing(object())


def test_save_is_whole_or_not_at_all(rt, tmp_path):
    rt.save({"a": torch.ones(2)}, tmp_path / "file.pt")
    assert torch.load(tmp_path / "file.pt")["a"].tolist() == [1, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["file.pt"]


# -- the rest ---------------------------------------------------------------------------------------------------------


def test_a_seed_seeds_every_generator():
    import random

    import numpy

    draws = []
    for _ in range(2):
        rt = accelkit.Runtime(accelerator="cpu", seed=5)
        weights = nn.Linear(3, 3).weight.flatten().tolist()
        assert rt.device
        draws.append((weights, random.random(), numpy.random.rand(), torch.rand(9).tolist()))
    assert draws[0] == draws[1], "what is made before the first use of the device is seeded too"
    assert draws[0][0] != draws[0][3], "and the first use does not begin the sequence anew"


def test_device_stats_have_units_and_hooks_add_theirs():
    class Power:
        @accelkit.hookimpl
        def get_device_stats(self, device):
            return {"power.watts": 7.0, "threads.intraop": -1}

    stats = accelkit.Runtime(accelerator="cpu", hooks=[Power()]).device_stats()
    assert stats["memory.resident.bytes"] > 1e6
    assert stats["power.watts"] == 7.0
    assert stats["threads.intraop"] > 0, "the accelerator's own come first"


def test_the_end_of_an_outer_loop_is_not_the_end_of_the_inner_one():
    """Both loaders are prepared; the outer one is at its last batch all the while, and an evaluation may run inside."""
    rt = accelkit.Runtime(accelerator="cpu", gradient_accumulation_steps=2)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outer, inner, evaluation = (torch.utils.data.DataLoader(torch.ones(size, 1)) for size in (1, 4, 1))
    model, optimizer, outer, inner, evaluation = rt.prepare(model, optimizer, outer, inner, evaluation)
    complete = []
    for _ in outer:
        for batch in inner:
            with rt.accumulate(model):
                rt.backward(model(batch).sum())
                complete.append(rt.sync_gradients)
            for _ in evaluation:
                pass
    assert complete == [False, True, False, True]


@pytest.mark.parametrize("is_shuffled", [True, False])
def test_a_loader_goes_on_in_the_middle_of_an_epoch(tmp_path, is_shuffled):
    """On one process too: the batches that were still to come, in the order that was drawn, and the next epoch as it would have been."""

    def made():
        rt = accelkit.Runtime(accelerator="cpu")
        torch.manual_seed(3)
        return rt, rt.prepare(DataLoader(Counting(), batch_size=3, shuffle=is_shuffled))

    rt, loader = made()
    straight = [batch.tolist() for _ in range(2) for batch in loader]
    rt, loader = made()
    begun = iter(loader)
    first = [next(begun).tolist(), next(begun).tolist()]
    rt.save_state(tmp_path)
    rt, loader = made()
    rt.load_state(tmp_path)
    assert first + [batch.tolist() for _ in range(2) for batch in loader] == straight
