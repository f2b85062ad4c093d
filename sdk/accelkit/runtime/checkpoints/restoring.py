"""Restore the loaded parts of a checkpoint into the objects that were prepared."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from accelkit.errors import CheckpointError, message_in_one_line
from accelkit.runtime.checkpoints.mapped_tensors import copy_mapped
from accelkit.runtime.checkpoints.state_dict_keys import load_state_into

if TYPE_CHECKING:
    from accelkit.runtime.checkpoints.unverified_tensors import UnverifiedTensors


def check_objects(prepared: Iterable[str], saved: Iterable[str], source: Path) -> None:
    """Check that the prepared objects and the saved objects have the same names.

    Args:
        prepared: The names that a checkpoint of the prepared objects would contain.
        saved: The names that the checkpoint in ``source`` contains.
        source: The folder of the checkpoint.

    Raises:
        CheckpointError: If a prepared object was not saved, or if a saved object is not prepared.
    """
    absent, surplus = sorted(set(prepared) - set(saved)), sorted(set(saved) - set(prepared))
    reasons = [f"it has no {', '.join(absent)}"] if absent else []
    reasons += [f"nothing is prepared for {', '.join(surplus)}"] if surplus else []
    if reasons:
        hint = "prepare the same objects in the same order, then load"
        raise CheckpointError(f"{source} was saved with other objects", why="; ".join(reasons), hint=hint)


def class_names(objects: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the classes of the optimizers and schedulers among ``objects``, by the name of the object.

    If ``prepare`` has replaced the class of an object with a subclass, the name is still that of the user's class.
    """
    kinds = (torch.optim.Optimizer, LRScheduler)
    return {name: f"{type(thing).__module__}.{type(thing).__qualname__}" for name, thing in objects.items() if isinstance(thing, kinds)}


def check_classes(prepared: Mapping[str, str], saved: Mapping[str, str], source: Path) -> None:
    """Check that optimizers and schedulers have the classes that they had when they were saved.

    Otherwise, they would silently adopt settings and attributes of the other class, or fail in their first step.

    Args:
        prepared: What ``class_names`` returns for the prepared objects.
        saved: What it returned for the saved objects. Empty if an older version of accelkit saved them.
        source: The folder of the checkpoint.

    Raises:
        CheckpointError: If a class has another name, or if only one of two classes of the same name is torch's. The modules of
            other classes are not compared, because a program may move its classes.
    """
    for name in prepared.keys() & saved.keys():
        own, other = prepared[name], saved[name]
        if own.rpartition(".")[2] != other.rpartition(".")[2] or own.startswith("torch.") != other.startswith("torch."):
            kind = name.partition("_")[0]
            raise CheckpointError(
                f"the class of {name} differs from the class in {source}",
                why=f"its class is {own}, and the class of the saved {kind} is {other}",
                hint=f"prepare the class that was saved; to go on with another {kind}, load the checkpoint with the old one, "
                "export the weights with rt.save_model, and load them into the model of a new run",
            )


def warn_of_lost_positions(names: Iterable[str], positions: Mapping[str, Any], source: Path) -> None:
    """Warn about each loader whose position is lost, because the loader was saved in the middle of an epoch and is not prepared now.

    Args:
        names: The names of all loaders that were saved but are not prepared.
        positions: The saved state of each loader, by name.
        source: The folder of the checkpoint.
    """
    for name in sorted(names):
        if positions[name]["is_under_way"]:
            text = f"{source} was saved in the middle of an epoch of {name}, which is not prepared, so its position is lost"
            warnings.warn(text, stacklevel=4)


def restore(targets: Mapping[str, Any], parts: Mapping[str, Any], source: Path, unverified: UnverifiedTensors | None) -> None:
    """Load the saved states into the targets, in the order of ``targets``.

    Args:
        targets: The prepared objects, by their names in the checkpoint.
        parts: The saved states, by the same names.
        source: The folder of the checkpoint.
        unverified: The tensors of the checkpoint that have not been verified yet. None if the whole checkpoint was verified.

    Raises:
        CheckpointError: If a target rejects its state. If the checkpoint is damaged, the error reports the damage instead of the
            rejection.
        BrokenPluginError: If a third-party precision fails to load its state.
    """
    for name, thing in targets.items():
        try:
            load_state_into(thing, parts[name])
            if isinstance(thing, torch.optim.Optimizer):
                copy_mapped(thing)
        except (RuntimeError, ValueError, KeyError) as error:
            if unverified is not None:
                unverified.wait_for_all()  # damage explains any other error
            what = f"{name} ({type(thing).__name__}) rejects its state from {source}"
            same = "the same names and sizes of parameters" if name.startswith(("model", "optimizer")) else "the same structure"
            hint = f"prepare the object as it was when the checkpoint was saved, with {same}"
            raise CheckpointError(what, why=message_in_one_line(error), hint=hint) from error
