"""The process group of worker processes that run distributed checks together."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from accelkit import Accelerator, PluginRecord
from accelkit_conformance.results import NotSupported
from accelkit_conformance.subject import Subject

_SECONDS = 60


class RankGroup:
    """The process group that this process forms with the other ranks."""

    def __init__(self, rendezvous: str) -> None:
        """
        Args:
            rendezvous: A path prefix, the same on all ranks. The rendezvous file of each process group has a path with this prefix.
        """
        self._rendezvous = rendezvous
        self._num_joins = 0  # a check may destroy the process group, and each group needs a new file
        self._refusal = ""

    def join(self, subject: Subject, record: PluginRecord, accelerators: Sequence[Accelerator]) -> None:
        """Initialise the process group with the accelerators' backends, unless it is initialised already.

        If ``subject.world_size`` is 1, this method does nothing, and leaves the initialisation to the Runtime.

        Raises:
            NotSupported: If several ranks must share a device, and the backend (such as NCCL) does not allow this.
        """
        import torch.distributed as dist

        if self._refusal:
            raise NotSupported(self._refusal)
        if dist.is_initialized() or subject.world_size == 1:
            return
        try:
            self._initialise(subject, record, accelerators)
        except Exception as error:
            if subject.world_size <= len(subject.devices):
                raise
            number = len(subject.devices)
            self._refusal = (
                f"{subject.world_size} processes need as many devices, but only {number} {'is' if number == 1 else 'are'} available; "
                f"the process group cannot share a device: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            )
            raise NotSupported(self._refusal) from error

    def _initialise(self, subject: Subject, record: PluginRecord, accelerators: Sequence[Accelerator]) -> None:
        import torch
        import torch.distributed as dist

        from accelkit.runtime.process_group import backend_of

        self._num_joins += 1
        own = [f"{one.device_type}:{backend_of(one.device(0), one.process_group_backend)}" for one in accelerators]
        dist.init_process_group(
            own[0].partition(":")[2] if record.kind == "accelerator" else ",".join(dict.fromkeys(["cpu:gloo", *own])),
            init_method=f"file://{self._rendezvous}-{self._num_joins}",
            rank=subject.rank,
            world_size=subject.world_size,
            timeout=datetime.timedelta(seconds=_SECONDS + subject.first_call_timeout),
        )
        if subject.world_size > len(subject.devices):  # some backends raise the error in the first collective
            dist.all_reduce(torch.ones(1, device=subject.device))
            subject.synchronize()
