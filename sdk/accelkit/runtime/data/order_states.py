"""The generator states from which the order of an epoch is drawn, and their synchronisation among the processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from accelkit.errors import CheckpointError
from accelkit.runtime import seeding
from accelkit.runtime.data.division import Division
from accelkit.runtime.data.resume import dataset_and_samplers
from accelkit.specs.accelerator import Accelerator


class OrderStates:
    """The generator states from which a loader's order is drawn.

    Two kinds of generators can determine the order. The loader's own generators are the attributes ``generator`` of the loader, its
    samplers and its dataset. Samplers without a ``generator`` draw their order from the generators of Python, NumPy and torch.

    If ``rng_types`` contains ``generator``, rank 0 sends the states of both kinds of generators to the other ranks at the start of each
    epoch. The other ranks use rank 0's states of Python, NumPy and torch only while the order is drawn (see ``drawing``), and then restore
    their own states.

    Args:
        division: The loader and the processes that share it. If there are several processes, the process group must have been created.
        rng_types: The generators to synchronise. ``generator`` means the loader's own generators and those of Python, NumPy and torch.
            ``torch`` means torch's host generator, and the device type means the device's generator. On ranks other than 0, these two
            generators get rank 0's states at the start of each epoch and do not return to their earlier states.
        accelerator: The accelerator whose generator is synchronised if ``rng_types`` contains the device type. If ``accelerator`` is None,
            nothing is synchronised, whatever ``rng_types`` contains.
        device: The device of the accelerator's generator; None means the current device.
        number: The index of the loader among those that the Runtime prepared. It identifies the loader in errors and in the log of
            collective calls.

    Attributes:
        start: A dict of the states at the start of the current pass: ``host`` has the states of the generators of Python, NumPy and torch
            (only torch's if the samplers use no other), and ``generators`` has the states of the loader's own generators. None if no pass
            is active.
    """

    def __init__(
        self,
        division: Division,
        *,
        rng_types: Sequence[str] = (),
        accelerator: Accelerator | None = None,
        device: torch.device | None = None,
        number: int = 0,
    ) -> None:
        self.division, self.rng_types, self.accelerator, self.device = division, tuple(rng_types), accelerator, device
        self.number = number
        self.start: dict[str, Any] | None = None
        self._is_drawn = True  # whether the order of the current pass was drawn

    def begin(self, epoch: int, *, has_workers: bool) -> None:
        """Synchronise the generators in ``rng_types`` for a new pass, and set ``start`` to the states with which the pass begins.

        All processes must call this.

        Args:
            epoch: The number of the epoch, which is shown in errors.
            has_workers: Whether workers of the previous pass are still alive. If they are, the DataLoader draws no seed for new workers
                before its sampler draws the order.

        Raises:
            CollectiveError: If a process makes a different collective call, or none before the timeout.
        """
        self.start = self._agreed(epoch, has_workers)
        self._is_drawn = False

    def resume(self) -> None:
        """Set the loader's own generators to the states in the attribute ``start``, for a pass that continues a saved pass."""
        if self.start is not None:
            self._set_generators(self.start["generators"])
        self._is_drawn = False

    @contextlib.contextmanager
    def drawing(self, *, is_resumed: bool) -> Iterator[None]:
        """Return a context manager inside which the host's generators have the states from which the order of this pass is drawn.

        On exit, the generators normally get back the states that they had on entry. When the order of a new pass is drawn for the first
        time, some generators instead keep the states to which they have advanced inside the context:

        - On the ranks that get the first share of the data, all host generators keep their new states.
        - On the other ranks, all host generators keep their new states if ``rng_types`` does not contain ``generator``.
        - On every rank, torch's generator keeps its new state if ``rng_types`` contains ``torch``.

        Does nothing if no pass is active. Also does nothing if this process is the only one that gets batches of the loader, unless the
        pass continues a saved pass.

        Args:
            is_resumed: Whether the pass continues a saved pass.
        """
        if self.start is None or (self.division.is_alone and not is_resumed):
            yield
            return
        # Rank 0's generators advance as they would in a single process. The other ranks keep the states of their own generators, and a
        # process that resumes in the middle of an epoch keeps the states that it loaded from its checkpoint.
        # If ``rng_types`` contains torch's generator, it advances on all ranks alike.
        is_first = not is_resumed and not self._is_drawn
        is_natural = is_first and (self.division.process_index == 0 or "generator" not in self.rng_types)
        self._is_drawn = True
        own = self._host_states()
        seeding.restore_host(self.start["host"])
        try:
            yield
        finally:
            if not is_natural:
                drawn = {"torch": torch.get_rng_state()} if is_first and "torch" in self.rng_types else {}
                seeding.restore_host(own | drawn)

    def state_dict(self) -> dict[str, Any]:
        """Return ``start``. If no pass is active, return a dict with the same keys instead.

        In this dict, ``host`` is None, and ``generators`` has the current states of the loader's own generators.
        """
        return self.start or {"host": None, "generators": [generator.get_state() for generator in self._generators()]}

    def check(self, state: Mapping[str, Any]) -> None:
        """Check that ``state`` has one state for each of the loader's own random generators.

        Raises:
            CheckpointError: If the number of states differs from the number of generators.
        """
        own, saved = len(self._generators()), len(state["generators"])
        if own != saved:
            raise CheckpointError(
                "the saved position belongs to another loader",
                why=f"its order was drawn from {saved} generators of its own; this one has {own}",
                hint="prepare the same loaders in the same order, then load",
            )

    def load_state_dict(self, state: Mapping[str, Any], *, is_active: bool) -> None:
        """Restore a state returned by ``state_dict``: set the states of the loader's own generators, and the attribute ``start``.

        Args:
            state: The saved state, which must have passed ``check``.
            is_active: Whether the state was saved during a pass. If True, ``start`` is restored, too; otherwise, it is set to None.
        """
        self._set_generators(state["generators"])
        self.start = {"host": state["host"], "generators": state["generators"]} if is_active else None

    def _agreed(self, epoch: int, has_workers: bool) -> dict[str, Any]:
        """Give the generators in ``rng_types`` equal states on all processes, and return the states with which this pass begins."""
        if self.division.is_alone or not self.rng_types or self.accelerator is None:
            return self._captured(has_workers)
        from accelkit.runtime.collectives import object_collectives
        from accelkit.runtime.collectives.communicator import Communicator
        from accelkit.runtime.collectives.fingerprint import verify, watching

        device = self.device if self.device is not None else torch.empty(0, device=self.accelerator.device_type).device  # current device
        communicator = Communicator(None, device)
        mine: Any = None
        if communicator.rank == 0:
            named = seeding.capture_named(self.rng_types, self.accelerator, device)
            mine = (named, self._captured(has_workers) if "generator" in self.rng_types else None)
        verified = verify(communicator, f"the start of epoch {epoch} of prepared loader {self.number}")
        with watching(verified.call):
            named, start = object_collectives.broadcast(communicator, mine)
        if communicator.rank > 0:
            seeding.restore_named(named, self.accelerator, device)
        if start is None:
            return self._captured(has_workers)
        self._set_generators(start["generators"])
        return dict(start)

    def _captured(self, has_workers: bool) -> dict[str, Any]:
        host = self._host_states()
        if not self.division.is_stream and self.division.loader.generator is None and not has_workers:
            # A DataLoader draws the seed of its workers when it starts them, before its sampler draws the order.
            ahead = torch.Generator()
            ahead.set_state(host["torch"])
            torch.empty((), dtype=torch.int64, device=ahead.device).random_(generator=ahead)
            host["torch"] = ahead.get_state()
        return {"host": host, "generators": [generator.get_state() for generator in self._generators()]}

    def _host_states(self) -> dict[str, Any]:
        """Return the states of the CPU generators from which the loader's order may be drawn: those of Python, NumPy and torch.

        Only torch's state is returned if the dataset is map-style and all samplers are torch's own or built-in sequences such as a list.
        Such samplers use no other generator, and reading NumPy's state is slow.
        """
        loader = self.division.loader
        samplers = [type(part).__module__ for part in dataset_and_samplers(loader) if part is not loader.dataset]
        if not self.division.is_stream and all(module.startswith("torch.") or module == "builtins" for module in samplers):
            return {"torch": torch.get_rng_state()}
        return seeding.capture_host()

    def _generators(self) -> list[torch.Generator]:
        loader = self.division.loader
        found = [getattr(part, "generator", None) for part in [loader, *dataset_and_samplers(loader)]]
        return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())

    def _set_generators(self, states: Sequence[torch.Tensor]) -> None:
        for generator, state in zip(self._generators(), states, strict=True):
            generator.set_state(state)
