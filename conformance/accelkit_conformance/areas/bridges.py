"""Lightning, Accelerate and transformers train models on the device. A model trained with Lightning or Accelerate matches one that a plain
loop trains on the CPU."""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

from accelkit.discovery import subprocess_env
from accelkit_conformance.checks import check
from accelkit_conformance.results import NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

# Maps Lightning's name of each precision to Accelerate's name and to the capability that the precision needs.
_PRECISIONS = {"32-true": ("no", "dtype.float32"), "bf16-mixed": ("bf16", "autocast.bfloat16"), "16-mixed": ("fp16", "autocast.float16")}
_PACKAGES = {"trainer": "lightning.pytorch", "fabric": "lightning.fabric", "accelerate": "accelerate"}


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotSupported(f"{name} cannot be imported: {error}") from error


def _needs(subject: Subject, precision: str) -> str:
    """Check that the device declares the capability that a precision needs, and return Accelerate's name for the precision.

    Raises:
        NotSupported: If the device does not declare the capability that the precision needs.
    """
    theirs, needed = _PRECISIONS[precision]
    if not subject.capabilities.can(needed):
        raise NotSupported(f"{subject.record.name} does not declare {needed}, which {precision} needs")
    return theirs


def _index(subject: Subject) -> list[int]:
    return [subject.devices.index(subject.device)]


@contextlib.contextmanager
def _accelerate_of_its_own() -> Iterator[None]:
    """Context manager that removes Accelerate's ``AcceleratorState`` before and after the block.

    Accelerate keeps one ``AcceleratorState`` for the whole process, with the settings of the first ``accelerate.Accelerator``. After the
    removal of this state, an ``Accelerator`` with other settings can be created.

    Raises:
        NotSupported: If Accelerate cannot be imported, or if the block raises UnsupportedError.
    """
    state = _import("accelerate.state").AcceleratorState
    from accelkit import UnsupportedError
    from accelkit.bridges.accelerate import uninstall

    state._reset_state(reset_partial_state=True)
    try:
        yield
    except UnsupportedError as error:
        raise NotSupported(str(error)) from error
    finally:
        uninstall()
        state._reset_state(reset_partial_state=True)


@check("full", over=list(_PRECISIONS), seconds=120)
def lightning_trainer(subject: Subject, precision: str) -> None:
    """``Trainer(**trainer_kwargs(...))`` trains on the device as a plain loop does on the CPU. ``validate`` and ``test`` with the same
    data give equal metrics, and ``predict`` gives a prediction for every batch. A fit that is resumed from a checkpoint ends with the same
    weights as an uninterrupted fit."""
    import torch

    _needs(subject, precision)
    package = _import("lightning.pytorch")
    from accelkit.bridges.lightning import trainer_kwargs
    from accelkit_conformance.oracle.bridge_training import BATCHES, EPOCHS, QUIET, check_trained, make_lightning_module, make_loader

    def trainer(folder: str, epochs: int) -> Any:
        kwargs = trainer_kwargs(subject.accelerator, devices=_index(subject), precision=precision, package="lightning")
        return package.Trainer(**kwargs, **QUIET, default_root_dir=folder, max_epochs=epochs)

    with tempfile.TemporaryDirectory() as folder:
        module, whole = make_lightning_module(package, subject.device), trainer(folder, EPOCHS)
        whole.fit(module, make_loader(), make_loader())
        assert module.num_steps == EPOCHS * BATCHES, f"{module.num_steps} steps were run"
        check_trained(module.net, is_exact=precision == "32-true")
        (validated,), (tested,) = whole.validate(module, make_loader(), verbose=False), whole.test(module, make_loader(), verbose=False)
        assert validated == tested, f"validation gave {validated}, but testing on the same data gave {tested}"
        assert len(whole.predict(module, make_loader())) == BATCHES

        first = trainer(folder, 2)
        first.fit(make_lightning_module(package, subject.device), make_loader())
        first.save_checkpoint(f"{folder}/broken-off.ckpt")
        resumed = make_lightning_module(package, subject.device)
        trainer(folder, EPOCHS).fit(resumed, make_loader(), ckpt_path=f"{folder}/broken-off.ckpt")
        for mine, theirs in zip(resumed.parameters(), module.parameters(), strict=True):
            assert torch.equal(mine.cpu(), theirs.cpu()), "a resumed fit ended with different weights"


