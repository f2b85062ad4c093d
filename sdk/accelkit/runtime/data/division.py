"""Description of how a job divides a loader, and a check of whether an epoch can continue with another division."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from accelkit.errors import CheckpointError
from accelkit.runtime.data.resume import index_sampler, samples_per_batch


@dataclasses.dataclass(frozen=True, slots=True)
class Division:
    """Description of how a job divides a loader among its processes.

    A position in the loader's order is the number of samples before it. If the user wrote the batch sampler, a position is a number of
    batches instead, because the user's sampler may group the samples differently for another batch size. If ``is_shared`` is True,
    positions and steps count only the samples and batches of this process's own share.

    Attributes:
        loader: The user's loader.
        num_processes: The number of different shares. This is the number of processes, unless several processes get the same share.
        process_index: The index of this process's share.
        processes_per_share: The number of processes that get the same share.
        step: The number of the loader's batches that the job takes in one step.
        is_shared: Whether the loader's own sampler or DataPipe gives each process its share.
        is_dispatched: Whether only rank 0 reads the data, and sends the other ranks their shares.
        is_stream: Whether the dataset is iterable-style rather than map-style.
        unit: The number of samples in a batch of the loader; the last batch may have fewer. None if the user wrote the batch sampler.
        batch_stride: The amount by which one batch of the loader advances the position.
        stride: The amount by which one step of the job advances the position.
    """

    loader: DataLoader[Any]
    num_processes: int = 1
    process_index: int = 0
    step: int = 1
    is_shared: bool = False
    is_dispatched: bool = False
    processes_per_share: int = 1

    is_stream: bool = dataclasses.field(init=False)
    unit: int | None = dataclasses.field(init=False)
    batch_stride: int = dataclasses.field(init=False)
    stride: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        unit = samples_per_batch(self.loader)
        derived = {"is_stream": isinstance(self.loader.dataset, IterableDataset), "unit": unit, "batch_stride": unit or 1}
        for name, value in (derived | {"stride": self.step * (unit or 1)}).items():
            object.__setattr__(self, name, value)

    @property
    def is_alone(self) -> bool:
        """Whether this process is the only one that gets batches of the loader."""
        return self.num_processes * self.processes_per_share == 1

    def description(self) -> dict[str, Any]:
        """Return the settings that determine in which order the samples come, and which of them the job takes in each step."""
        _, sampler = index_sampler(self.loader)
        length = None
        if not self.is_stream:
            with contextlib.suppress(TypeError):  # a user's sampler need not have a length
                length = len(sampler if self.unit is None or type(sampler) is not BatchSampler else sampler.sampler)  # type: ignore[arg-type]
        return {
            "num_processes": self.num_processes,
            "step": self.step,
            "batch_size": self.unit if self.unit is not None else getattr(sampler, "batch_size", None),
            "is_batch_sampler_own": self.unit is None,
            "is_shared": self.is_shared,
            "length": length,
            "reading": self._reading() if self.is_stream else None,
        }

    def checked_position(self, state: Mapping[str, Any]) -> int:
        """Return the saved position, after checking that this loader can begin there. Warns if the number of samples has changed.

        Args:
            state: What ``description`` returned when the loader was saved, and the ``position``. A state saved by an older accelkit has
                ``num_batches`` and no ``position``.

        Raises:
            CheckpointError: If this loader cannot begin at the saved position.
        """
        now = self.description()
        if "position" not in state:  # saved when positions were not yet counted in samples
            state = {**now, "position": state["num_batches"] * self.batch_stride, **state}
        position: int = state["position"]
        saved = {name: state[name] for name in now}
        if not position or saved == now:
            return position
        why = self._obstacle(position, saved, now)
        if why:
            described = [
                f"{one['num_processes']} process{'es' * (one['num_processes'] > 1)} with batches of {one['batch_size'] or 'unknown size'}"
                for one in (saved, now)
            ]
            raise CheckpointError(
                f"a loader saved in the middle of an epoch on {described[0]} cannot continue with {described[1]}",
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

    def _reading(self) -> list[int]:
        """Return the number of workers, the number of samples in a batch, and the number of processes that read the loader.

        If the dataset is iterable-style and the loader has workers, the order of the samples depends on these three numbers.
        """
        readers = 1 if self.is_dispatched else self.num_processes
        is_split = self.step < self.num_processes and not self.is_shared
        return [self.loader.num_workers, self.stride // self.num_processes if is_split else self.batch_stride, readers]

    def _obstacle(self, position: int, saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
        """Return why an epoch that was divided according to ``saved`` cannot continue with the settings ``now``, or "" if it can."""
        if (saved["reading"] is None) == self.is_stream:
            return f"its dataset is {'a stream now, and was map-style' if self.is_stream else 'map-style now, and was a stream'}"
        differing = {name for name in now if saved[name] != now[name]}
        if (self.is_shared or saved["is_shared"]) and differing & {"num_processes", "is_shared"}:
            return f"its own sampler divides it; it was at sample {position} of a process's share"
        if now["is_batch_sampler_own"] or saved["is_batch_sampler_own"]:
            if differing & {"batch_size", "is_batch_sampler_own", "length"}:
                return "its batch sampler groups samples differently than it did when it was saved"
        elif self.is_stream:
            has_workers = bool(saved["reading"][0] or now["reading"][0])
            if has_workers and "reading" in differing:
                return "its dataset is a stream, whose order depends on how its worker processes share it"
            if position % self.stride:
                taken = f"saved after {position} samples, which is not a multiple of the {self.stride} that a step takes now"
                return f"its dataset is a stream, {taken}"
        return ""
