"""Checkpoints over several processes, scenario by scenario.

``python distributed_checkpoint_program.py SCENARIO FOLDER``. A failed assertion is a failed run.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest
import torch
from forked_ranks import runtime, world
from safetensors import safe_open
from torch import nn
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.tensor import DTensor

from accelkit import CheckpointError
from accelkit.runtime.checkpoints import checkpoint
from accelkit.runtime.checkpoints.coordinator import Ranks
from accelkit.runtime.checkpoints.target_sharding import layout_of


class Net(nn.Module):
    """Shards of every kind: uneven, empty, tied, compiled, and buffers that differ between processes."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 1)
        self.second.weight = self.first.weight
        self.last = torch.compile(self.last, backend="eager")
        self.low, self.high = nn.Parameter(torch.tensor([2.0])), nn.Parameter(torch.tensor([3.0]))
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x):
        return self.low * self.last(torch.tanh(self.second(torch.tanh(self.first(x))))) + self.high


def make(env, strategy, accelerator="cpu"):
    torch.manual_seed(1 if env.world_size == 1 else 2)
    rt = runtime(env, strategy, accelerator)
    model = Net()
    model = rt.prepare(model)
    optimizer = rt.prepare(torch.optim.AdamW(model.parameters(), lr=0.1))
    scheduler = rt.prepare(torch.optim.lr_scheduler.StepLR(optimizer, 2))
    return rt, model, optimizer, scheduler


def train(rt, model, optimizer, scheduler):
    for step in range(3):
        torch.manual_seed(step)
        rt.backward(model(rt.to_device(torch.randn(4, 5))).square().sum())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


def train_and_save(env, folder, strategy, accelerator="cpu"):
    rt, *things = make(env, strategy, accelerator)
    train(rt, *things)
    bare = rt.unwrap_model(things[0], keep_torch_compile=False)
    bare.seen.fill_(env.global_rank + 1)
    torch.manual_seed(100 + env.global_rank)
    rt.save_state(folder)
    rt.teardown()


def load_and_save(env, folder, strategy):
    rt, *things = make(env, strategy)
    train(rt, *things)  # state that must be forgotten
    rt.load_state(folder)
    assert sys.platform != "linux" or str(folder) not in Path("/proc/self/maps").read_text(), "nothing that was loaded is a mapping"
    rt.save_state(folder)
    assert torch.initial_seed() is not None
    rt.teardown()


def load_fresh_and_save(env, folder, strategy, accelerator="cpu"):
    rt, *things = make(env, strategy, accelerator)
    rt.load_state(folder)
    rt.save_state(folder, is_async=accelerator != "cpu")
    rt.wait_for_saves()
    train(rt, *things)
    rt.teardown()


CHAIN = [(1, "single_device"), (2, "ddp"), (2, "fsdp"), (3, "fsdp"), (1, "fsdp"), (3, "ddp"), (1, "single_device")]


def across_strategies_and_sizes(folder):
    """Every link of the chain loads what the one before saved, and saves what it has: all are equal to the first, bit by bit."""
    warnings.filterwarnings("ignore", ".*has no random state for rank")
    size, strategy = CHAIN[0]
    world(size, train_and_save, folder, strategy)
    first = checkpoint.load(folder)
    assert first["model_0"].keys() >= {"first.weight", "second.weight", "last.weight", "last.bias", "seen", "count"}
    for number, (size, strategy) in enumerate(CHAIN[1:], 1):
        world(size, load_and_save if number % 2 else load_fresh_and_save, folder, strategy)
        loaded = checkpoint.load(folder / f"step-{number}")
        loaded["random_state"] = first["random_state"]
        same(first, loaded, f"step-{number} of {size} {strategy}")


def across_devices(folder):
    """Two processes with a simulated device each save and load as on the CPU; one on the CPU reads it, and the other way round."""
    warnings.filterwarnings("ignore", ".*(has no random state for rank|random state is from)")
    world(2, train_and_save, folder, "fsdp", "fake_xpu")
    first = checkpoint.load(folder)
    chain = [(1, "single_device", "cpu"), (2, "ddp", "fake_xpu"), (2, "fsdp", "fake_xpu")]
    for number, (size, strategy, accelerator) in enumerate(chain, 1):
        world(size, load_fresh_and_save, folder, strategy, accelerator)
        loaded = checkpoint.load(folder / f"step-{number}")
        loaded["random_state"] = first["random_state"]
        same(first, loaded, f"step-{number} of {size} {strategy} {accelerator}")


