"""Epoch, position and generator states of a loader, used to keep processes in agreement and to resume in the middle of an epoch."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from accelkit.errors import CheckpointError
from accelkit.runtime import seeding
from accelkit.runtime.data.resume import index_sampler, samples_per_batch
from accelkit.specs.accelerator import Accelerator


class Epochs:
    """Track the epochs of one loader.

    At the start of each epoch, rank 0 sends the other ranks the states of its generators: the loader's own (``generator`` of the loader,
    its samplers and its dataset) and those of Python, NumPy and torch, from which other samplers draw their order. The latter states
    apply only while the order is drawn (see ``order``); afterwards each process has its own states again.

    Args:
        loader: The user's loader.
        num_processes, process_index: The number of processes in the job and the index of this one. Several need a process group.
        rng_types: The generators to synchronise. ``generator`` means the above; ``torch`` and the device's name stay synchronised.
        accelerator, device: The accelerator and device whose generator the device's name refers to.
        step: The number of the loader's batches that the job takes in one step.
        is_shared: Whether the loader's own sampler gives each process its share.
        is_dispatched: Whether only rank 0 reads.
        number: The index of the loader among those that the Runtime prepared. It tells loaders apart in errors and between epochs.

    Attributes:
        epoch: The current epoch, or the next one if no pass is active. It counts passes, including interrupted ones.
        position: The number of samples of this epoch's order that the job has taken; if the loader's own sampler divides the data, that
            this process has taken. Counted in batches if the user wrote the batch sampler, whose batches may depend on the batch size.
        stride: The amount by which one step advances ``position``.
        is_resumed: Whether the current pass continues a saved one.
        is_at_end: Whether the loop is at the last batch of a pass.
        pass_number: Index of the current pass, counted from 1 over all loaders. 0 if no pass is active.
        source: The object that the current pass reads: the loader, this process's share of it, or the remainder of that share.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        *,
        num_processes: int = 1,
        process_index: int = 0,
        rng_types: Sequence[str] = (),
        accelerator: Accelerator | None = None,
        device: torch.device | None = None,
        step: int = 1,
        is_shared: bool = False,
        is_dispatched: bool = False,
        number: int = 0,
    ) -> None:
        self.loader, self.num_processes, self.process_index = loader, num_processes, process_index
        self.rng_types, self.accelerator, self.device = tuple(rng_types), accelerator, device
        self.step, self.is_shared, self.is_dispatched, self.number = step, is_shared, is_dispatched, number
        self._unit = samples_per_batch(loader)
        self.stride = step * (self._unit or 1)
        self.epoch = self.position = 0
        self.is_resumed = self.is_at_end = False
        self.pass_number = 0
        self.source: Any = loader
        self.is_iterable = isinstance(loader.dataset, IterableDataset)
        self._start: dict[str, Any] | None = None  # the generator states at the start of the current epoch
        self._is_drawn = True  # whether the order of the current epoch was drawn
        self._is_pending = False  # whether a state was loaded and the pass that continues from it has not begun
        self._is_told = num_processes > 1  # on one process, call set_epoch of the parts only once ours was called
        self._told = {id(part): getattr(part, "epoch", None) for part in self._parts()}

    def begin(self, first: int = 0, has_workers: bool = False) -> int:
        """Begin a pass and synchronise with the other processes. All processes must call this, unless the pass continues a saved one.

        Args:
            first: The number of the loader's batches that every pass skips.
            has_workers: Whether workers of the previous pass are still alive.

        Returns:
            The amount that this pass skips, in the unit of ``position``.

        Raises:
            CollectiveError: If a process does not take part.
        """
        self.is_resumed, self._is_pending = self._is_pending, False
        if self.is_resumed and self._start is not None:
            for generator, state in zip(self._generators(), self._start["generators"], strict=True):
                generator.set_state(state)
        else:
            if self._start is not None:  # the last pass was interrupted
                self.epoch += 1
            self.position = 0
            self._follow_user()
            self._start = self._agreed(has_workers)
        self.position, self._is_drawn = max(self.position, first * (self._unit or 1)), False
        if self._is_told:
            self._tell()
        return self.position

    def finish(self) -> None:
        """End a pass that was completed."""
        self.epoch, self.position, self._start, self.is_resumed = self.epoch + 1, 0, None, False

    @contextlib.contextmanager
    def order(self) -> Iterator[None]:
        """Set the host's generators, inside the context, to their state on rank 0 when this epoch's order was first drawn."""
        if self._start is None or (self.num_processes == 1 and not self.is_resumed):
            yield
            return
        # Rank 0's generators advance as they would in a single process. The other ranks keep their own streams, and a process that
        # resumes in the middle of an epoch keeps those of its checkpoint.
        is_own = self.process_index == 0 or "generator" not in self.rng_types
        is_natural = is_own and not self.is_resumed and not self._is_drawn
        self._is_drawn = True
        own = self._host()
        seeding.restore_host(self._start["host"])
        try:
            yield
        finally:
            if not is_natural:
                seeding.restore_host(own)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next pass, and call ``set_epoch`` of the dataset and samplers that have it.

        After a position was loaded, setting the same epoch changes nothing; with another epoch, the pass starts from the beginning.
        """
        if not (self._is_pending and epoch == self.epoch):
            self.epoch, self.position, self._start, self._is_pending = epoch, 0, None, False
        self._is_told = True
        self._tell()

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch, position and generator states. They are equal on all processes unless ``rng_types`` lacks ``generator``."""
        start = self._start or {"host": None, "generators": [generator.get_state() for generator in self._generators()]}
        progress = {"epoch": self.epoch, "position": self.position, "is_under_way": self._start is not None, "is_told": self._is_told}
        return progress | self._division() | start

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass continue where the saved one stopped.

        Raises:
            CheckpointError: If another loader was saved, or this loader or number of processes cannot begin at the saved position.
        """
        generators = self._generators()
        if len(generators) != len(state["generators"]):
            raise CheckpointError(
                "the saved position is of another loader",
                why=f"its order was drawn from {len(state['generators'])} generators of its own; this one has {len(generators)}",
                hint="prepare the same loaders in the same order, then load",
            )
        position = self._checked_position(state)
        for generator, saved in zip(generators, state["generators"], strict=True):
            generator.set_state(saved)
        self.epoch, self.position = state["epoch"], position
        self._is_told = self.num_processes > 1 or state["is_told"]
        self._is_pending = state["is_under_way"]
        self._start = {"host": state["host"], "generators": state["generators"]} if self._is_pending else None

    def _division(self) -> dict[str, Any]:
        """Return the settings that decide which samples the job takes in a step, and those that its order depends on."""
        _, sampler = index_sampler(self.loader)
        length = None
        if not self.is_iterable:
            with contextlib.suppress(TypeError):  # a user's sampler need not have a length
                length = len(sampler if self._unit is None or type(sampler) is not BatchSampler else sampler.sampler)  # type: ignore[arg-type]
        return {
            "num_processes": self.num_processes,
            "step": self.step,
            "batch_size": self._unit if self._unit is not None else getattr(sampler, "batch_size", None),
            "is_batch_sampler_own": self._unit is None,
            "is_shared": self.is_shared,
            "length": length,
            "reading": self._reading() if self.is_iterable else None,
        }

    def _reading(self) -> list[int]:
        """Return what the order of a stream read by worker processes depends on: number of workers, samples per batch, readers."""
        readers = 1 if self.is_dispatched else self.num_processes
        is_split = self.step < self.num_processes and not self.is_shared
        return [self.loader.num_workers, self.stride // self.num_processes if is_split else self._unit or 1, readers]

    def _checked_position(self, state: Mapping[str, Any]) -> int:
        """Return the saved position, after checking that this loader can begin there."""
        if "position" not in state:  # saved when positions were not yet counted in samples
            state = {**self._division(), "position": state["num_batches"] * (self._unit or 1), **state}
        position: int = state["position"]
        saved, now = {name: state[name] for name in self._division()}, self._division()
        if not position or saved == now:
            return position
        why = self._obstacle(position, saved, now)
        if why:
            described = [
                f"{one['num_processes']} process{'es' * (one['num_processes'] > 1)} with batches of {one['batch_size'] or 'unknown size'}"
                for one in (saved, now)
            ]
            raise CheckpointError(
                f"a loader saved in the middle of an epoch on {described[0]} cannot go on with {described[1]}",
                why=why,
                hint=f"resume as it was saved ({described[0]}), or from a checkpoint that was saved between two epochs",
            )
        if saved["length"] != now["length"]:
            warnings.warn(
                f"a loader was saved in the middle of an epoch of {saved['length']} samples, and now has {now['length']}: "
                "if it shuffles, some samples of this epoch may be read twice and others not at all",
                stacklevel=2,
            )
        return position

    def _obstacle(self, position: int, saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
        """Return why an epoch that was divided one way cannot continue divided another way. Empty if it can."""
        if (saved["reading"] is None) == self.is_iterable:
            return f"its dataset is {'a stream now, and was map-style' if self.is_iterable else 'map-style now, and was a stream'}"
        differing = {name for name in now if saved[name] != now[name]}
        if (self.is_shared or saved["is_shared"]) and differing & {"num_processes", "is_shared"}:
            return f"its own sampler divides it; it was at sample {position} of a process's share"
        if now["is_batch_sampler_own"] or saved["is_batch_sampler_own"]:
            if differing & {"batch_size", "is_batch_sampler_own", "length"}:
                return "its batch sampler puts other samples together now than when it was saved"
        elif self.is_iterable:
            has_workers = bool(saved["reading"][0] or now["reading"][0])
            if has_workers and "reading" in differing:
                return "its dataset is a stream, whose order depends on how its worker processes share it"
            if position % self.stride:
                return f"its dataset is a stream, saved after {position} samples: no multiple of the {self.stride} that a step takes now"
        return ""

    # -- synchronisation ----------------------------------------------------------------------------------------------

    def _agreed(self, has_workers: bool) -> dict[str, Any]:
        """Return the generator states that this pass begins with. The generators in ``rng_types`` are equal on every process."""
        if self.num_processes == 1 or not self.rng_types or self.accelerator is None:
            return self._found(has_workers)
        from accelkit.runtime.collectives import object_collectives
        from accelkit.runtime.collectives.communicator import Communicator
        from accelkit.runtime.collectives.fingerprint import verify, watching

        device = self.device if self.device is not None else torch.empty(0, device=self.accelerator.device_type).device  # current device
        mine: Any = None
        if self.process_index == 0:
            named = seeding.capture_named(self.rng_types, self.accelerator, device)
            mine = (named, self._found(has_workers) if "generator" in self.rng_types else None)
        communicator = Communicator(None, device)
        verified = verify(communicator, f"the start of epoch {self.epoch} of prepared loader {self.number}")
        with watching(verified.call):
            named, start = object_collectives.broadcast(communicator, mine)
        if self.process_index > 0:
            seeding.restore_named(named, self.accelerator, device)
        if start is None:
            return self._found(has_workers)
        for generator, state in zip(self._generators(), start["generators"], strict=True):
            generator.set_state(state)
        return dict(start)

    def _found(self, has_workers: bool) -> dict[str, Any]:
        host = self._host()
        if not self.is_iterable and self.loader.generator is None and not has_workers:
            # A DataLoader draws the seed of its workers when it starts them, before its sampler draws the order.
            ahead = torch.Generator()
            ahead.set_state(host["torch"])
            torch.empty((), dtype=torch.int64, device=ahead.device).random_(generator=ahead)
            host["torch"] = ahead.get_state()
        return {"host": host, "generators": [generator.get_state() for generator in self._generators()]}

    def _host(self) -> dict[str, Any]:
        """Return the generator states that the order may depend on: torch's for torch's samplers, else all. NumPy's is slow to read."""
        samplers = [type(part).__module__ for part in self._parts() if part is not self.loader.dataset]
        if not self.is_iterable and all(module.startswith("torch.") or module == "builtins" for module in samplers):
            return {"torch": torch.get_rng_state()}
        return seeding.capture_host()

    def _parts(self) -> list[Any]:
        """Return the dataset and the samplers, each once."""
        batches = self.loader.batch_sampler
        parts = [self.loader.dataset, self.loader.sampler, batches, getattr(batches, "sampler", None)]
        return list({id(part): part for part in parts if part is not None}.values())

    def _generators(self) -> list[torch.Generator]:
        found = [getattr(part, "generator", None) for part in [self.loader, *self._parts()]]
        return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())

    # -- passing the epoch on -----------------------------------------------------------------------------------------

    def _follow_user(self) -> None:
        """Adopt the epoch that the user set with ``set_epoch`` of a sampler or dataset. It takes precedence over our count."""
        for part in self._parts():
            number = getattr(part, "epoch", None)
            if callable(getattr(part, "set_epoch", None)) and isinstance(number, int) and number != self._told.get(id(part)):
                self.epoch = number

    def _tell(self) -> None:
        for part in self._parts():
            if callable(getattr(part, "set_epoch", None)):
                part.set_epoch(self.epoch)
                self._told[id(part)] = getattr(part, "epoch", None)
