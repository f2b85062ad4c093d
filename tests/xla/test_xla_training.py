"""Training on one XLA device: when steps end, what is compiled, what is read and uploaded, what is saved."""

from __future__ import annotations

import collections
import itertools
import threading

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import accelkit


@pytest.fixture
def rt():
    runtime = accelkit.Runtime("xla", seed=0)
    yield runtime
    runtime.teardown()


def counts(rt):
    from torch_xla.core import xla_model

    xla_model.wait_device_ops()  # a graph is counted when it ran, which is after the call that handed it over
    stats = rt.device_stats()
    return stats["xla.compilations"], stats["xla.executions"]


def ingredients(rt, batch_size=8, samples=64, dropout=0.0):
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(
        torch.randn(samples, 6, generator=generator, dtype=torch.float64), torch.randint(0, 3, (samples,), generator=generator)
    )
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return rt.prepare(model, optimizer, DataLoader(data, batch_size=batch_size))


def train(rt, model, optimizer, loader, read="never"):
    for inputs, targets in loader:
        with rt.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            rt.backward(loss)
            if read == "before the step":
                loss.item()
            optimizer.step()
            if read == "after the step":
                loss.item()
            optimizer.zero_grad()
        yield loss


def weights(model):
    return {name: tensor.cpu() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("read", ["never", "before the step", "after the step"])
def test_nothing_is_compiled_after_the_third_step(rt, read):
    seen = []
    for _ in train(rt, *ingredients(rt, samples=128), read=read):
        seen.append(counts(rt))
    compiled = [compilations for compilations, _ in seen]
    assert 0 < compiled[2] == compiled[-1]
    executed = {after - before for (_, before), (_, after) in itertools.pairwise(seen[3:])}
    assert executed == {2}, "the backward pass and the optimizer's step; reading a loss runs nothing"


def test_the_same_numbers_as_on_the_cpu(rt):
    on_cpu = accelkit.Runtime("cpu")
    for accumulation in (1, 4):
        losses = []
        for runtime in (accelkit.Runtime("xla", gradient_accumulation_steps=accumulation), on_cpu):
            batch_size = 8 if runtime is not on_cpu else 8 * accumulation
            made = ingredients(runtime, batch_size=batch_size)
            losses.append([loss.item() for loss in train(runtime, *made)])
            losses.append(weights(made[0]))
        torch.testing.assert_close(losses[1], losses[3], rtol=1e-12, atol=1e-14)
    assert torch.tensor(losses[0], dtype=torch.float64).view(-1, 4).mean(1).tolist() == pytest.approx(losses[2], rel=1e-12)


def test_accumulated_steps_end_with_each_backward_pass():
    rt = accelkit.Runtime("xla", gradient_accumulation_steps=4)
    seen = [counts(rt)[0] for _ in train(rt, *ingredients(rt, samples=256))]
    assert seen[-1] == seen[8], "a graph of four backward passes, or one of each length, would be another"


def test_a_step_without_a_prepared_loader_ends_too(rt):
    model, optimizer, _ = ingredients(rt)
    inputs, targets = rt.to_device((torch.randn(8, 6).double(), torch.randint(0, 3, (8,))))
    seen = []
    for _ in range(6):
        rt.backward(nn.functional.cross_entropy(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
        seen.append(counts(rt))
    assert seen[2][0] == seen[-1][0]
    assert seen[-1][1] - seen[-2][1] <= 2


def test_random_numbers_are_seeded_and_restored(rt):
    device = rt.device

    def draw():
        return torch.rand(4, device=device).cpu()

    rt.accelerator.manual_seed(5)
    first, state, second = draw(), rt.accelerator.get_rng_state(device), draw()
    rt.accelerator.manual_seed(5)
    assert torch.equal(draw(), first)
    assert not torch.equal(first, second)
    rt.accelerator.set_rng_state(state, device)
    assert torch.equal(draw(), second)
    assert (state.dtype, state.device.type, state.shape) == (torch.uint8, "cpu", (8,))


def test_training_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(tmp_path):
    def run(stop=None, resume=False):
        rt = accelkit.Runtime("xla", seed=3)
        made = ingredients(rt, dropout=0.5)
        if resume:
            rt.load_state(tmp_path)
        for number, _ in enumerate(train(rt, *made)):
            if number == stop:
                rt.save_state(tmp_path)
                break
        return weights(made[0])

    straight = run()
    run(stop=3)
    torch.testing.assert_close(run(resume=True), straight, rtol=0, atol=0)


def test_tensors_that_share_memory_are_each_saved(rt, tmp_path):
    class Kept:
        def __init__(self, state):
            self.state = state

        def state_dict(self):
            return self.state

        def load_state_dict(self, state):
            self.state = state

    whole = torch.arange(6.0, device=rt.device)
    kept = Kept({"whole": whole, "head": whole[:3], "tail": whole[3:], "turned": whole.view(2, 3).t()})
    values = {name: tensor.cpu() for name, tensor in kept.state.items()}
    rt.register_for_checkpointing(kept)
    rt.save_state(tmp_path)
    kept.state = {name: torch.zeros_like(tensor) for name, tensor in values.items()}
    rt.load_state(tmp_path)
    torch.testing.assert_close({name: tensor.cpu() for name, tensor in kept.state.items()}, values, rtol=0, atol=0)


def test_what_is_saved_can_be_read_where_there_is_no_xla(rt, tmp_path, run):
    rt.save({"weights": [torch.ones(2, device=rt.device)]}, tmp_path / "saved.pt")
    model, _, _ = ingredients(rt)
    rt.save_model(model, tmp_path / "exported")
    out = run(
        "import sys; sys.modules['torch_xla'] = None\n"
        "import torch, safetensors.torch\n"
        "print(torch.load('saved.pt')['weights'][0])\n"
        "print(sorted(safetensors.torch.load_file('exported/model.safetensors')))",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert out.splitlines() == ["tensor([1., 1.])", "['0.bias', '0.weight', '3.bias', '3.weight']"]


Pair = collections.namedtuple("Pair", ["numbers", "name"])


class Failing(Dataset):
    """Fails at its last sample."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        if index == 5:
            raise LookupError("the sixth sample is damaged")
        return Pair(torch.tensor([float(index)]), f"n{index}")


def test_an_error_of_the_dataset_is_raised_in_the_loop(rt):
    loader, seen = rt.prepare(DataLoader(Failing(), batch_size=2)), []
    with pytest.raises(LookupError, match="the sixth sample is damaged"):
        seen += [batch.numbers.cpu().tolist() for batch in loader]  # the last good one is handed out when the next one is there
    loader = rt.prepare(DataLoader(Failing(), batch_size=1))
    with pytest.raises(LookupError):
        seen.extend(iter(loader))
    assert {type(batch) for batch in seen} == {Pair}
    assert {batch.numbers.device.type for batch in seen} == {"xla"}
    assert [(batch.numbers.item(), batch.name) for batch in seen] == [(float(number), (f"n{number}",)) for number in range(4)]


def test_batches_of_any_structure_arrive(rt):
    packed = nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    loader = rt.prepare(DataLoader([{"packed": packed, "text": "t", "none": None}], batch_size=None, collate_fn=lambda item: item))
    ((batch),) = loader
    assert batch["packed"].data.device.type == "xla"
    assert batch["packed"].batch_sizes.device.type == "cpu"
    assert (batch["text"], batch["none"]) == ("t", None)


def test_a_loop_that_ends_early_leaves_no_thread(rt):
    loader = rt.prepare(DataLoader(torch.arange(1000), batch_size=2))
    before = threading.active_count()
    for _ in loader:
        break
    assert threading.active_count() == before
    assert len(list(loader)) == 500


def test_what_the_device_does_not_say_is_left_out(rt):
    assert set(rt.device_stats()) == {"xla.compilations", "xla.executions"}
    assert rt.accelerator.capabilities()["memory_statistics"] == "none"
