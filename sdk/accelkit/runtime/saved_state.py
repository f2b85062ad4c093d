"""Saving and loading everything that was prepared."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from accelkit.errors import CheckpointError, PrepareError
from accelkit.hook_manager import HookManager
from accelkit.runtime import seeding
from accelkit.specs.accelerator import Accelerator
from accelkit.specs.precision import Precision


class SavedState:
    """The part of a Runtime that is about checkpoints."""

    accelerator: Accelerator
    hooks: HookManager
    _modules: list[torch.nn.Module]
    _optimizers: list[torch.optim.Optimizer]
    _schedulers: list[LRScheduler]
    _custom: list[Any]

    if TYPE_CHECKING:

        @property
        def device(self) -> torch.device: ...
        @property
        def precision(self) -> Precision: ...
        @property
        def is_local_main_process(self) -> bool: ...

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Save and load these too: anything with ``state_dict`` and ``load_state_dict``.

        Raises:
            PrepareError: If an object lacks one of the two.
        """
        for thing in objects:
            lacking = [name for name in ("state_dict", "load_state_dict") if not callable(getattr(thing, name, None))]
            if lacking:
                kind = f"{type(thing).__module__}.{type(thing).__qualname__}"
                raise PrepareError(f"{kind} cannot be saved", why=f"it has no {' and no '.join(lacking)}", hint="give it both methods")
        self._custom += objects

    def save(self, obj: Any, path: str | Path) -> None:
        """``torch.save``, once per machine; the file appears whole or not at all."""
        if not self.is_local_main_process:
            return
        target = Path(path)
        temporary = target.with_name(target.name + ".tmp")
        torch.save(obj, temporary)
        os.replace(temporary, target)

    def save_state(self, path: str | Path) -> Path:
        """Save models, optimizers, schedulers, registered objects and random state as the next step under ``path``.

        Returns:
            The folder that was written, ``path/step-N``; it is durable when this returns.

        Raises:
            CheckpointError: If something in it could not be loaded safely again, or the disk refuses.
        """
        from accelkit.runtime import checkpoint  # torch.distributed takes half a second to import

        parts = {name: thing.state_dict() for name, thing in self._saved()}
        parts["random_state"] = seeding.capture(self.accelerator, self.device)
        written = checkpoint.save(Path(path), parts)
        self.hooks.hook.checkpoint_saved(path=written)
        return written

    def load_state(self, path: str | Path) -> None:
        """Restore what ``save_state`` wrote, into the objects prepared in the same order.

        Args:
            path: A step's folder, or the folder of all steps (then the latest).

        Raises:
            CheckpointError: If it is missing, damaged, or not of these objects. Nothing was restored then, except where an
                object itself refuses its state.
        """
        from accelkit.runtime import checkpoint

        source = checkpoint.find(Path(path))
        parts = checkpoint.load(source)
        random_state = parts.pop("random_state")
        targets = dict(self._saved())
        if targets.keys() != parts.keys():
            absent, surplus = sorted(targets.keys() - parts.keys()), sorted(parts.keys() - targets.keys())
            reasons = [f"it has no {', '.join(absent)}"] if absent else []
            reasons += [f"nothing is prepared for {', '.join(surplus)}"] if surplus else []
            hint = "prepare the same objects in the same order, then load"
            raise CheckpointError(f"{source} was saved of other objects", why="; ".join(reasons), hint=hint)
        for name, thing in targets.items():
            try:
                thing.load_state_dict(parts[name])
            except (RuntimeError, ValueError, KeyError) as error:
                why = " ".join(str(error).split())
                raise CheckpointError(f"{name} ({type(thing).__name__}) does not take its state from {source}", why=why) from error
        seeding.restore(random_state, self.accelerator, self.device)
        self.hooks.hook.checkpoint_loaded(path=source)

    def _saved(self) -> Iterator[tuple[str, Any]]:
        """Everything that is saved, with its name in the checkpoint."""
        for index, module in enumerate(self._modules):
            yield f"model_{index}", getattr(module, "_orig_mod", module)
        for kind, things in (("optimizer", self._optimizers), ("scheduler", self._schedulers), ("custom", self._custom)):
            for index, thing in enumerate(things):
                yield f"{kind}_{index}", thing
        yield "precision", self.precision
