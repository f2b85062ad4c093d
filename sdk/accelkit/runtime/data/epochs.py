"""Which epoch a loader is in, how far, and what its order was drawn from: so that processes agree, and a loop can go on in the middle."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from accelkit.errors import CheckpointError
from accelkit.runtime import seeding
from accelkit.specs.accelerator import Accelerator


class Epochs:
    """The epochs of one loader.

    At the start of each epoch rank 0 sends the others the state of its generators: of the loader's own ones (``generator`` of the loader,
    its samplers and its dataset), and of Python's, NumPy's and torch's, which other samplers draw their order from. The latter hold while
    the order is drawn (``order``), and each process has its own again afterwards.

    Args:
        loader: The user's.
        num_processes, process_index: Of the job, which has a process group then.
        rng_types: What is agreed on: ``generator`` is the above; ``torch`` and the device's name are those generators themselves, for good.
        accelerator, device: Whose generator the device's name means.
        step: How many of the loader's batches the job takes at once.
        is_shared: Whether the loader's own sampler gives each process its share.

    Attributes:
        epoch: The current one, or the next one between two. It counts passes, also those that a loop broke off.
        num_batches: How many of the loader's batches the job has taken in this epoch.
        is_resumed: Whether this pass goes on where a saved one was.
        is_at_end: Whether the loop is at the last batch of a pass.
        began: The place of the pass under way among all loaders' passes; 0 between two.
        source: What the pass under way reads: the loader, this process's share of it, or the rest of that.
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
    ) -> None:
        self.loader, self.num_processes, self.process_index = loader, num_processes, process_index
        self.rng_types, self.accelerator, self.device = tuple(rng_types), accelerator, device
        self.step, self.is_shared = step, is_shared
        self.epoch = self.num_batches = 0
        self.is_resumed = self.is_at_end = False
        self.began = 0
        self.source: Any = loader
        self.is_iterable = isinstance(loader.dataset, IterableDataset)
        self._start: dict[str, Any] | None = None  # the generators at the start of the epoch under way
        self._is_drawn = True  # the order of the epoch under way
        self._is_pending = False  # a state was loaded, and the pass that goes on from it has not begun
        self._is_told = num_processes > 1  # on one process, whoever has a set_epoch hears of epochs only after set_epoch was called here
        self._told = {id(part): getattr(part, "epoch", None) for part in self._parts()}

    def begin(self, first: int = 0, has_workers: bool = False) -> int:
        """A pass begins: agree with the other processes. All of them must come, except to a pass that goes on from a saved one.

        Args:
            first: How many of the loader's batches every pass leaves out.
            has_workers: Whether workers of the last pass are still there.

        Returns:
            How many of them this one leaves out.

        Raises:
            CollectiveError: If a process does not come.
        """
        self.is_resumed, self._is_pending = self._is_pending, False
        if self.is_resumed and self._start is not None:
            for generator, state in zip(self._generators(), self._start["generators"], strict=True):
                generator.set_state(state)
        else:
            if self._start is not None:  # the last pass was broken off
                self.epoch += 1
            self.num_batches = 0
            self._follow_user()
            self._start = self._agreed(has_workers)
        self.num_batches, self._is_drawn = max(self.num_batches, first), False
        if self._is_told:
            self._tell()
        return self.num_batches

    def finish(self) -> None:
        """A pass came to its end."""
        self.epoch, self.num_batches, self._start, self.is_resumed = self.epoch + 1, 0, None, False

    @contextlib.contextmanager
    def order(self) -> Iterator[None]:
        """Inside, the host's generators are as they were on rank 0 when this epoch's order was first drawn."""
        if self._start is None or (self.num_processes == 1 and not self.is_resumed):
            yield
            return
        # Rank 0's generators go on as a single process's would. The other ranks' streams are their own, and those of a process that goes on
        # in the middle are what its checkpoint says.
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
        """Number the next pass, and tell dataset and samplers that have a ``set_epoch``.

        Of a position that was loaded the same epoch changes nothing; with another, the pass begins at its start.
        """
        if not (self._is_pending and epoch == self.epoch):
            self.epoch, self.num_batches, self._start, self._is_pending = epoch, 0, None, False
        self._is_told = True
        self._tell()

    def state_dict(self) -> dict[str, Any]:
        """Epoch, position and the generators' states. The same on every process, unless ``rng_types`` lacks ``generator``."""
        start = self._start or {"host": None, "generators": [generator.get_state() for generator in self._generators()]}
        position = {"epoch": self.epoch, "num_batches": self.num_batches, "step": self.step, "num_processes": self.num_processes}
        return position | {"is_under_way": self._start is not None, "is_told": self._is_told, **start}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next pass goes on where the saved one was.

        Raises:
            CheckpointError: If it cannot: another loader, or a position that this number of processes cannot begin at.
        """
        generators = self._generators()
        if len(generators) != len(state["generators"]):
            raise CheckpointError(
                "the saved position is of another loader",
                why=f"its order was drawn from {len(state['generators'])} generators of its own; this one has {len(generators)}",
                hint="prepare the same loaders in the same order, then load",
            )
        self._check_position(state)
        for generator, saved in zip(generators, state["generators"], strict=True):
            generator.set_state(saved)
        self.epoch, self.num_batches = state["epoch"], state["num_batches"]
        self._is_told = self.num_processes > 1 or state["is_told"]
        self._is_pending = state["is_under_way"]
        self._start = {"host": state["host"], "generators": state["generators"]} if self._is_pending else None

    def _check_position(self, state: Mapping[str, Any]) -> None:
        is_elsewhere = state["num_processes"] != self.num_processes or state["step"] != self.step
        if not state["num_batches"] or not is_elsewhere:
            return
        if self.is_shared or (self.is_iterable and state["num_batches"] % self.step):
            why = "its own sampler divides it" if self.is_shared else "its dataset is a stream that cannot be divided anew there"
            raise CheckpointError(
                f"a loader saved in the middle of an epoch on {state['num_processes']} processes cannot go on with {self.num_processes}",
                why=f"{why}; batches used: {state['num_batches']}",
                hint=f"resume on {state['num_processes']} processes, or from a checkpoint that was saved between two epochs",
            )

    # -- agreeing -----------------------------------------------------------------------------------------------------

    def _agreed(self, has_workers: bool) -> dict[str, Any]:
        """The state of generators that this pass begins with, here and, of those to be agreed on, on every process."""
        if self.num_processes == 1 or not self.rng_types or self.accelerator is None:
            return self._found(has_workers)
        import torch.distributed as dist

        from accelkit.runtime.collectives import attendance
        from accelkit.runtime.collectives.meeting import watching

        device = self.device if self.device is not None else torch.empty(0, device=self.accelerator.device_type).device  # the current one
        sent: list[Any] = [None]
        if self.process_index == 0:
            named = seeding.capture_named(self.rng_types, self.accelerator, device)
            sent = [(named, self._found(has_workers) if "generator" in self.rng_types else None)]
        group = dist.distributed_c10d._get_default_group()
        call = attendance.come("the start of an epoch of a prepared loader", group, range(self.num_processes))
        with watching(call):
            dist.broadcast_object_list(sent, src=0)
        named, start = sent[0]
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
            # A DataLoader draws its workers' seed when it starts them, before its sampler draws the order.
            ahead = torch.Generator()
            ahead.set_state(host["torch"])
            torch.empty((), dtype=torch.int64, device=ahead.device).random_(generator=ahead)
            host["torch"] = ahead.get_state()
        return {"host": host, "generators": [generator.get_state() for generator in self._generators()]}

    def _host(self) -> dict[str, Any]:
        """What the order may be drawn from: of torch's own samplers, torch's generator; of somebody's, any. NumPy's is slow to read."""
        samplers = [type(part).__module__ for part in self._parts() if part is not self.loader.dataset]
        if not self.is_iterable and all(module.startswith("torch.") or module == "builtins" for module in samplers):
            return {"torch": torch.get_rng_state()}
        return seeding.capture_host()

    def _parts(self) -> list[Any]:
        """Dataset and samplers, each once."""
        batches = self.loader.batch_sampler
        parts = [self.loader.dataset, self.loader.sampler, batches, getattr(batches, "sampler", None)]
        return list({id(part): part for part in parts if part is not None}.values())

    def _generators(self) -> list[torch.Generator]:
        found = [getattr(part, "generator", None) for part in [self.loader, *self._parts()]]
        return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())

    # -- telling ------------------------------------------------------------------------------------------------------

    def _follow_user(self) -> None:
        """Who called ``set_epoch`` of a sampler or dataset knows better than our count."""
        for part in self._parts():
            number = getattr(part, "epoch", None)
            if callable(getattr(part, "set_epoch", None)) and isinstance(number, int) and number != self._told.get(id(part)):
                self.epoch = number

    def _tell(self) -> None:
        for part in self._parts():
            if callable(getattr(part, "set_epoch", None)):
                part.set_epoch(self.epoch)
                self._told[id(part)] = getattr(part, "epoch", None)
