"""What each rank does in test_data.py: each case is a function below that returns what the test looks at, printed as one line of JSON."""

from __future__ import annotations

import contextlib
import copy
import datetime
import json
import os
import random
import sys
import time
import warnings

import torch
import torch.distributed as dist
from accelkit_fake_xpu.accelerator import FakeXPUAccelerator
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Sampler, WeightedRandomSampler, get_worker_info

import accelkit
from accelkit import thread_shutdown
from accelkit.runtime.data.loaders import PreparedLoader, skip_batches
from accelkit.runtime.data.prepare_loader import prepare_loader
from accelkit_builtin.accelerators.cpu import CPUAccelerator

warnings.simplefilter("error", UserWarning)
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Numbers(Dataset):
    """0, 1, ...; notes what was read."""

    def __init__(self, length):
        self.length, self.read = length, []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.read.append(index)
        return index


class Stream(IterableDataset):
    """Its workers divide it among themselves, as torch asks of it. Tells the epoch that it was told."""

    def __init__(self, length, shuffles=False):
        self.length, self.shuffles, self.epoch, self.told = length, shuffles, 0, []

    def set_epoch(self, epoch):
        self.epoch = epoch
        self.told.append(epoch)

    def __iter__(self):
        worker = get_worker_info()
        numbers = list(range(self.length))
        if self.shuffles:
            numbers = [numbers[index] for index in torch.randperm(self.length, generator=self.generator())]
        return iter(numbers[worker.id :: worker.num_workers] if worker else numbers)

    def generator(self):
        return torch.Generator().manual_seed(self.epoch)


class WorkersOrder(IterableDataset):
    """Each worker shuffles its part with what torch seeded it with."""

    def __iter__(self):
        worker = get_worker_info()
        part = list(range(20))[worker.id :: worker.num_workers]
        return iter([part[index] for index in torch.randperm(len(part))])


class Failing(IterableDataset):
    def __iter__(self):
        yield from range(4)
        raise OSError("the disk is gone")


class PythonsOrder(Sampler):
    """Shuffles with Python's generator."""

    def __len__(self):
        return 10

    def __iter__(self):
        return iter(random.sample(range(10), 10))


def prepared(loader, **options):
    defaults = {"split_batches": False, "even_batches": True, "dispatch_batches": None, "rng_types": ("generator",)}
    made = {"device": None, "num_processes": WORLD, "process_index": RANK, "accelerator": CPUAccelerator()}
    return prepare_loader(loader, **made | defaults | options)


def passed(loader):
    """One epoch: its batches, and at the last one whether it is known as such, and how many of its samples are real."""
    batches, end = [], None
    for batch in loader:
        batches.append(batch.tolist() if isinstance(batch, torch.Tensor) else batch)
        end = [loader.is_at_end, loader.remainder]
        assert loader.is_at_end or loader.remainder == -1
    return batches, end


def seeded(number):
    torch.manual_seed(number)
    random.seed(number)


def shares():
    found = {}
    for name, length, options in (
        ("even", 10, {}),
        ("uneven", 10, {"even_batches": False}),
        ("small", 1, {}),
        ("small uneven", 1, {"even_batches": False}),
        ("empty", 0, {}),
    ):
        for dispatch in (False, True):
            loader = DataLoader(Numbers(length), batch_size=3, sampler=range(length))
            found[f"{name} {dispatch}"] = passed(prepared(loader, dispatch_batches=dispatch, **options))
    size = 2 * WORLD
    found["split"] = passed(prepared(DataLoader(Numbers(2 * size + 1), batch_size=size), split_batches=True))
    found["no batches"] = passed(prepared(DataLoader(Numbers(5), batch_size=None)))
    found["workers"] = passed(prepared(DataLoader(Numbers(10), batch_size=3, num_workers=2)))
    return found


def streams():
    found = {}
    for length, workers, dispatch, even in (
        (17, 0, None, True),
        (17, 2, None, True),
        (17, 0, False, True),
        (17, 2, False, True),
        (17, 0, None, False),
    ):
        loader = DataLoader(Stream(length), batch_size=2, num_workers=workers)
        found[f"{workers} {dispatch} {even}"] = passed(prepared(loader, dispatch_batches=dispatch, even_batches=even))
    split = DataLoader(Stream(17), batch_size=2 * WORLD, num_workers=0)
    found["split"] = passed(prepared(split, split_batches=True))
    found["split shared"] = passed(prepared(split, split_batches=True, dispatch_batches=False))
    found["no batches"] = passed(prepared(DataLoader(Stream(5), batch_size=None)))
    seeded(RANK)
    found["order of workers"] = passed(prepared(DataLoader(WorkersOrder(), batch_size=2, num_workers=2), dispatch_batches=False))
    return found


