"""Fabric, Accelerate and Trainer on an accelerator: directly if they support it themselves, and otherwise through accelkit's bridges."""

from __future__ import annotations

from typing import Any

THEY_KNOW = ("cpu", "cuda")
_MIXED = {"32-true": "no", "bf16-mixed": "bf16", "16-mixed": "fp16"}


def fabric(accelerator: str, precision: str = "32-true", **given: Any) -> Any:
    """Return a ``lightning.fabric.Fabric`` on one device. ``given`` are its other arguments."""
    from lightning.fabric import Fabric

    if accelerator in THEY_KNOW:
        return Fabric(accelerator=accelerator, devices=1, precision=precision, **given)
    from accelkit.bridges.lightning import fabric_kwargs

    return Fabric(**fabric_kwargs(accelerator, devices=1, precision=precision), **given)


def trainer(accelerator: str, precision: str = "32-true", **given: Any) -> Any:
    """Return a ``lightning.pytorch.Trainer`` on one device. ``given`` are its other arguments."""
    from lightning.pytorch import Trainer

    if accelerator in THEY_KNOW:
        return Trainer(accelerator=accelerator, devices=1, precision=precision, **given)
    from accelkit.bridges.lightning import trainer_kwargs

    return Trainer(**trainer_kwargs(accelerator, devices=1, precision=precision, package="lightning"), **given)


def accelerate(accelerator: str, precision: str = "32-true", **given: Any) -> Any:
    """Return an ``accelerate.Accelerator`` without the state of an earlier one. ``given`` are its other arguments."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state()
    if accelerator in THEY_KNOW:
        return Accelerator(cpu=accelerator == "cpu", mixed_precision=_MIXED[precision], **given)
    from accelkit.bridges.accelerate import accelerator as bridged

    return bridged(accelerator, mixed_precision=_MIXED[precision], **given)