@check("full", over=list(_PRECISIONS), seconds=120)
def lightning_fabric(subject: Subject, precision: str) -> None:
    """A loop with ``Fabric(**fabric_kwargs(...))`` trains on the device as a plain loop does on the CPU."""
    _needs(subject, precision)
    package = _import("lightning.fabric")
    from accelkit.bridges.lightning import fabric_kwargs
    from accelkit_conformance.oracle.bridge_training import check_trained, train_with_fabric

    fabric = package.Fabric(**fabric_kwargs(subject.accelerator, devices=_index(subject), precision=precision, package="lightning"))
    check_trained(train_with_fabric(fabric, subject.device), is_exact=precision == "32-true")


@check("full", over=list(_PRECISIONS), seconds=120)
def accelerate_loop(subject: Subject, precision: str) -> None:
    """A loop with ``accelerate.Accelerator`` trains on the device as a plain loop does on the CPU. ``load_state`` restores the parameters
    that ``save_state`` saved."""
    import torch

    theirs = _needs(subject, precision)
    with tempfile.TemporaryDirectory() as folder, _accelerate_of_its_own():
        from accelkit.bridges.accelerate import accelerator
        from accelkit_conformance.oracle.bridge_training import check_trained, train_with_accelerate

        one = accelerator(subject.accelerator, devices=_index(subject), mixed_precision=theirs)
        prepared = train_with_accelerate(one, subject.device)
        check_trained(one.unwrap_model(prepared), is_exact=precision == "32-true")
        one.save_state(folder)
        trained = [parameter.detach().cpu().clone() for parameter in prepared.parameters()]
        with torch.no_grad():
            for parameter in prepared.parameters():
                parameter.zero_()
        one.load_state(folder)
        for mine, saved in zip(prepared.parameters(), trained, strict=True):
            subject.assert_on_device(mine)
            assert torch.equal(mine.cpu(), saved), "what was loaded is not what was saved"


@check("full", over=list(_PRECISIONS), seconds=120)
def transformers_trainer(subject: Subject, precision: str) -> None:
    """``transformers.Trainer``, which creates its own ``Accelerator``, trains a small GPT-2 on the device in the tested precision. The last
    loss is below 70 % of the first loss, and the trained parameters are on the device."""
    theirs = _needs(subject, precision)
    transformers = _import("transformers")
    with tempfile.TemporaryDirectory() as folder, _accelerate_of_its_own():
        from accelkit.bridges.accelerate import install

        install(subject.accelerator, devices=_index(subject))
        # TrainingArguments(bf16=True) accepts only a fixed list of devices; the variable works for all devices.
        with mock.patch.dict(os.environ, {"ACCELERATE_MIXED_PRECISION": theirs}):
            trainer = _gpt2_trainer(transformers, folder)
        assert trainer.accelerator.mixed_precision == theirs
        assert trainer.args.device == subject.device, f"transformers chose {trainer.args.device}"
        trainer.train()
        subject.assert_on_device(*trainer.model.parameters())
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        assert losses[-1] < 0.7 * losses[0], f"the loss went from {losses[0]} to {losses[-1]}"


def _gpt2_trainer(transformers: Any, folder: str) -> Any:
    """Return a Trainer for a small GPT-2 that learns to count."""
    import torch

    rows = [(torch.arange(8) + index) % 32 for index in range(64)]
    torch.default_generator.manual_seed(0)
    arguments = transformers.TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=8,
        num_train_epochs=3,
        learning_rate=0.02,
        lr_scheduler_type="constant",
        save_strategy="no",
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    config = transformers.GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2)
    dataset: Any = [{"input_ids": row, "labels": row} for row in rows]
    return transformers.Trainer(transformers.GPT2LMHeadModel(config), arguments, train_dataset=dataset)


@check("full", requires=["process_group"], over=list(_PACKAGES), seconds=240)
def ddp_on_two_devices(subject: Subject, framework: str) -> None:
    """``accelkit launch`` starts two processes, each with its own device (unless the device is the CPU). The two processes train a model
    with the framework's DDP. In each process, the batches, parameters and gradients are on the device of the process. After training, the
    parameters match those of a model that a plain loop trains on the CPU. Each batch of the plain loop contains the samples that the two
    processes together use for one step."""
    _import(_PACKAGES[framework])
    from accelkit_conformance.oracle.bridge_training import UNSUPPORTED

    if subject.device_type != "cpu":
        subject.second_device()
    name = subject.record.qualified_name
    command = [*subprocess_env.command("accelkit"), "launch", "--accelerator", name, "--devices", "2"]
    command += ["-m", "accelkit_conformance.oracle.bridge_training", framework, name]
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=200)
    assert result.returncode == 0, f"the job ended with {result.returncode}: {result.stderr[-3000:]}"
    if UNSUPPORTED in result.stdout:
        raise NotSupported(result.stdout.partition(UNSUPPORTED)[2])
    assert result.stdout.count("trained") == 2, result.stdout
