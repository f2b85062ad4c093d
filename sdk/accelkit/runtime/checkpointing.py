"""Saving and loading everything that was prepared."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from accelkit.atomic_file import atomic_file
from accelkit.errors import CheckpointError, CollectiveError, PrepareError, UsageError
from accelkit.hook_manager import HookManager
from accelkit.plugin_calls import call
from accelkit.pytree import map_leaves
from accelkit.runtime import seeding
from accelkit.runtime.checkpoints.state_dict_keys import load_state_into, state_of
from accelkit.specs.accelerator import Accelerator
from accelkit.specs.precision import Precision
from accelkit.specs.strategy import Strategy

if TYPE_CHECKING:
    from accelkit.runtime.checkpoints.async_save import BackgroundSave
    from accelkit.runtime.checkpoints.coordinator import Ranks


class SavedState:
    """The part of a Runtime that is about checkpoints."""

    accelerator: Accelerator
    strategy: Strategy
    hooks: HookManager
    _modules: list[torch.nn.Module]
    _optimizers: list[torch.optim.Optimizer]
    _schedulers: list[LRScheduler]
    _loaders: list[Any]
    _custom: list[Any]
    _timeout: float
    _background: BackgroundSave | None = None

    if TYPE_CHECKING:

        @property
        def device(self) -> torch.device: ...
        @property
        def precision(self) -> Precision: ...
        @property
        def num_processes(self) -> int: ...
        @property
        def process_index(self) -> int: ...
        @property
        def is_main_process(self) -> bool: ...
        @property
        def is_local_main_process(self) -> bool: ...
        def _verify(self, name: str, payload: bytes = b"") -> Sequence[bytes]: ...
        def unwrap_model(
            self, model: torch.nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
        ) -> torch.nn.Module: ...

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Save and load these too: anything with ``state_dict`` and ``load_state_dict``.

        On several processes rank 0's state is saved, and every process gets it back.

        Raises:
            PrepareError: If an object lacks one of the two.
        """
        for thing in objects:
            lacking = [name for name in ("state_dict", "load_state_dict") if not callable(getattr(thing, name, None))]
            if lacking:
                kind = f"{type(thing).__module__}.{type(thing).__qualname__}"
                raise PrepareError(f"{kind} cannot be saved", why=f"it has no {' and no '.join(lacking)}", hint="give it both methods")
        self._custom += objects

    def save(self, obj: Any, f: str | Path) -> None:
        """``torch.save``, once per machine; the file appears whole or not at all.

        Tensors of a device without addresses (XLA's) are saved as the host's: others could not be loaded without it.
        """
        if not self.is_local_main_process:
            return
        from accelkit.runtime.checkpoints.state_codec import address_of

        def readable(leaf: Any) -> Any:
            has_memory = type(leaf) in (torch.Tensor, torch.nn.Parameter) and leaf.layout is torch.strided and not leaf.is_meta
            return leaf.cpu() if has_memory and not address_of(leaf) else leaf

        obj = map_leaves(readable, obj)
        target = Path(f)
        with atomic_file(target, writer=str(self.process_index)) as temporary:  # machines may share the folder
            torch.save(obj, temporary)

    def save_state(self, path: str | Path, *, is_async: bool = False, keep_last: int | None = None) -> Path:
        """Save models, optimizers, schedulers, loaders, registered objects and random state as the next step under ``path``.

        On several processes all call this, and ``path`` is a folder that all of them see. Each writes its shards and its random state.

        Args:
            path: The folder of all steps.
            is_async: Return when everything is copied to main memory; a thread writes it. The next save or load, ``wait_for_saves`` and
                the program's end wait for it, and raise its error (the program's end prints it).
            keep_last: How many steps to leave there, this one among them. Older ones are removed when this one is durable.

        Returns:
            The folder that was written, ``path/step-N``; it is durable when this returns, or with ``is_async`` when it is there.

        Raises:
            CheckpointError: On every process, if something in it could not be loaded safely again, or the disk refuses, or a process died.
            UsageError: If ``keep_last`` is less than 1.
        """
        from accelkit.runtime.checkpoints import checkpoint  # torch.distributed.checkpoint is slow to import

        if keep_last is not None and (isinstance(keep_last, bool) or keep_last < 1):
            raise UsageError(f"keep_last={keep_last!r}", why="the checkpoint being saved is kept", hint="give 1 or more, or None for all")
        self.wait_for_saves()
        ranks = self._ranks("save_state")
        parts, own = ranks.each(lambda error: self._blame("a state to save cannot be had", error), self._parts)
        saving = checkpoint.Save(Path(path), parts, per_rank=own, keep_last=keep_last, ranks=ranks)
        if not is_async:
            self._finish(saving)
            return saving.path
        saving.copy_to_host()
        if self._background is None:
            from accelkit.runtime.checkpoints.async_save import BackgroundSave

            self._background = BackgroundSave()
        self._background.start(lambda: self._finish(saving))
        return saving.path

    def wait_for_saves(self) -> None:
        """Return when no save is under way in the background.

        Raises:
            CheckpointError: If the last one failed. Earlier checkpoints are untouched.
        """
        if self._background is not None:
            self._background.wait()

    def load_state(self, path: str | Path) -> None:
        """Restore what ``save_state`` wrote, into the objects prepared in the same order.

        The number of processes and the strategy may be others than when it was saved: each process reads what its own shards need.
        Random state is each process's own; one for which none was saved derives its own, with a warning.

        Args:
            path: A step's folder, or the folder of all steps (then the latest).

        Raises:
            CheckpointError: On every process, if it is missing, damaged, or not of these objects. Nothing was restored then, except where
                an object itself refuses its state.
        """
        from accelkit.runtime.checkpoints import checkpoint
        from accelkit.runtime.checkpoints.target_sharding import layout_of

        self.wait_for_saves()
        ranks = self._ranks("load_state")
        targets = dict(self._saved())
        source, parts = checkpoint.load_with_source(Path(path), layout=layout_of(targets), ranks=ranks)
        ((origin, random_state),) = parts.pop("random_state").items()
        ((_, positions),) = parts.pop("loaders", {0: {}}).items()  # the first format has none
        if targets.keys() != parts.keys():
            absent, surplus = sorted(targets.keys() - parts.keys()), sorted(parts.keys() - targets.keys())
            reasons = [f"it has no {', '.join(absent)}"] if absent else []
            reasons += [f"nothing is prepared for {', '.join(surplus)}"] if surplus else []
            hint = "prepare the same objects in the same order, then load"
            raise CheckpointError(f"{source} was saved of other objects", why="; ".join(reasons), hint=hint)
        loaders = {name: loader for name, loader in self._saved_loaders() if name in positions}
        self._say_lost(positions.keys() - loaders.keys(), positions, source)
        targets, parts = loaders | targets, positions | parts  # loaders first: they can refuse
        ranks.each(lambda error: self._blame(f"{source} could not be restored", error), lambda: self._restore(targets, parts, source))
        seeding.restore(random_state, self.accelerator, self.device)
        if origin != self.process_index:
            self._derive_random_state(source)
        with self.hooks.naming_failures("checkpoint_loaded", f"everything was restored from {source} before it was called"):
            self.hooks.hook.checkpoint_loaded(path=source)

    def get_state_dict(self, model: torch.nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """The state dict of a prepared model. All processes call this.

        Returns:
            Of a model that is whole on each process: its own tensors, on every process. Of a sharded one: whole tensors in main
            memory on the main process, and nothing on the others. Names are the bare model's, with ``unwrap=False`` the wrapped one's.
        """
        from accelkit.runtime.checkpoints.safetensors_export import whole_state_dict

        with call(self.strategy, "whole_parameters", model):
            return whole_state_dict(self._bare(model) if unwrap else model, self._ranks("get_state_dict"))

    def save_model(
        self,
        model: torch.nn.Module,
        save_directory: str | Path,
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> None:
        """Write a model's weights for others, as ``model.safetensors``. All processes call this; the main process writes.

        Args:
            model: Prepared or not.
            save_directory: Made if missing.
            max_shard_size: More than this, in bytes or as ``"5GB"``, goes into several files and ``model.safetensors.index.json``.
            safe_serialization: False for ``pytorch_model.bin`` by ``torch.save``.

        Raises:
            CheckpointError: On every process, if the files cannot be written.
            UsageError: If ``max_shard_size`` is no size.
        """
        from accelkit.runtime.checkpoints.safetensors_export import save_weights

        ranks = self._ranks("save_model")
        with call(self.strategy, "whole_parameters", model):
            save_weights(self._bare(model), Path(save_directory), max_shard_size=max_shard_size, safe=safe_serialization, ranks=ranks)

    def _ranks(self, call: str) -> Ranks:
        """The processes of the job, once all have made this call.

        Raises:
            CheckpointError: On every process, if one makes another call, died, or does not come within the process group's time-out.
        """
        from accelkit.runtime.checkpoints.coordinator import Ranks

        _ = self.device  # the first use joins the process group
        if self.num_processes == 1:
            return Ranks()
        from accelkit.runtime.collectives import call_log

        try:
            self._verify(call)
        except CollectiveError as error:
            has_died = error.__cause__ is not None and not call_log.is_timeout(error.__cause__)
            if not (has_died and Ranks.has_group()):  # else they find out below which one died
                raise CheckpointError(error.what, why=error.why, hint=error.hint) from error
        return Ranks.of_job(self._timeout)

    def _bare(self, module: torch.nn.Module) -> torch.nn.Module:
        """The user's own module, whatever was wrapped around it in whatever order."""
        inner = self.unwrap_model(module, keep_torch_compile=False)
        return inner if inner is module else self._bare(inner)

    def _saved(self) -> Iterator[tuple[str, Any]]:
        """Everything that is saved, with its name in the checkpoint."""
        call(self.strategy, "check_state")
        for index, module in enumerate(self._modules):
            yield f"model_{index}", self._bare(module)
        kinds = (("optimizer", self._optimizers), ("scheduler", self._schedulers), ("custom", self._custom))
        for kind, things in kinds:
            for index, thing in enumerate(things):
                yield f"{kind}_{index}", thing
        yield "precision", self.precision

    def _parts(self) -> tuple[dict[str, Any], dict[str, Any]]:
        shared = {name: state_of(thing) for name, thing in self._saved()}
        loaders = {name: loader.state_dict() for name, loader in self._saved_loaders()}
        return shared, {"random_state": seeding.capture(self.accelerator, self.device), "loaders": loaders}

    def _saved_loaders(self) -> Iterator[tuple[str, Any]]:
        """Loaders, of which each process saves its own: what their order was drawn from may differ."""
        for index, loader in enumerate(self._loaders):
            yield f"loader_{index}", loader

    def _finish(self, saving: Any) -> None:
        written = saving.finish()
        if self.is_main_process:
            with self.hooks.naming_failures("checkpoint_saved", f"the checkpoint {written} is whole and on disk"):
                self.hooks.hook.checkpoint_saved(path=written)

    def _restore(self, targets: dict[str, Any], parts: dict[str, Any], source: Path) -> None:
        for name, thing in targets.items():
            try:
                load_state_into(thing, parts[name])
            except (RuntimeError, ValueError, KeyError) as error:
                why = " ".join(str(error).split())
                raise CheckpointError(f"{name} ({type(thing).__name__}) does not take its state from {source}", why=why) from error

    def _say_lost(self, names: Iterable[str], positions: dict[str, Any], source: Path) -> None:
        for name in sorted(names):
            if positions[name]["is_under_way"]:
                text = f"{source} was saved in the middle of an epoch of {name}, which is not prepared: its position is lost"
                warnings.warn(text, stacklevel=4)

    def _derive_random_state(self, source: Path) -> None:
        """Go on from another process's state, by a number of this process's own."""
        rank = self.process_index
        warnings.warn(
            f"{source} has no random state of rank {rank}, which did not save: a new one is derived, the same in every such run",
            stacklevel=3,
        )
        drawn = int(torch.empty((), dtype=torch.int64).random_(2**32).item())
        seed = (drawn << 16 ^ rank) % 2**63
        seeding.seed_host(seed)
        seeding.seed_device(seed, self.accelerator, self.device)

    def _blame(self, what: str, error: Exception) -> CheckpointError:
        return CheckpointError(what, why=f"{type(error).__name__}: {error}")
