"""Checkpoints: saving and loading the state of all prepared objects."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from accelkit.atomic_file import atomic_file
from accelkit.errors import CheckpointError, CollectiveError, PrepareError, UsageError
from accelkit.plugin_calls import call
from accelkit.pytree import tree_leaves, tree_map
from accelkit.runtime import seeding
from accelkit.runtime.argument_checks import check_model
from accelkit.runtime.checkpoints.restoring import check_classes, check_objects, class_names, restore, warn_of_lost_positions
from accelkit.runtime.checkpoints.state_dict_keys import state_of
from accelkit.runtime.collectives.collectives import Collectives
from accelkit.runtime.preparation import PreparedObjects, user_module
from accelkit.runtime.rank_info import RankInfo
from accelkit.runtime.session import Session
from accelkit.specs.engine_strategy import EngineStrategy
from accelkit.tracking.trackers import Trackers

if TYPE_CHECKING:
    from accelkit.runtime.checkpoints.async_save import BackgroundSave
    from accelkit.runtime.checkpoints.checkpoint import Save
    from accelkit.runtime.checkpoints.coordinator import Ranks
    from accelkit.runtime.checkpoints.unverified_tensors import UnverifiedTensors


class Checkpointing:
    """Saving and loading the state of prepared and registered objects. Most methods are documented in ``Runtime``.

    Args:
        session: The session, which has the selected plugins, the precision, and the device, whose random state is saved too.
        rank_info: The ranks of this process, and the number of processes in the job.
        collectives: The collectives of the job. The processes use them to check that all processes have called the same method.
        objects: The prepared and registered objects.
        trackers: The trackers. A checkpoint records the next step to log, and the state of each tracker.
        timeout: The longest time to wait for the other processes, in seconds.
    """

    def __init__(
        self,
        session: Session,
        rank_info: RankInfo,
        collectives: Collectives,
        objects: PreparedObjects,
        trackers: Trackers,
        *,
        timeout: float,
    ) -> None:
        self._session = session
        self._rank_info = rank_info
        self._collectives = collectives
        self._objects = objects
        self._trackers = trackers
        self._timeout = timeout
        self._strategy = session.configuration.strategy
        self._accelerator = session.configuration.accelerator
        self._plugin_manager = session.configuration.plugin_manager
        self._background: BackgroundSave | None = None
        self._unverified: UnverifiedTensors | None = None
        self._has_warned = False

    def register(self, objects: Iterable[Any]) -> None:
        """See ``Runtime.register_for_checkpointing``."""
        for thing in objects:
            lacking = [name for name in ("state_dict", "load_state_dict") if not callable(getattr(thing, name, None))]
            if lacking:
                kind = f"{type(thing).__module__}.{type(thing).__qualname__}"
                raise PrepareError(f"{kind} cannot be saved", why=f"it has no {' and no '.join(lacking)}", hint="give it both methods")
        self._objects.registered += objects

    def save(self, obj: Any, file: Path) -> None:
        """See ``Runtime.save``."""
        if not self._rank_info.is_local_main_process:
            return
        from accelkit.runtime.addresses import address_of

        def readable(leaf: Any) -> Any:
            has_memory = type(leaf) in (torch.Tensor, torch.nn.Parameter) and leaf.layout is torch.strided and not leaf.is_meta
            return leaf.cpu() if has_memory and not address_of(leaf) else leaf

        obj = tree_map(readable, obj)
        with atomic_file(file, writer=str(self._rank_info.process_index)) as temporary:  # machines may share the folder
            torch.save(obj, temporary)

    def save_state(self, path: Path, *, is_async: bool, keep_last: int | None) -> Path:
        """See ``Runtime.save_state``."""
        from accelkit.runtime.checkpoints import checkpoint, engine_files  # torch.distributed.checkpoint is slow to import

        if keep_last is not None and (isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < 1):
            raise UsageError(
                f"keep_last must be a whole number of at least 1, got {keep_last!r:.80}",
                why="the checkpoint that is being saved is always kept",
                hint="give 1 or more, or None to keep all checkpoints",
            )
        if self._objects.is_empty():
            raise UsageError(
                "there is nothing to save",
                why="nothing was passed to rt.prepare or rt.register_for_checkpointing of this Runtime",
                hint="call model, optimizer = rt.prepare(model, optimizer) before save_state",
            )
        if is_async and engine_files.saver_of(self._strategy):
            engine_files.refuse_background(self._strategy)
        self.wait_for_saves()
        ranks = self.ranks("save_state")
        self._verify_loaded(ranks)  # so that no damaged state is saved
        parts, own, classes = ranks.each(_failure("the state of an object could not be read"), self._states)
        saving = checkpoint.Save(path, parts, per_rank=own, keep_last=keep_last, ranks=ranks, engines=self._engines(), classes=classes)
        self._warn_without_model(parts)
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
        """Wait until all background saves are complete. See ``Runtime.wait_for_saves``."""
        if self._background is not None:
            self._background.wait()

    def close(self) -> None:
        """Wait until all background saves are complete and the loaded checkpoint has been verified.

        Raises:
            CheckpointError: If the last save failed, or if the loaded checkpoint is damaged. A problem that an earlier error has reported
                is not reported again.
        """
        self.wait_for_saves()
        unverified, self._unverified = self._unverified, None
        if unverified is not None:
            unverified.close()

    def _verify_loaded(self, ranks: Ranks) -> None:
        """Wait until the loaded checkpoint has been verified. If it is damaged, raise CheckpointError on every process."""
        if self._unverified is not None:
            ranks.each(_failure("what was loaded could not be verified"), self._unverified.wait_for_all)

    def has_checkpoint(self, path: Path) -> bool:
        """Return whether ``path``, as rank 0 sees it, is or contains a checkpoint.

        All processes must call this together. They all get the same result.

        Raises:
            CheckpointError: If rank 0 cannot read ``path``, or for one of the reasons given in the docstring of the method ``ranks``.
        """
        from accelkit.runtime.checkpoints import step_dirs  # torch.distributed.checkpoint is slow to import

        return self.ranks("resume").from_main(_failure(f"{path} could not be read"), lambda: step_dirs.has_any(path))

    def load_state(self, path: Path, verify: str = "full") -> None:
        """See ``Runtime.load_state``."""
        from accelkit.runtime.checkpoints import checkpoint, engine_files
        from accelkit.runtime.checkpoints.mapped_tensors import copied_kinds
        from accelkit.runtime.checkpoints.target_sharding import is_sharded, layout_of

        if verify not in ("full", "lazy"):
            why = "a checkpoint is verified before it is restored, or before its tensors are used"
            raise UsageError(f"verify must be 'full' or 'lazy', got {verify!r}", why=why, hint="leave it out, or use verify='lazy'")
        self.wait_for_saves()
        ranks = self.ranks("load_state")
        targets = self._engines() | dict(self._saved_objects())
        classes, copied = class_names(targets), copied_kinds(targets)

        def check_job(step: Path, manifest: Mapping[str, Any]) -> None:
            engine_files.check_saver(step, next(iter(manifest["engines"].values()), ""), self._strategy)
            check_classes(classes, manifest["classes"], step)

        unverified: UnverifiedTensors | None = None
        if verify == "lazy" and not is_sharded(targets) and not engine_files.saver_of(self._strategy):
            source, parts, unverified = checkpoint.load_unverified(path, ranks=ranks, check_job=check_job, copied=copied)
        else:
            layout = layout_of(targets)
            source, parts = checkpoint.load_with_source(path, layout=layout, ranks=ranks, check_job=check_job, copied=copied)
        ((origin, random_state),) = parts.pop("random_state").items()
        ((_, positions),) = parts.pop("loaders", {0: {}}).items()  # the first checkpoint format has no loaders
        ((_, tracking),) = parts.pop("trackers", {0: {}}).items()
        check_objects(targets, parts, source)
        loaders = {name: loader for name, loader in self._saved_loaders() if name in positions}
        warn_of_lost_positions(positions.keys() - loaders.keys(), positions, source)
        targets, parts = loaders | targets, positions | parts  # loaders first, because they can reject their state
        self._restore(targets, parts, source, unverified, ranks)
        seeding.restore(random_state, self._accelerator, self._session.device)
        if origin != self._rank_info.data_parallel_index:
            self._derive_random_state(source)
        self._trackers.load_state(tracking)
        with self._plugin_manager.naming_failures("checkpoint_loaded", f"everything was restored from {source} before it was called"):
            self._plugin_manager.hook.checkpoint_loaded(path=source)

    def get_state_dict(self, model: torch.nn.Module, unwrap: bool) -> dict[str, Any]:
        """See ``Runtime.get_state_dict``."""
        from accelkit.runtime.checkpoints.safetensors_export import whole_state_dict

        check_model(model, "get_state_dict")
        ranks = self.ranks("get_state_dict")
        self._verify_loaded(ranks)
        with call(self._strategy, "whole_parameters", model):
            return whole_state_dict(user_module(model, self._strategy) if unwrap else model, ranks)

    def save_model(self, model: torch.nn.Module, folder: Path, max_shard_size: int | str, safe_serialization: bool) -> None:
        """See ``Runtime.save_model``."""
        from accelkit.runtime.checkpoints.safetensors_export import save_weights

        check_model(model, "save_model")
        ranks = self.ranks("save_model")
        self._verify_loaded(ranks)
        with call(self._strategy, "whole_parameters", model):
            save_weights(user_module(model, self._strategy), folder, max_shard_size=max_shard_size, safe=safe_serialization, ranks=ranks)

    def ranks(self, call: str) -> Ranks:
        """Wait until every process of the job has made the call that ``call`` names, and return a ``Ranks`` of these processes.

        Raises:
            CheckpointError: If a process makes a different call, if a process makes no call before the process group's timeout, or if a
                process has died and the separate process group of ``Ranks`` does not exist yet. If a process has died and that group
                already exists, this method returns a ``Ranks``, whose methods raise the error about the dead process.
        """
        from accelkit.runtime.checkpoints.coordinator import Ranks

        _ = self._session.device  # the first use of the device joins the process group
        if self._rank_info.num_processes == 1:
            return Ranks()
        from accelkit.runtime.collectives import desync_report

        try:
            self._collectives.verify(call)
        except CollectiveError as error:
            has_died = error.__cause__ is not None and not desync_report.is_timeout(error.__cause__)
            if not (has_died and Ranks.has_group()):  # otherwise, the returned Ranks reports which process died
                raise CheckpointError(error.what, why=error.why, hint=error.hint) from error
        return Ranks.of_job(self._timeout, self._rank_info.data_parallel_size)

    def _restore(
        self, targets: dict[str, Any], parts: dict[str, Any], source: Path, unverified: UnverifiedTensors | None, ranks: Ranks
    ) -> None:
        """Restore each of ``targets`` from the item of ``parts`` with the same name, and begin to verify the tensors of ``unverified``.

        ``source`` is the folder of the checkpoint, for use in messages.
        """
        modules, blame = self._objects.modules, _failure(f"{source} could not be restored")
        if self._unverified is not None:
            self._unverified.stop()
        with contextlib.nullcontext() if unverified is None else unverified.restoring(modules):
            ranks.each(blame, lambda: restore(targets, parts, source, unverified))
        previous, self._unverified = self._unverified, unverified
        if previous is not None:
            previous.remove_hooks()
        if unverified:
            ranks.each(blame, lambda: unverified.start(modules, self._objects.optimizers))

    def _saved_objects(self) -> Iterator[tuple[str, Any]]:
        """Yield ``(name, object)`` for each object whose state dict all processes share. ``name`` is its name in the checkpoint."""
        call(self._strategy, "check_state")
        objects, engines = self._objects, self._engines()
        for index, module in enumerate(objects.modules):
            if f"engine_{index}" not in engines:
                yield f"model_{index}", user_module(module, self._strategy)
        kinds = (("optimizer", () if engines else objects.optimizers), ("scheduler", objects.schedulers), ("custom", objects.registered))
        for kind, things in kinds:
            for index, thing in enumerate(things):
                yield f"{kind}_{index}", thing
        yield "precision", self._session.precision

    def _engines(self) -> dict[str, Any]:
        """Return a dict that maps the name of each engine in the checkpoint to the engine.

        The strategy saves and loads these engines; this class does not. The dict is empty if the strategy has no engines, or if it leaves
        saving to the Runtime.
        """
        from accelkit.runtime.checkpoints.engine_files import Engine, saver_of

        strategy = self._strategy
        if not isinstance(strategy, EngineStrategy) or not saver_of(strategy):
            return {}
        held = [id(module) for module in self._objects.engines]
        return {f"engine_{index}": Engine(strategy, one) for index, one in enumerate(self._objects.modules) if id(one) in held}

    def _saved_loaders(self) -> Iterator[tuple[str, Any]]:
        """Yield each loader with its name. Each process saves the states of its own loaders, because their random states may differ."""
        for index, loader in enumerate(self._objects.loaders):
            yield f"loader_{index}", loader

    def _warn_without_model(self, parts: Mapping[str, Any]) -> None:
        """Warn once, on the main process, if no model is saved. A registered object with floating-point tensors may hold a model."""
        has_module = any(isinstance(thing, torch.nn.Module) for thing in (*self._objects.modules, *self._objects.registered))
        if has_module or self._has_warned or not self._rank_info.is_main_process:
            return
        states = [state for name, state in parts.items() if name.startswith("custom_")]
        if any(isinstance(leaf, torch.Tensor) and leaf.is_floating_point() for leaf in tree_leaves(states)):
            return
        self._has_warned = True
        warnings.warn(
            "the checkpoint will contain no model, because none was passed to rt.prepare or rt.register_for_checkpointing. Pass the model "
            "and the optimizer to rt.prepare before save_state; otherwise, the trained weights are lost",
            RuntimeWarning,
            stacklevel=4,
        )

    def _states(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
        """Return the states that all processes share, the states that each process saves separately, and the result of ``class_names``."""
        objects = dict(self._saved_objects())
        shared = {name: state_of(thing) for name, thing in objects.items()}
        loaders = {name: loader.state_dict() for name, loader in self._saved_loaders()}
        random_state = seeding.capture(self._accelerator, self._session.device)
        own = {"random_state": random_state, "loaders": loaders, "trackers": self._trackers.state()}
        return shared, own, class_names(objects)

    def _finish(self, saving: Save) -> None:
        written = saving.finish()
        if self._rank_info.is_main_process:
            with self._plugin_manager.naming_failures("checkpoint_saved", f"the checkpoint {written} is complete and on disk"):
                self._plugin_manager.hook.checkpoint_saved(path=written)

    def _derive_random_state(self, source: Path) -> None:
        """Reseed the generators of this process, and warn that the checkpoint has no random state for this process.

        The checkpoint was saved by fewer processes, so this process has restored the random state of another one. The seed is derived from
        ``data_parallel_index`` and a number drawn from the restored CPU generator.
        """
        rank, index = self._rank_info.process_index, self._rank_info.data_parallel_index
        warnings.warn(
            f"{source} has no random state for rank {rank}, because it was saved by fewer processes. "
            "A new state is derived from that of another rank; it is the same in every such run",
            stacklevel=4,
        )
        drawn = int(torch.empty((), dtype=torch.int64).random_(2**32).item())
        seed = (drawn << 16 ^ index) % 2**63
        seeding.seed_host(seed)
        seeding.seed_device(seed, self._accelerator, self._session.device)


def _failure(what: str) -> Any:
    """Return a function that converts an exception to a CheckpointError with the message ``what``.

    ``Ranks`` calls the returned function, and raises the CheckpointError on all processes.
    """
    return lambda error: CheckpointError(what, why=f"{type(error).__name__}: {error}")
