"""Checkpoints of strategies that save and load the state of their engine themselves."""

from __future__ import annotations

import json
import os

import pytest
import torch

import accelkit


class Engine(torch.nn.Module):
    """Trains a module by momentum of its own, which no state dict has."""

    def __init__(self, module, optimizer):
        super().__init__()
        self.module, self.optimizer, self.velocity = module, optimizer, 0.0

    def forward(self, *inputs):
        return self.module(*inputs)

    def step(self):
        for parameter in self.module.parameters():
            self.velocity = self.velocity / 2 + parameter.grad.sum().item()
            parameter.data -= 0.1 * self.velocity
            parameter.grad = None
        self.optimizer.step()  # has no gradients; schedulers expect the call


class WithoutSaving(accelkit.EngineStrategy):
    """Leaves saving to the Runtime."""

    def wrap_training(self, module, optimizer, settings):
        self.engine = Engine(module, optimizer)
        return self.engine

    def backward(self, loss, **kwargs):
        loss.backward()

    def step(self, optimizer):
        self.engine.step()
        return True

    def zero_grad(self, optimizer):
        """Nothing to do: ``step`` has cleared the gradients."""

    def unwrap_module(self, module):
        return module.module if isinstance(module, Engine) else module


class Saving(WithoutSaving):
    """Writes the engine's state into files, one of them in a folder."""

    def save_engine(self, module, folder):
        (folder / "below").mkdir()
        (folder / "below" / "velocity.json").write_text(json.dumps(module.velocity))
        torch.save([module.module.state_dict(), module.optimizer.state_dict()], folder / "weights.pt")

    def load_engine(self, module, folder):
        if len(list(folder.iterdir())) != 2:
            raise accelkit.CheckpointError(f"{folder} has other files")
        module.velocity = json.loads((folder / "below" / "velocity.json").read_text())
        weights, settings = torch.load(folder / "weights.pt", weights_only=True)
        module.module.load_state_dict(weights)
        module.optimizer.load_state_dict(settings)


class Run:
    """A program that trains a model and reads the output of another one, whose weights are fixed."""

    def __init__(self, strategy):
        self.rt = accelkit.Runtime("cpu", strategy=strategy, seed=0)
        model, teacher = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1).requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        self.teacher, self.model, self.optimizer, _ = self.rt.prepare(teacher, model, optimizer, self.scheduler)

    def train(self, steps):
        for _ in range(steps):
            batch = torch.rand(3, 2)
            self.rt.backward((self.model(batch) - self.teacher(batch)).square().mean())
            self.optimizer.step()
            self.scheduler.step()
        return [*self.rt.unwrap_model(self.model).parameters()], self.scheduler.get_last_lr(), torch.rand(2)


def resumed(strategy, folder):
    run = Run(strategy)
    with torch.no_grad():
        run.teacher.weight.zero_()
    run.rt.load_state(folder)
    return run.train(2)


