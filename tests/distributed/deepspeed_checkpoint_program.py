"""What each rank does in test_deepspeed_checkpoints.py: ``deepspeed_checkpoint_program.py FOLDER CASE...``.

A case is the name of a function below and its argument, as ``resumed=2``: a ZeRO stage. In the environment, ON names the accelerator,
PRECISION the precision, and OFFLOAD=1 offloads what the stage can offload.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import zlib
from pathlib import Path

import pytest
import torch

import accelkit
from accelkit_builtin.precisions.p16_mixed import Float16Mixed, GradScalerOptions
from accelkit_builtin.strategies.deepspeed import DeepSpeedOptions, DeepSpeedStrategy

FOLDER = Path(sys.argv[1])
ON = os.environ.get("ON", "cpu")
PRECISION = os.environ.get("PRECISION", "32-true")
IS_OFFLOADED = bool(os.environ.get("OFFLOAD"))
EPOCH = 6  # steps


class Done:
    """The number of steps that were taken, registered for checkpointing."""

    def __init__(self):
        self.steps = 0

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


class Scale(torch.nn.Module):
    """A layer with a buffer that changes in each forward pass."""

    def __init__(self):
        super().__init__()
        self.register_buffer("factor", torch.ones(()))

    def forward(self, batch):
        self.factor.mul_(0.75)
        return batch * self.factor


class Training:
    """An ordinary program, with dropout, a buffer, a frozen layer, a scheduler, accumulation and a loader that shuffles."""

    def __init__(self, stage, config=None, strategy=None, width=7):
        options = DeepSpeedOptions(
            stage=stage,
            offload_optimizer=IS_OFFLOADED,
            offload_parameters=IS_OFFLOADED and stage == 3,
            config={"zero_optimization": {"stage3_param_persistence_threshold": 0}} | (config or {}) if stage == 3 else config,
        )
        precision = Float16Mixed(GradScalerOptions(init_scale=2.0**15, growth_interval=2)) if PRECISION == "16-mixed" else PRECISION
        self.rt = rt = accelkit.Runtime(
            ON, strategy=strategy or DeepSpeedStrategy(options), precision=precision, gradient_accumulation_steps=2, seed=3
        )
        layers = [torch.nn.Linear(5, width), Scale(), torch.nn.Dropout(0.3), torch.nn.Linear(width, 1)]
        model = torch.nn.Sequential(*layers)
        model[3].bias.requires_grad_(False)
        data = torch.randn(2 * EPOCH * 4, 5, generator=torch.Generator().manual_seed(1))
        optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.05)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        loader = torch.utils.data.DataLoader(data, batch_size=4 // rt.num_processes, shuffle=True)
        self.model, self.optimizer, self.scheduler, self.loader = rt.prepare(model, optimizer, scheduler, loader)
        self.done = Done()
        rt.register_for_checkpointing(self.done)

    def train(self, save=None):
        """Train until the end of the epoch. The loss of each backward pass after step 3, after which the checkpoint ``save`` is saved."""
        losses = []
        for batch in self.loader:
            with self.rt.accumulate(self.model):
                loss = self.model(batch).square().mean()
                self.rt.backward(loss)
                if self.rt.sync_gradients:
                    self.rt.clip_grad_norm_(self.model.parameters(), 0.3)
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
            losses += [loss.item()] if self.done.steps >= 3 else []
            if self.rt.sync_gradients:
                self.done.steps += 1
                if save is not None and self.done.steps == 3:
                    self.rt.save_state(save, keep_last=1)
        return losses

    def result(self):
        """Everything that a run ends with."""
        rt = self.rt
        scale = self.model.optimizer.loss_scale if PRECISION == "16-mixed" else 1
        state = [value.clone() for values in self.optimizer.state.values() for value in values.values() if isinstance(value, torch.Tensor)]
        weights = {name: value.detach().cpu().clone() for name, value in rt.get_state_dict(self.model).items()}
        counts = self.model.global_steps, self.model.skipped_steps, self.done.steps, self.optimizer.param_groups[0]["lr"], scale
        return weights, [value.cpu() for value in state], counts, torch.rand(2)


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def allow_float16():
    if ON == "cpu" and PRECISION == "16-mixed":
        import deepspeed  # the test has set DS_ACCELERATOR

        deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True  # torch computes in it on any CPU, if slowly


def straight(stage):
    """Six steps, of which the fourth is preceded by a save. The result is kept for ``resumed``."""
    allow_float16()
    run = Training(stage)
    losses = run.train(save=FOLDER / f"ckpt-{stage}")
    torch.save((losses, run.result()), FOLDER / f"result-{stage}-{run.rt.process_index}.pt")
    assert not [*(FOLDER / f"ckpt-{stage}").rglob("*.py")], "DeepSpeed's scripts"
    run.rt.save_model(run.model, FOLDER / f"model-{stage}")
    run.rt.teardown()


def resumed(stage):
    """Processes that resume compute the same, bit for bit."""
    allow_float16()
    run = Training(stage)
    assert run.rt.resume(FOLDER / f"ckpt-{stage}")
    assert run.done.steps == 3
    expected = torch.load(FOLDER / f"result-{stage}-{run.rt.process_index}.pt")
    assert_same((run.train(), run.result()), expected)
    run.rt.load_state(FOLDER / f"ckpt-{stage}", verify="lazy")  # once more, into objects that were trained
    assert_same((run.train(), run.result()), expected)
    run.rt.teardown()


def killed(stage):
    """Rank 1 is killed while DeepSpeed collects the state to save. The other rank reports that."""
    run = Training(stage)
    assert run.rt.resume(FOLDER / f"ckpt-{stage}")
    run.train()
    if run.rt.process_index == 1:
        run.optimizer.register_state_dict_post_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(accelkit.CheckpointError) as caught:
        run.rt.save_state(FOLDER / f"ckpt-{stage}", keep_last=1)
    assert "rank 1: the process died" in caught.value.why, caught.value
    print("done", flush=True)
    os._exit(0)  # DeepSpeed's process groups would wait for rank 1


def refused(text, call, *args, error=accelkit.CheckpointError, is_recorded=True, **kwargs):
    """Call a function that raises an error with this text. Rank 0 records the error."""
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    assert text in str(caught.value), caught.value
    if is_recorded and os.environ["RANK"] == "0":
        with (FOLDER / "errors.txt").open("a") as file:
            file.write(f"{caught.value}\n".replace(str(FOLDER), "FOLDER").replace(socket.gethostname(), "HOST"))


def weights_of(run):
    return {name: value.clone() for name, value in run.rt.get_state_dict(run.model).items()}


def refusals(stage):
    """What a job cannot load is refused before anything is changed, and a state that cannot be saved leaves nothing behind."""
    ours, other = FOLDER / "ckpt", FOLDER / "ckpt-of-ddp"
    run = Training(stage)
    run.train(save=ours)
    before = weights_of(run)
    refused("save_state(is_async=True)", run.rt.save_state, ours, is_async=True, error=accelkit.UnsupportedError)
    if run.rt.process_index == 1:
        run.optimizer.param_groups[0]["extra"] = run.done
    refused("__main__.Done, which could be loaded only by running code", run.rt.save_state, ours)
    run.optimizer.param_groups[0].pop("extra", None)
    damage(run, ours, before)
    run.rt.load_state(ours)
    with pytest.raises(AssertionError):
        assert_same(weights_of(run), before)
    run.rt.teardown()
    for options, text in (
        ({"stage": 1}, "the ZeRO stage was 2 and is 1"),
        ({"stage": stage, "width": 8}, "0.weight, 0.bias, 3.weight"),
    ):
        run = Training(**options)
        before = weights_of(run)
        refused(text, run.rt.load_state, ours)
        assert_same(weights_of(run), before)
        run.rt.teardown()
    run = Training(stage, strategy="ddp")
    run.rt.save_state(other)
    refused("cannot be loaded under strategy 'ddp'", run.rt.load_state, ours)
    run.rt.teardown()
    run = Training(stage)
    refused("only from files that DeepSpeedStrategy wrote", run.rt.load_state, other)
    run.rt.teardown()


def damage(run, folder, before):
    """A damaged file and a missing one are named, and a file that would run code is not loaded."""
    name = "engine_0/state/zero_pp_rank_1_mp_rank_00_optim_states.pt"
    file = folder / "step-0" / name
    kept = file.read_bytes()
    for content in (kept[:-100] + b"x" + kept[-99:], None):
        run.rt.wait_for_everyone()
        if run.rt.is_main_process:
            file.write_bytes(content) if content is not None else file.unlink()
        run.rt.wait_for_everyone()
        refused(f"{name}: {'its checksum is wrong' if content else 'it is missing'}", run.rt.load_state, folder)
    assert_same(weights_of(run), before)
    run.rt.wait_for_everyone()
    if run.rt.is_main_process:
        torch.save({"optimizer_state_dict": Hostile()}, file)
        checksums_again(folder / "step-0")
    run.rt.wait_for_everyone()
    refused("UnpicklingError: Weights only load failed", run.rt.load_state, folder, is_recorded=False)
    assert not (FOLDER / "has-run").exists()
    run.rt.wait_for_everyone()
    if run.rt.is_main_process:
        file.write_bytes(kept)
        checksums_again(folder / "step-0")
    run.rt.wait_for_everyone()


class Hostile:
    """Runs code when it is loaded."""

    def __reduce__(self):
        return Path.touch, (FOLDER / "has-run",)


def checksums_again(step):
    """Change the manifest as somebody who knows the format would: with the right checksums of everything."""
    manifest = json.loads((step / "manifest.json").read_text())
    for name in manifest["files"]:
        content = (step / name).read_bytes()
        manifest["files"][name] = {"bytes": len(content), "crc32": zlib.crc32(content)}
    content = json.dumps(manifest).encode()
    (step / "manifest.json").write_bytes(content)
    (step / "manifest.crc32").write_text(f"{len(content)} {zlib.crc32(content):08x}\n")


for case in sys.argv[2:]:
    name, _, argument = case.partition("=")
    globals()[name](int(argument))
    print("done", case, flush=True)