def same(a, b, path):
    assert type(a) is type(b), f"{path}: {a} and {b}"
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype, path
        assert torch.equal(a, b), f"{path}: {a} and {b}"
    elif isinstance(a, dict):
        assert list(a) == list(b), f"{path}: {list(a)} and {list(b)}"
        for key in a:
            same(a[key], b[key], f"{path}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), path
        for index, pair in enumerate(zip(a, b, strict=True)):
            same(*pair, f"{path}.{index}")
    else:
        assert a == b, f"{path}: {a} and {b}"


def shards(folder):
    """Each process writes its shards, and reads its shards, and nothing else; of what is not sharded rank 0's is saved."""
    world(2, train_and_save, folder, "fsdp")
    stored = FileSystemReader(folder / "step-0" / "data").read_metadata().storage_data
    files = {name: {where.relative_path for index, where in stored.items() if index.fqn == name} for name in {i.fqn for i in stored}}
    both = {"__0_0.distcp", "__1_0.distcp"}
    assert files["model_0.first.weight"] == files["optimizer_0.state.2.exp_avg"] == both
    assert files["model_0.seen"] == files["model_0.count"] == files["rank_0"] == {"__0_0.distcp"}
    assert files["rank_1"] == {"__1_0.distcp"}
    assert checkpoint.load(folder)["model_0"]["seen"].tolist() == [1, 1]
    world(2, read_shards, folder)


def read_shards(env, folder):
    rt, model, optimizer, _ = make(env, "fsdp")
    layout = layout_of({"model_0": model, "optimizer_0": optimizer})
    parts = checkpoint.load(folder, layout=layout, ranks=Ranks.of_job())
    weight = parts["model_0"]["first.weight"]
    average = parts["optimizer_0"]["state"][2]["exp_avg"]
    for tensor in (weight, average):
        assert isinstance(tensor, DTensor)
        assert tensor.shape == (5, 5)
        assert len(tensor.to_local()) == (3, 2)[env.global_rank]
    assert parts["model_0"]["second.weight"] is weight
    rt.teardown()


def random_state(folder):
    """Each process gets its own back; one for which there is none warns, and draws what no other draws."""
    world(2, train_and_save, folder, "ddp")
    world(3, draw_after_loading, folder)
    world(1, draw_after_loading, folder)


def draw_after_loading(env, folder):
    rt, *_ = make(env, None)
    rank = env.global_rank
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rt.load_state(folder)
    said = [str(one.message) for one in caught if "random state" in str(one.message)]
    if rank < 2:
        assert not said
        assert torch.rand(3).equal(torch.rand(3, generator=torch.Generator().manual_seed(100 + rank)))
    else:
        assert len(said) == 1
        assert "rank 2" in said[0]
        mine = torch.rand(3)
        for other in (100, 101):
            assert not mine.equal(torch.rand(3, generator=torch.Generator().manual_seed(other)))
    rt.teardown()


def other_objects(folder):
    """What does not fit is refused on every process, with the same words."""
    world(2, train_and_save, folder, "fsdp")
    world(2, load_into_others, folder)


def load_into_others(env, folder):
    rt = runtime(env, "fsdp")
    rt.prepare(nn.Linear(5, 5))
    with pytest.raises(CheckpointError, match="optimizer_0, scheduler_0"):
        rt.load_state(folder)
    rt.teardown()


def in_the_background(folder):
    """What is written is what was there when save_state returned, whatever training did since; one save follows the other."""
    world(2, save_and_change, folder)
    for step in range(2):
        assert checkpoint.load(folder / f"step-{step}")["model_0"]["weight"].unique().tolist() == [step]
    assert not list(folder.glob("*.tmp"))


def save_and_change(env, folder):
    rt = runtime(env, "fsdp")
    model = rt.prepare(nn.Linear(2000, 2000))
    for step in range(2):
        with torch.no_grad():
            model.weight.fill_(step)
        assert rt.save_state(folder, is_async=True) == folder / f"step-{step}"
        with torch.no_grad():
            model.weight.fill_(7)
        total = torch.ones(3)
        torch.distributed.all_reduce(total)  # the program's own messages go on meanwhile
        assert total.tolist() == [2, 2, 2]
    rt.load_state(folder)
    assert model.weight.to_local().unique().tolist() == [1]
    rt.teardown()


def weights(folder):
    """Sharded weights are exported as the whole model's are; the state dict is rank 0's."""
    for size, strategy in ((1, "single_device"), (2, "ddp"), (2, "fsdp")):
        world(size, export, folder / strategy, strategy)
    expected = exported(folder / "single_device")
    assert sorted(expected) == [*(f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)), "model.safetensors.index.json"]
    for strategy in ("ddp", "fsdp"):
        same(expected, exported(folder / strategy), strategy)


def exported(folder):
    found = {}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".json":
            found[path.name] = path.read_text()
        else:
            with safe_open(path, "pt") as file:
                found[path.name] = {key: file.get_tensor(key) for key in file.keys()} | {"metadata": dict(sorted(file.metadata().items()))}  # noqa: SIM118 # no mapping
    return found


class Versioned(Net):
    """A model with a state that is no tensor."""

    def get_extra_state(self):
        return {"version": 3}

    def set_extra_state(self, state):
        assert state == {"version": 3}


def export(env, folder, strategy):
    rt = runtime(env, strategy)
    torch.manual_seed(0)
    model = rt.prepare(Versioned())
    rt.save_model(model, folder, max_shard_size=100)
    state = rt.get_state_dict(model)
    if strategy == "fsdp" and env.global_rank:
        assert state == {}
    else:
        assert state["first.weight"].shape == (5, 5)
        assert not isinstance(state["first.weight"], DTensor)
        assert "last.weight" in state
        assert state["_extra_state"] == {"version": 3}
    rt.teardown()


SCENARIOS = {
    f.__name__: f for f in (across_strategies_and_sizes, across_devices, shards, random_state, other_objects, in_the_background, weights)
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    SCENARIOS[sys.argv[1]](Path(sys.argv[2]))
