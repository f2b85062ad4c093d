"""Call ``set_epoch`` on a loader's dataset and samplers, and detect whether the user has called it."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from accelkit.runtime.data.resume import dataset_and_samplers


class EpochFollowers:
    """The parts of a loader (its dataset and samplers) that have the method ``set_epoch``.

    Args:
        loader: The user's loader.
        is_active: The initial value of the attribute.

    Attributes:
        is_active: Whether ``Epochs`` calls ``set_epoch`` at the start of each pass over the loader.
    """

    def __init__(self, loader: DataLoader[Any], *, is_active: bool) -> None:
        self.loader, self.is_active = loader, is_active
        self._told = {id(part): getattr(part, "epoch", None) for part in dataset_and_samplers(loader)}

    def set_epoch(self, epoch: int) -> None:
        """Call the method ``set_epoch`` of the dataset and of each sampler, where this method exists."""
        for part in self._parts():
            part.set_epoch(epoch)
            self._told[id(part)] = getattr(part, "epoch", None)

    def epoch_of_user(self) -> int | None:
        """Return the epoch to which the user has set a sampler or dataset, or None if the user has not changed the epoch.

        A change is noticed by comparing the attribute ``epoch`` of the sampler or dataset with an earlier value: the value after the last
        call to ``EpochFollowers.set_epoch`` or, if there was no such call, the value when this ``EpochFollowers`` object was created.
        """
        found = None
        for part in self._parts():
            number = getattr(part, "epoch", None)
            if isinstance(number, int) and number != self._told.get(id(part)):
                found = number
        return found

    def _parts(self) -> list[Any]:
        return [part for part in dataset_and_samplers(self.loader) if callable(getattr(part, "set_epoch", None))]
