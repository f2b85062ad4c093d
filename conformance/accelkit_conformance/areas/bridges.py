"""Inside Lightning, Accelerate and transformers a model trains as in a plain loop on the CPU, and nothing leaves the device."""

from __future__ import annotations

import contextlib
import copy
import importlib
import os
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

from accelkit_conformance.checks import check
from accelkit_conformance.outcomes import NotSupported

if TYPE_CHECKING:
    import torch

    from accelkit_conformance.subject import Subject

# Lightning's name, Accelerate's name, and what of the device they need.
_PRECISIONS = {"32-true": ("no", "dtype.float32"), "bf16-mixed": ("bf16", "autocast.bfloat16"), "16-mixed": ("fp16", "autocast.float16")}
_BATCHES, _EPOCHS, _RATE = 4, 5, 0.1


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotSupported(f"{name} cannot be imported: {error}") from error


def _needs(subject: Subject, precision: str) -> str:
    """Accelerate's name of it.

    Raises:
        NotSupported: If the device does not declare it.
    """
    theirs, needed = _PRECISIONS[precision]
    if not subject.capabilities.can(needed):
        raise NotSupported(f"{subject.record.name} does not declare {needed}, which {precision} needs")
    return theirs


@contextlib.contextmanager
def _accelerate_of_its_own() -> Iterator[None]:
    """Accelerate keeps one state for a process; inside there is none yet, and none is left.

    Raises:
        NotSupported: If the bridge says that it does not do what is asked for.
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


def _loader() -> Any:
    """Four batches of eight rows, and the sum of each row."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    rows = torch.randn(8 * _BATCHES, 4, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True)), batch_size=8)


def _model() -> torch.nn.Module:
    import torch

    torch.default_generator.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def _loss(subject: Subject | None, model: Any, rows: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """The loss; everything that it is made of is on the subject's device, if there is a subject."""
    import torch

    result = model(rows)
    if subject is not None:
        subject.stays(rows, sums, result, *model.parameters())
    return torch.nn.functional.mse_loss(result.float(), sums)


def _check_trained(subject: Subject, trained: torch.nn.Module, precision: str) -> None:
    """In float32 the parameters are those of a plain loop on the CPU; in others the loss is. The scaler's first steps may be skipped."""
    import torch

    plain = _model()
    optimizer = torch.optim.SGD(plain.parameters(), lr=_RATE)
    for _ in range(_EPOCHS):
        for rows, sums in _loader():
            optimizer.zero_grad()
            _loss(None, plain, rows, sums).backward()
            optimizer.step()
    on_host = copy.deepcopy(trained).cpu().float()
    if precision == "32-true":
        for found, expected in zip(on_host.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    with torch.no_grad():
        untrained, theirs, mine = (sum(float(_loss(None, one, *batch)) for batch in _loader()) for one in (_model(), plain, on_host))
    assert abs(mine - theirs) < 0.1 * (untrained - theirs), (
        f"the loss went from {untrained:.3f} to {mine:.3f}, in a plain loop to {theirs:.3f}"
    )


def _lightning_module(subject: Subject, package: Any) -> Any:
    """A LightningModule that looks where its parameters, batches and gradients are."""
    import torch

    class Watched(package.LightningModule):  # type: ignore[misc] # it is what is installed
        def __init__(self) -> None:
            super().__init__()
            self.net = _model()
            self.num_steps = 0

        def training_step(self, batch: Any) -> torch.Tensor:
            return _loss(subject, self.net, *batch)

        def validation_step(self, batch: Any) -> None:
            self.log("loss", _loss(subject, self.net, *batch))

        test_step = validation_step

        def predict_step(self, batch: Any) -> torch.Tensor:
            subject.stays(*batch)
            result: torch.Tensor = self.net(batch[0])
            return result

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            subject.stays(*(parameter.grad for parameter in self.parameters()))
            self.num_steps += 1

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=_RATE)

    return Watched()


@check("full", over=list(_PRECISIONS), seconds=120)
def lightning_trainer(subject: Subject, precision: str) -> None:
    """``Trainer(**trainer_kwargs(...))`` fits, validates, tests and predicts on the device; a fit that was broken off and resumed from its
    checkpoint ends at the same weights."""
    import torch

    _needs(subject, precision)
    package = _import("lightning.pytorch")
    from accelkit.bridges.lightning import trainer_kwargs

    def trainer(folder: str, epochs: int) -> Any:
        kwargs = trainer_kwargs(subject.accelerator, devices=[subject.devices.index(subject.device)], precision=precision)
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
        return package.Trainer(**kwargs, **quiet, default_root_dir=folder, max_epochs=epochs)

    with tempfile.TemporaryDirectory() as folder:
        module, whole = _lightning_module(subject, package), trainer(folder, _EPOCHS)
        whole.fit(module, _loader(), _loader())
        assert module.num_steps == _EPOCHS * _BATCHES, f"{module.num_steps} steps were made"
        _check_trained(subject, module.net, precision)
        (validated,), (tested,) = whole.validate(module, _loader(), verbose=False), whole.test(module, _loader(), verbose=False)
        assert validated == tested, f"validation gave {validated}, testing the same data {tested}"
        assert len(whole.predict(module, _loader())) == _BATCHES

        first = trainer(folder, 2)
        first.fit(_lightning_module(subject, package), _loader())
        first.save_checkpoint(f"{folder}/broken-off.ckpt")
        resumed = _lightning_module(subject, package)
        trainer(folder, _EPOCHS).fit(resumed, _loader(), ckpt_path=f"{folder}/broken-off.ckpt")
        for mine, theirs in zip(resumed.parameters(), module.parameters(), strict=True):
            assert torch.equal(mine.cpu(), theirs.cpu()), "a resumed fit ended at other weights"


@check("full", over=list(_PRECISIONS), seconds=120)
def lightning_fabric(subject: Subject, precision: str) -> None:
    """``Fabric(**fabric_kwargs(...))`` trains a plain loop on the device."""
    import torch

    _needs(subject, precision)
    package = _import("lightning.fabric")
    from accelkit.bridges.lightning import fabric_kwargs

    fabric = package.Fabric(
        **fabric_kwargs(subject.accelerator, devices=[subject.devices.index(subject.device)], precision=precision, package="lightning")
    )
    model = _model()
    wrapped, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=_RATE))
    loader = fabric.setup_dataloaders(_loader())
    for _ in range(_EPOCHS):
        for batch in loader:
            optimizer.zero_grad()
            fabric.backward(_loss(subject, wrapped, *batch))
            subject.stays(*(parameter.grad for parameter in model.parameters() if parameter.grad is not None))
            optimizer.step()
    _check_trained(subject, model, precision)


