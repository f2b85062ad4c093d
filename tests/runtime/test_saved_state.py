"""What a Runtime saves on one process comes back."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import accelkit


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


def test_a_registered_compiled_model_too_and_what_an_object_says_stays_as_it_is(rt, tmp_path):
    class Averages:
        def __init__(self):
            self.models = [torch.compile(nn.Linear(2, 2), backend="eager")]

        def state_dict(self):
            return {"models": [model.state_dict() for model in self.models], "_orig_mod.seen": 1, "seen": 2}

        def load_state_dict(self, state):
            self.rest = {key: value for key, value in state.items() if key != "models"}
            for model, values in zip(self.models, state["models"], strict=True):
                model.load_state_dict(values)

    saved = Averages(), torch.compile(nn.Linear(2, 2), backend="eager")
    rt.register_for_checkpointing(*saved)
    rt.save_state(tmp_path)
    fresh = accelkit.Runtime(accelerator="cpu")
    loaded = Averages(), nn.Linear(2, 2)
    fresh.register_for_checkpointing(*loaded)
    fresh.load_state(tmp_path)
    assert torch.equal(loaded[0].models[0].weight, saved[0].models[0].weight)
    assert loaded[0].rest == {"_orig_mod.seen": 1, "seen": 2}
    assert torch.equal(loaded[1].weight, saved[1].weight)


def test_names_that_end_like_the_prefix_of_torch_compile_are_kept(rt):
    layers = nn.ModuleDict({"my_orig_mod": nn.Linear(2, 2), "compiled": torch.compile(nn.Linear(2, 2), backend="eager")})
    names = ["compiled.bias", "compiled.weight", "my_orig_mod.bias", "my_orig_mod.weight"]
    assert sorted(rt.get_state_dict(rt.prepare(layers))) == names
    assert sorted(rt.get_state_dict(rt.prepare(torch.compile(layers, backend="eager")))) == names


def test_a_name_that_would_be_lost_is_an_error(rt, tmp_path, error_text):
    compiled = torch.compile(nn.Linear(2, 2), backend="eager")
    for module in (compiled, compiled._orig_mod):
        module.register_buffer("seen", torch.zeros(1))
    rt.prepare(nn.Sequential(compiled))
    with pytest.raises(accelkit.CheckpointError) as caught:
        rt.save_state(tmp_path)
    assert "Sequential" in caught.value.what
    assert "0._orig_mod.seen" in caught.value.why
    assert caught.value == error_text
    assert not list(tmp_path.iterdir())


def test_loading_into_other_objects_is_refused(rt, tmp_path, error_text):
    rt.prepare(nn.Linear(2, 2))
    rt.save_state(tmp_path)
    with pytest.raises(accelkit.CheckpointError) as caught:
        accelkit.Runtime(accelerator="cpu").load_state(tmp_path)
    assert "model_0" in caught.value.why
    assert caught.value == error_text
    other = accelkit.Runtime(accelerator="cpu")
    other.prepare(nn.Linear(3, 2))
    with pytest.raises(accelkit.CheckpointError) as caught:
        other.load_state(tmp_path)
    assert "model_0" in caught.value.what
    assert caught.value == error_text


def test_registered_objects_are_saved_too(rt, tmp_path, error_text):
    class Counter:
        def __init__(self):
            self.count = 0

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    counter = Counter()
    rt.prepare(nn.Linear(2, 2))
    rt.register_for_checkpointing(counter)
    counter.count = 3
    rt.save_state(tmp_path)
    counter.count = 0
    rt.load_state(tmp_path)
    assert counter.count == 3
    with pytest.raises(accelkit.PrepareError) as caught:
        rt.register_for_checkpointing(object())
    assert "state_dict" in caught.value.why
    assert "load_state_dict" in caught.value.why
    assert caught.value == error_text


@pytest.mark.filterwarnings("ignore:the checkpoint will contain no model")
def test_a_position_in_an_epoch_of_a_loader_that_is_not_prepared_again_is_lost_with_a_warning(rt, tmp_path):
    loader = rt.prepare(DataLoader(TensorDataset(torch.zeros(6)), batch_size=2))
    finished = accelkit.Runtime(accelerator="cpu")
    assert len(list(finished.prepare(DataLoader(TensorDataset(torch.zeros(6)))))) == 6
    finished.save_state(tmp_path / "finished")
    for _ in loader:
        rt.save_state(tmp_path / "under way")
        break
    fresh = accelkit.Runtime(accelerator="cpu")
    fresh.load_state(tmp_path / "finished")  # without a warning
    with pytest.warns(UserWarning, match="under way.*in the middle of an epoch of loader_0, which is not prepared"):
        fresh.load_state(tmp_path / "under way")


def test_save_writes_on_one_process_of_each_machine(tmp_path):
    class SecondOfItsMachine(accelkit.ClusterEnvironment):
        creates_processes_externally = True
        world_size, global_rank, local_rank, num_nodes = 4, 3, 1, 2

    accelkit.Runtime(accelerator="cpu", cluster=SecondOfItsMachine(), devices=2).save({}, tmp_path / "file.pt")
    assert list(tmp_path.iterdir()) == []


def test_save_is_whole_or_not_at_all(rt, tmp_path):
    rt.save({"a": torch.ones(2)}, tmp_path / "file.pt")
    assert torch.load(tmp_path / "file.pt")["a"].tolist() == [1, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["file.pt"]


def saved_optimizer(tmp_path, optimizer_class, scheduler=torch.optim.lr_scheduler.StepLR, **options):
    rt = accelkit.Runtime(accelerator="cpu", **options)
    model = nn.Linear(2, 2)
    optimizer = optimizer_class(model.parameters(), lr=0.1)
    return rt, rt.prepare(model, optimizer, scheduler(optimizer, 1))


@pytest.mark.parametrize("loaded", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adam, type("AdamW", (torch.optim.AdamW,), {})])
@pytest.mark.parametrize("verify", ["full", "lazy"])
def test_the_state_of_another_class_of_optimizer_is_refused(tmp_path, loaded, verify, error_text):
    saved_optimizer(tmp_path, torch.optim.AdamW)[0].save_state(tmp_path)
    rt, (model, _, _) = saved_optimizer(tmp_path, loaded)
    before = model.weight.detach().clone()
    with pytest.raises(accelkit.CheckpointError) as caught:
        rt.load_state(tmp_path, verify=verify)
    assert "optimizer_0" in caught.value.what
    assert f"its class is {loaded.__module__}.{loaded.__name__}, " in caught.value.why
    assert ".AdamW" in caught.value.why
    assert torch.equal(model.weight, before)
    if loaded is torch.optim.Adam:
        assert caught.value == error_text


def test_the_state_of_another_class_of_scheduler_is_refused(tmp_path):
    saved_optimizer(tmp_path, torch.optim.AdamW)[0].save_state(tmp_path)
    rt, _ = saved_optimizer(tmp_path, torch.optim.AdamW, torch.optim.lr_scheduler.CosineAnnealingLR)
    with pytest.raises(accelkit.CheckpointError, match=r"scheduler_0 differs from the class in.*\n.*CosineAnnealingLR.*StepLR"):
        rt.load_state(tmp_path)


def test_the_class_that_prepare_gives_an_optimizer_is_the_users_class(tmp_path):
    rt, (_, optimizer, _) = saved_optimizer(tmp_path, torch.optim.AdamW, gradient_accumulation_steps=2)
    assert type(optimizer) is not torch.optim.AdamW
    rt.save_state(tmp_path)
    saved_optimizer(tmp_path, torch.optim.AdamW)[0].load_state(tmp_path)


def test_a_class_of_the_program_may_move_to_another_module(tmp_path):
    mine = type("Mine", (torch.optim.AdamW,), {"__module__": "__main__"})
    saved_optimizer(tmp_path, mine)[0].save_state(tmp_path)
    saved_optimizer(tmp_path, type("Mine", (torch.optim.AdamW,), {"__module__": "project.optimizers"}))[0].load_state(tmp_path)