@pytest.mark.parametrize("strategy", [Saving, WithoutSaving])
def test_training_goes_on_from_what_the_engine_saved(strategy, tmp_path):
    run = Run(strategy())
    run.train(3)
    step = run.rt.save_state(tmp_path)
    files = {path.relative_to(step).as_posix() for path in step.rglob("*") if path.is_file()}
    assert ({"engine_1/weights.pt", "engine_1/below/velocity.json"} <= files) == (strategy is Saving)
    manifest = json.loads((step / "manifest.json").read_text())
    expected = (["scheduler_0"], "4") if strategy is Saving else (["model_1", "optimizer_0", "scheduler_0"], "3")
    assert (manifest["objects"], manifest["format"][-1]) == (["model_0", *expected[0], "precision"], expected[1])
    assert set(manifest["files"]) == files - {"manifest.json", "manifest.crc32"}
    straight, again = run.train(2), resumed(strategy(), tmp_path)
    if strategy is WithoutSaving:  # the velocity is lost, as it was with every strategy before
        assert not torch.equal(again[0][0], straight[0][0])
        straight[0][:] = again[0]
    torch.testing.assert_close(again, straight, rtol=0, atol=0)


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of ``Saving``."""
    return Run(Saving()).rt.save_state(tmp_path)


@pytest.mark.parametrize("name", ["engine_1/weights.pt", "engine_1/below/velocity.json"])
@pytest.mark.parametrize("verify", ["full", "lazy"])
def test_a_damaged_file_of_an_engine_is_named_before_anything_is_changed(name, verify, saved, error_text):
    content = (saved / name).read_bytes()
    run = Run(Saving())
    before = [parameter.clone() for parameter in run.model.parameters()]
    (saved / name).write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(accelkit.CheckpointError) as caught:
        run.rt.load_state(saved, verify=verify)
    assert caught.value.why == f"{name}: its checksum is wrong"
    (saved / name).unlink()
    with pytest.raises(accelkit.CheckpointError) as caught:
        run.rt.load_state(saved, verify=verify)
    assert caught.value.why == f"{name}: it is missing"
    (saved / name).symlink_to("/dev/zero")
    with pytest.raises(accelkit.CheckpointError) as caught:
        run.rt.load_state(saved, verify=verify)
    assert caught.value.why == f"{name}: it is not a regular file"
    assert all(map(torch.equal, run.model.parameters(), before))


def test_a_link_in_place_of_an_engines_folder_is_refused(saved, tmp_path):
    (saved / "engine_1" / "below").rename(tmp_path / "elsewhere")
    (saved / "engine_1" / "below").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(accelkit.CheckpointError) as caught:
        Run(Saving()).rt.load_state(saved)
    assert caught.value.why == "engine_1/below: it is a symbolic link"


class OfAnotherVendor(WithoutSaving):
    """Writes files of its own."""

    def save_engine(self, module, folder):
        (folder / "state").write_text("")

    def load_engine(self, module, folder):
        """Would load anything."""


def test_the_files_of_an_engine_are_for_the_strategy_that_wrote_them(tmp_path, error_text):
    class Same(Saving):
        """A class that adds something else to the one that saves."""

    for name, strategy in {"engine": Saving(), "plain": WithoutSaving()}.items():
        Run(strategy).rt.save_state(tmp_path / name)
    Run(Same()).rt.load_state(tmp_path / "engine")
    for name, strategy in ("engine", WithoutSaving()), ("plain", Saving()), ("engine", OfAnotherVendor()), ("engine", "single_device"):
        with pytest.raises(accelkit.CheckpointError) as caught:
            Run(strategy).rt.load_state(tmp_path / name)
        assert "rt.save_model(model, folder)" in caught.value.hint
        assert str(caught.value).replace(str(tmp_path), "FOLDER") == error_text


def test_an_engine_that_is_not_prepared_is_named(saved):
    rt = accelkit.Runtime("cpu", strategy=Saving())
    model = torch.nn.Linear(2, 1)
    rt.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(accelkit.CheckpointError, match="it has no engine_0; nothing is prepared for engine_1, model_0, scheduler_0"):
        rt.load_state(saved)


def test_a_save_in_the_background_is_refused(tmp_path, error_text):
    run = Run(Saving())
    with pytest.raises(accelkit.UnsupportedError) as caught:
        run.rt.save_state(tmp_path, is_async=True)
    assert caught.value == error_text
    Run(WithoutSaving()).rt.save_state(tmp_path, is_async=True)


@pytest.mark.parametrize("lacking", ["save_engine", "load_engine"])
def test_both_methods_are_needed(lacking, tmp_path, error_text):
    present = ({"save_engine", "load_engine"} - {lacking}).pop()
    half = type("Half", (WithoutSaving,), {present: getattr(Saving, present)})
    run = Run(half())
    if lacking == "load_engine":
        run.rt.save_state(tmp_path)
    with pytest.raises(accelkit.UnsupportedError) as caught:
        getattr(run.rt, lacking.replace("engine", "state"))(tmp_path)
    assert caught.value == error_text


class OnAFullDisk(Saving):
    """Its disk is full."""

    def save_engine(self, module, folder):
        super().save_engine(module, folder)
        try:
            raise OSError(28, "No space left on device")
        except OSError:
            raise RuntimeError("the archive could not be closed")  # noqa: B904 # as torch does


class Linking(Saving):
    """Writes a link."""

    def save_engine(self, module, folder):
        os.symlink("/etc/hostname", folder / "link")


@pytest.mark.parametrize(
    ("strategy", "why"),
    [(OnAFullDisk, "OSError: [Errno 28] No space left on device"), (Linking, "engine_1/link, which is not a regular file")],
)
def test_a_save_that_fails_leaves_the_checkpoints_before_it(strategy, why, saved):
    with pytest.raises(accelkit.CheckpointError) as caught:
        Run(strategy()).rt.save_state(saved.parent)
    assert why in caught.value.why
    Run(Saving()).rt.load_state(saved.parent)
    assert Run(Saving()).rt.save_state(saved.parent, keep_last=1).name == "step-1"
    assert sorted(path.name for path in saved.parent.iterdir()) == ["LATEST", "step-1"]


def raise_while_handling(handled, error, *, from_none=False):
    try:
        raise handled
    except OSError:
        if from_none:
            raise error from None
        raise error  # noqa: B904 # the error's context is the handled error


@pytest.mark.parametrize(
    ("handled", "from_none"),
    [(None, False), (FileNotFoundError(2, "No such file", "optional.json"), False), (OSError(28, "No space left on device"), True)],
)
def test_an_error_of_the_engine_names_the_plugin(tmp_path, handled, from_none):
    class Broken(Saving):
        def save_engine(self, module, folder):
            if handled is not None:
                raise_while_handling(handled, KeyError("velocity"), from_none=from_none)
            raise KeyError("velocity")

    with pytest.raises(accelkit.BrokenPluginError, match="save_engine of the strategy Broken failed"):
        Run(Broken()).rt.save_state(tmp_path)