@check("full", over=list(_PRECISIONS), seconds=120)
def accelerate_loop(subject: Subject, precision: str) -> None:
    """``accelerate.Accelerator`` trains on the device, and what it saved it loads."""
    import torch

    theirs = _needs(subject, precision)
    with tempfile.TemporaryDirectory() as folder, _accelerate_of_its_own():
        from accelkit.bridges.accelerate import accelerator

        one = accelerator(subject.accelerator, devices=[subject.devices.index(subject.device)], mixed_precision=theirs)
        model = _model()
        prepared, optimizer, loader = one.prepare(model, torch.optim.SGD(model.parameters(), lr=_RATE), _loader())
        for _ in range(_EPOCHS):
            for batch in loader:
                optimizer.zero_grad()
                one.backward(_loss(subject, prepared, *batch))
                subject.stays(*(parameter.grad for parameter in prepared.parameters()))
                optimizer.step()
        _check_trained(subject, one.unwrap_model(prepared), precision)
        one.save_state(folder)
        trained = copy.deepcopy([parameter.detach().cpu() for parameter in prepared.parameters()])
        with torch.no_grad():
            for parameter in prepared.parameters():
                parameter.zero_()
        one.load_state(folder)
        for mine, saved in zip(prepared.parameters(), trained, strict=True):
            subject.stays(mine)
            assert torch.equal(mine.cpu(), saved), "what was loaded is not what was saved"


@check("full", over=list(_PRECISIONS), seconds=120)
def transformers_trainer(subject: Subject, precision: str) -> None:
    """``transformers.Trainer``, which makes its own ``Accelerator``, trains a small randomly initialised GPT-2 on the device."""
    theirs = _needs(subject, precision)
    transformers = _import("transformers")
    with tempfile.TemporaryDirectory() as folder, _accelerate_of_its_own():
        from accelkit.bridges.accelerate import install

        install(subject.accelerator, devices=[subject.devices.index(subject.device)])
        # TrainingArguments(bf16=True) asks a list of devices; the variable is for all.
        with mock.patch.dict(os.environ, {"ACCELERATE_MIXED_PRECISION": theirs}):
            trainer = _gpt2_trainer(transformers, folder)
        assert trainer.accelerator.mixed_precision == theirs
        assert trainer.args.device == subject.device, f"transformers chose {trainer.args.device}"
        trainer.train()
        subject.stays(*trainer.model.parameters())
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        assert losses[-1] < 0.7 * losses[0], f"the loss went from {losses[0]} to {losses[-1]}"


def _gpt2_trainer(transformers: Any, folder: str) -> Any:
    """A Trainer of a model that learns to count."""
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
