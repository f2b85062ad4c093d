"""Epoch and position of a loader, used to keep processes in agreement and to resume in the middle of an epoch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal

from accelkit.runtime.data.division import Division
from accelkit.runtime.data.epoch_followers import EpochFollowers
from accelkit.runtime.data.order_states import OrderStates


@dataclasses.dataclass(slots=True)
class ActivePass:
    """State of the current pass over a loader. A pass is one loop over the loader's batches. Between two loops, no pass is active.

    Attributes:
        source: The object that the current or latest pass reads: the loader, this process's share of it, or the remainder of that share.
        number: Index of the current pass, counted from 1 over the passes of all loaders. 0 if no pass is active.
        is_at_end: Whether the current pass is at its last batch. False if no pass is active.
    """

    source: Any
    number: int = 0
    is_at_end: bool = False


class Epochs:
    """Tracks the epochs of one loader.

    Args:
        division: How the job divides the loader.
        order_states: The object that holds the generator states from which the loader's order is drawn, and synchronises these states among
            the processes. If None, the states are not synchronised.

    Attributes:
        epoch: The number of the current epoch, counted from 0. After a completed pass, the number of the next epoch. An interrupted pass
            also counts as an epoch, but the number only increases when the next pass begins.
        position: The number of samples (or batches, see ``Division``) of this epoch that the job has taken. If the loader's own sampler or
            DataPipe divides the data, ``position`` counts only what this process has taken.
        active: The state of the current pass over the loader. Loaders that ``skip_batches`` derives from this loader share this object.
    """

    def __init__(self, division: Division, order_states: OrderStates | None = None) -> None:
        self.division = division
        self.order_states = order_states or OrderStates(division)
        self.followers = EpochFollowers(division.loader, is_active=division.num_processes > 1)  # else set_epoch activates them
        self.epoch = self.position = 0
        self.active = ActivePass(division.loader)
        self._phase: Literal["between passes", "loaded", "begun", "resumed"] = "between passes"

    @property
    def is_resumed(self) -> bool:
        """Whether the current pass continues a saved pass."""
        return self._phase == "resumed"

    def begin(self, first: int = 0, has_workers: bool = False) -> int:
        """Begin a pass over the loader.

        At the start of a new pass, the generator states of all processes are synchronised, so all processes must call this. A pass that
        continues a saved pass starts from the saved states, without communication between processes.

        Args:
            first: The number of the loader's batches that every pass skips.
            has_workers: Whether workers of the previous pass are still alive.

        Returns:
            The new value of the attribute ``position``: the number of samples (or batches, see ``Division``) that the pass skips.

        Raises:
            CollectiveError: If a process does not take part.
        """
        if self._phase == "loaded":
            self.order_states.resume()
            self._phase = "resumed"
        else:
            if self._phase != "between passes":  # the last pass was interrupted
                self.epoch += 1
            self.position = 0
            set_by_user = self.followers.epoch_of_user()
            self.epoch = self.epoch if set_by_user is None else set_by_user
            self.order_states.begin(self.epoch, has_workers=has_workers)
            self._phase = "begun"
        self.position = max(self.position, first * self.division.batch_stride)
        if self.followers.is_active:
            self.followers.set_epoch(self.epoch)
        return self.position

    def finish(self) -> None:
        """End a completed pass: the next pass belongs to the next epoch."""
        self._restart_at(self.epoch + 1)

    def order(self) -> AbstractContextManager[None]:
        """Return the context manager inside which the order of this pass is drawn (see ``OrderStates.drawing``)."""
        return self.order_states.drawing(is_resumed=self.is_resumed)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, and call ``set_epoch`` on the dataset and samplers that have this method.

        From now on, these methods are also called at the start of each pass. If ``load_state_dict`` has restored an unfinished pass and
        ``epoch`` is the saved epoch, the next pass continues the restored pass. Otherwise, the next pass starts from the beginning.
        """
        if not (self._phase == "loaded" and epoch == self.epoch):
            self._restart_at(epoch)
        self.followers.is_active = True
        self.followers.set_epoch(self.epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for ``load_state_dict``: the epoch, the position, how the job divides the loader, and the generator states.

        The generator states are those at the start of the current pass or, if no pass is active, the current states of the loader's own
        generators. The state is the same on all processes, unless the argument ``rng_types`` of the Runtime lacks ``generator``.
        """
        progress = {
            "epoch": self.epoch,
            "position": self.position,
            "is_under_way": self._phase != "between passes",
            "is_told": self.followers.is_active,
        }
        return progress | self.division.description() | self.order_states.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass continue where the saved pass stopped. If no pass was active, the next pass begins the saved epoch.

        Raises:
            CheckpointError: If the saved loader had a different number of generators, or if this loader cannot begin at the saved position,
                for example because the batch size or the number of processes has changed.
        """
        self.order_states.check(state)
        position = self.division.checked_position(state)
        self.order_states.load_state_dict(state, is_active=state["is_under_way"])
        self.epoch, self.position = state["epoch"], position
        self.followers.is_active = self.division.num_processes > 1 or state["is_told"]
        self._phase = "loaded" if state["is_under_way"] else "between passes"

    def _restart_at(self, epoch: int) -> None:
        self.epoch, self.position, self._phase = epoch, 0, "between passes"
        self.order_states.start = None