def structures():
    """What travels from rank 0 arrives as it was, of any dtype."""

    def collate(numbers):
        column = torch.tensor(numbers)
        kinds = (torch.bfloat16, torch.bool, torch.complex64, torch.uint16, torch.float8_e4m3fn)
        strided = torch.stack([column, column], 1)[:, 0]
        return {
            "n": column,
            "kinds": [column.to(kind) for kind in kinds],
            "name": list(map(str, numbers)),
            "t": (strided, torch.tensor(7), 0.5),
        }

    checked = 0
    for batch in prepared(DataLoader(Stream(4 * WORLD + 1), batch_size=2, collate_fn=collate)):
        wanted = collate(batch["n"].tolist())
        assert str(batch) == str(wanted), (batch, wanted)
        checked += 1
    return checked


def orders():
    """What the job draws, and what a process alone draws that is seeded as rank 0 is; then each one's next random numbers."""
    makers = {
        "shuffle": lambda _: DataLoader(Numbers(10), batch_size=2, shuffle=True),
        "workers": lambda _: DataLoader(Numbers(10), batch_size=2, shuffle=True, num_workers=1, persistent_workers=True),
        "generator": lambda own: DataLoader(Numbers(10), batch_size=2, shuffle=True, generator=own),
        "weighted": lambda _: DataLoader(Numbers(10), batch_size=2, sampler=WeightedRandomSampler(torch.ones(10), 10, replacement=False)),
        "python": lambda _: DataLoader(Numbers(10), batch_size=2, sampler=PythonsOrder()),
        "dispatched": lambda _: DataLoader(Numbers(10), batch_size=2, shuffle=True),
    }
    found = {}
    for name, make in makers.items():
        found[name] = []
        for loader, number in (
            (prepared(make(torch.Generator().manual_seed(RANK)), dispatch_batches=name == "dispatched"), 100 + RANK),
            (make(torch.Generator().manual_seed(0)), 100),
        ):
            seeded(number)
            passes = [[batch.tolist() for batch in loader] for _ in range(3)]
            found[name].append([passes, [torch.rand(1).item(), random.random()]])
    for name in ("torch", "cpu", "torch generator"):
        seeded(100 + RANK)
        passed(prepared(makers["shuffle"](None), rng_types=name.split()))
        found[name] = torch.rand(1).item()
    return found


def epochs():
    """Who can be told the epoch is told; who was told by the user is followed."""
    found = {}
    data = Numbers(10)
    sampler = DistributedSampler(data, WORLD, RANK, seed=3)
    loader = prepared(DataLoader(data, batch_size=2, sampler=sampler))
    found["sampler"] = [passed(loader)[0] for _ in range(2)]
    sampler.set_epoch(7)
    found["sampler"].append(passed(loader)[0])
    found["counted"] = [loader.epoch]
    for _ in loader:
        break
    passed(loader)
    found["counted"].append(loader.epoch)
    stream = Stream(6, shuffles=True)
    shuffled = prepared(DataLoader(stream, batch_size=1), dispatch_batches=False)
    found["stream"] = [passed(shuffled)[0] for _ in range(2)]
    shuffled.set_epoch(0)
    found["stream"].append(passed(shuffled)[0])
    found["told"] = stream.told
    return found


