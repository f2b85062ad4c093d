"""Checkpoints: saving and loading the state of all prepared objects."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from accelkit.atomic_file import atomic_file
from accelkit.errors import CheckpointError, CollectiveError, PrepareError, UsageError
from accelkit.plugin_calls import call
from accelkit.plugin_manager import PluginManager
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
    """The part of a Runtime that saves and loads checkpoints."""

    accelerator: Accelerator
    strategy: Strategy
    plugin_manager: PluginManager
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
        """Register objects that are saved and loaded as well: anything with ``state_dict`` and ``load_state_dict``.

        With several processes, the state of rank 0 is saved, and every process loads it.

        Raises:
            PrepareError: If an object lacks one of the two methods.
        """
        for thing in objects:
            lacking = [name for name in ("state_dict", "load_state_dict") if not callable(getattr(thing, name, None))]
            if lacking:
                kind = f"{type(thing).__module__}.{type(thing).__qualname__}"
                raise PrepareError(f"{kind} cannot be saved", why=f"it has no {' and no '.join(lacking)}", hint="give it both methods")
        self._custom += objects

    def save(self, obj: Any, f: str | Path) -> None:
        """Call ``torch.save`` once per machine. The file is written atomically: it is complete or does not exist.

        Tensors on a device without memory addresses (XLA) are saved as host tensors, because otherwise loading them would need that device.
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

        All processes call this. ``path`` is a folder that all of them can access. Each process writes its shards and its random state.

        Args:
            path: The folder that contains all steps.
            is_async: Whether to return once everything is copied to main memory, while a thread writes it. The next save or load,
                ``wait_for_saves`` and the end of the program wait for the thread and raise its error (the end of the program prints it).
            keep_last: The number of steps to keep, including this one. Older steps are removed once this one is durable.

        Returns:
            The folder that was written, ``path/step-N``. It is durable on return, or with ``is_async`` as soon as it exists.

        Raises:
            CheckpointError: On every process, if some state could not be loaded again safely, writing failed, or a process died.
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
        """Wait until no save is running in the background.

        Raises:
            CheckpointError: If the last save failed. Earlier checkpoints are untouched.
        """
        if self._background is not None:
            self._background.wait()

    def load_state(self, path: str | Path) -> None:
        """Load a checkpoint of ``save_state`` into objects that were prepared in the same order.

        The number of processes and the strategy may differ from those at saving: each process reads what its own shards need.
        Each process restores its own random state. A process without saved random state derives a new one and warns.

        Args:
            path: The folder of a step, or the folder that contains all steps (then the latest step is loaded).

        Raises:
            CheckpointError: On every process, if the checkpoint is missing, damaged, or of other objects. Nothing has been restored then,
                unless the cause is that an object rejected its state.
        """
        from accelkit.runtime.checkpoints import checkpoint
        from accelkit.runtime.checkpoints.target_sharding import layout_of

        self.wait_for_saves()
        ranks = self._ranks("load_state")
        targets = dict(self._saved())
        source, parts = checkpoint.load_with_source(Path(path), layout=layout_of(targets), ranks=ranks)
        ((origin, random_state),) = parts.pop("random_state").items()
        ((_, positions),) = parts.pop("loaders", {0: {}}).items()  # the first checkpoint format has no loaders
        if targets.keys() != parts.keys():
            absent, surplus = sorted(targets.keys() - parts.keys()), sorted(parts.keys() - targets.keys())
            reasons = [f"it has no {', '.join(absent)}"] if absent else []
            reasons += [f"nothing is prepared for {', '.join(surplus)}"] if surplus else []
            hint = "prepare the same objects in the same order, then load"
            raise CheckpointError(f"{source} was saved of other objects", why="; ".join(reasons), hint=hint)
        loaders = {name: loader for name, loader in self._saved_loaders() if name in positions}
        self._say_lost(positions.keys() - loaders.keys(), positions, source)
        targets, parts = loaders | targets, positions | parts  # loaders first, because they can reject their state
        ranks.each(lambda error: self._blame(f"{source} could not be restored", error), lambda: self._restore(targets, parts, source))
        seeding.restore(random_state, self.accelerator, self.device)
        if origin != self.process_index:
            self._derive_random_state(source)
        with self.plugin_manager.naming_failures("checkpoint_loaded", f"everything was restored from {source} before it was called"):
            self.plugin_manager.hook.checkpoint_loaded(path=source)

    def get_state_dict(self, model: torch.nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """Return the state dict of a prepared model. All processes call this.

        Returns:
            If each process has the whole model: the model's own tensors, on every process. If the model is sharded: whole tensors in main
            memory on the main process, and nothing on the others. Names are those of the bare model, or with ``unwrap=False`` of the
            wrapped one.
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
        """Export the weights of a model as ``model.safetensors``. All processes call this; the main process writes.

        Args:
            model: The model, prepared or not.
            save_directory: The folder to write to. It is created if it does not exist.
            max_shard_size: The maximum file size, in bytes or as ``"5GB"``. Larger models are split into several files with a
                ``model.safetensors.index.json``.
            safe_serialization: Whether to write safetensors. If False, ``torch.save`` writes ``pytorch_model.bin``.

        Raises:
            CheckpointError: On every process, if the files cannot be written.
            UsageError: If ``max_shard_size`` is not a valid size.
        """
        from accelkit.runtime.checkpoints.safetensors_export import save_weights

        ranks = self._ranks("save_model")
        with call(self.strategy, "whole_parameters", model):
            save_weights(self._bare(model), Path(save_directory), max_shard_size=max_shard_size, safe=safe_serialization, ranks=ranks)

    def _ranks(self, call: str) -> Ranks:
        """Return the processes of the job, once all of them have made this call.

        Raises:
            CheckpointError: On every process, if a process makes another call, died, or exceeds the timeout of the process group.
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
            if not (has_died and Ranks.has_group()):  # otherwise Ranks finds out below which process died
                raise CheckpointError(error.what, why=error.why, hint=error.hint) from error
        return Ranks.of_job(self._timeout)

    def _bare(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return the user's own module without any wrappers, regardless of their order."""
        inner = self.unwrap_model(module, keep_torch_compile=False)
        return inner if inner is module else self._bare(inner)

    def _saved(self) -> Iterator[tuple[str, Any]]:
        """Yield each object whose state is saved, with its name in the checkpoint."""
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
        """Yield the loaders. Each process saves its own state, because the generators that draw their order may differ."""
        for index, loader in enumerate(self._loaders):
            yield f"loader_{index}", loader

    def _finish(self, saving: Any) -> None:
        written = saving.finish()
        if self.is_main_process:
            with self.plugin_manager.naming_failures("checkpoint_saved", f"the checkpoint {written} is whole and on disk"):
                self.plugin_manager.hook.checkpoint_saved(path=written)

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
        """Seed the generators from the restored state of another process and this process's rank."""
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