def resuming():
    """From the middle of the second epoch, on this number of processes and on one, the rest is what the undisturbed loader gives."""
    found = {}
    for name, options, make in (
        ("shuffle", {}, lambda data: DataLoader(data, batch_size=2, shuffle=True)),
        ("generator", {}, lambda data: DataLoader(data, batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(5))),
        ("split", {"split_batches": True}, lambda data: DataLoader(data, batch_size=2 * WORLD, shuffle=True)),
        ("workers", {}, lambda data: DataLoader(data, batch_size=2, shuffle=True, num_workers=1)),
        ("dispatched", {"dispatch_batches": True}, lambda data: DataLoader(data, batch_size=2, shuffle=True)),
        ("stream", {}, lambda data: DataLoader(Stream(25, shuffles=True), batch_size=2)),
        ("shared stream", {"dispatch_batches": False}, lambda data: DataLoader(Stream(25, shuffles=True), batch_size=2, num_workers=2)),
    ):
        seeded(RANK)
        loader = prepared(make(Numbers(25)), **options)
        passed(loader)
        state, rest = None, []
        for number, batch in enumerate(loader):
            if number == 1:
                state, drawn = copy.deepcopy(loader.state_dict()), torch.get_rng_state()
            elif number > 1:
                rest.append(batch.tolist())
        after = passed(loader)[0] if "generator" in name else None

        data = Numbers(25)
        resumed = prepared(make(data), **options)
        resumed.load_state_dict(state)
        assert resumed.state_dict()["position"] == state["position"]
        resumed.set_epoch(1)  # as a loop over epochs may
        if name == "generator":
            torch.rand(1, generator=resumed.generator)  # as another loader may that has the same
        torch.set_rng_state(drawn)
        again, num_read = passed(resumed)[0], len(data.read)
        if name in ("shuffle", "generator", "split") or (name == "dispatched" and RANK == 0):
            readers = WORLD if name == "dispatched" else 1
            assert num_read == readers * sum(map(len, rest)), "what was used is not read again"
        assert again == rest, (name, again, rest)
        assert torch.equal(torch.get_rng_state(), drawn), "resuming draws nothing"
        assert resumed.epoch == 2
        assert after is None or passed(resumed)[0] == after

        alone = PreparedLoader(make(Numbers(25)), None)
        if name == "shared stream":  # its order depends on how processes and workers share it
            with contextlib.suppress(accelkit.CheckpointError):
                alone.load_state_dict(state)
                raise AssertionError("it cannot go on alone")
            found[name] = [rest, None]
        else:
            alone.load_state_dict(state)
            found[name] = [rest, passed(alone)[0]]
        fresh = prepared(make(Numbers(25)), **options)
        fresh.load_state_dict(state)
        fresh.set_epoch(4)
        assert len(passed(fresh)[0]) == len(rest) + 2, "another epoch than the saved one begins at its start"
    return found


def refused():
    """A position that cannot be gone on from, and a reader that fails."""
    found = []
    sampler = DistributedSampler(range(10), WORLD, RANK)
    for loader, other in (
        (DataLoader(range(10), batch_size=2, sampler=sampler), {"num_processes": WORLD + 1, "position": 4}),
        (DataLoader(Stream(9), batch_size=2), {"num_processes": 7, "step": 7, "position": 14}),
        (DataLoader(range(10), batch_size=2), {"generators": [torch.get_rng_state()]}),
    ):
        shared = prepared(loader)
        try:
            shared.load_state_dict(shared.state_dict() | other)
        except accelkit.CheckpointError as error:
            found.append(str(error))
    failing = prepared(DataLoader(Failing(), batch_size=1))
    for loader in (failing, skip_batches(failing, 9)):
        try:
            passed(loader)
        except (OSError, accelkit.CollectiveError) as error:
            found.append(str(error))
    return found


def missing():
    """The last rank does not come to the loop of the others: they say so. The last case: the job is of no use any more."""
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=2), dist.distributed_c10d._get_default_group())
    if RANK == WORLD - 1:
        time.sleep(5)
        return None
    try:
        passed(prepared(DataLoader(Numbers(6), batch_size=1)))
    except accelkit.CollectiveError as error:
        return str(error)


def skipping():
    loader = prepared(DataLoader(Numbers(20), batch_size=2))
    later = skip_batches(loader, 1)
    ends = [loader.is_at_end and loader.remainder for _ in later]
    assert ends[-1] == (20 % (2 * WORLD) or -1), "what the Runtime asks the prepared one holds for its rest"
    assert not any(ends[:-1])
    found = [passed(later)[0], passed(loader)[0], [len(later), len(loader)]]
    assert loader.epoch == later.epoch == 3
    return found


def device():
    """On a device of its own: batches arrive there, whoever reads them, and its generator is rank 0's if asked for."""
    accelerator = FakeXPUAccelerator()
    accelerator.load()
    mine = accelerator.device(RANK)
    options = {"device": mine, "accelerator": accelerator, "rng_types": ("generator", accelerator.device_type)}
    accelerator.setup_device(mine)
    torch.get_device_module(mine.type).manual_seed(RANK)
    found = []
    for dispatch in (False, True):
        loader = prepared(DataLoader(Numbers(10), batch_size=3), dispatch_batches=dispatch, **options)
        for batch in loader:
            assert batch.device == mine
            found.append(batch.tolist())
    return found, torch.rand(2, device=mine).tolist()


if __name__ == "__main__":
    thread_shutdown.wait_for_threads_before_forks()  # as joining does
    dist.init_process_group("cpu:gloo")
    print("result:", json.dumps({name: globals()[name]() for name in sys.argv[1:]}))
    dist.destroy_process_group()
