"""The context manager that records some steps of a training loop with torch.profiler."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule, supported_activities, tensorboard_trace_handler

from accelkit.errors import UsageError
from accelkit.runtime.profiling.memory_history import MemoryHistory
from accelkit.runtime.profiling.summary import FORWARD, Summary, summarize
from accelkit.runtime.rank_info import RankInfo
from accelkit.runtime.session import Session
from accelkit.whole_number import whole_number


class Profiler:
    """Context manager that records some steps of a training loop. ``Runtime.profile`` returns it.

    Attributes:
        torch_profiler: The ``torch.profiler.profile`` that records the steps. It has further methods, such as ``key_averages``.
        summary: The summary of the recorded steps. It is set when the last step to be recorded ends or, if the ``with`` block ends earlier,
            at the end of the block. Until then, it is None. It stays None if the block ends before the recording begins, or if the block
            raises an error before the last step to be recorded has ended.
        memory_snapshot: The file with the memory snapshot. None if no snapshot was requested or no file has been written.
    """

    def __init__(
        self,
        session: Session,
        modules: Sequence[torch.nn.Module],
        rank_info: RankInfo,
        *,
        wait: int,
        warmup: int,
        active: int,
        folder: str | Path | None,
        with_stack: bool,
        memory_snapshot: bool,
    ) -> None:
        for name, number, least in (("wait", wait, 0), ("warmup", warmup, 0), ("active", active, 1)):
            if whole_number(number) is None or number < least:
                raise UsageError(
                    f"rt.profile({name}={number!r:.60}) is invalid",
                    why=f"it is a number of steps, at least {least}",
                    hint="write rt.profile(wait=5, warmup=1, active=3), for example",
                )
        if memory_snapshot and folder is None:
            raise UsageError(
                "rt.profile(memory_snapshot=True) has no folder",
                why="the memory snapshot is a file",
                hint='write rt.profile(memory_snapshot=True, folder="traces"), for example',
            )
        self.summary: Summary | None = None
        self.memory_snapshot: Path | None = None
        self._device, self._modules = session.device, modules
        self._outermost: torch.nn.Module | None = None
        self._trace = None if folder is None else tensorboard_trace_handler(str(folder), f"rank{rank_info.process_index}")
        self._hooks = ExitStack()
        self._forward: record_function | None = None
        self._num_left, self._num_active = wait + warmup + active, active
        self._history = None
        if memory_snapshot and folder is not None:
            self._history = MemoryHistory(session.configuration.accelerator, self._device, Path(folder), rank_info)
        self._has_failed = False
        self.torch_profiler = profile(
            activities=activities(self._device.type),
            schedule=schedule(wait=wait, warmup=warmup, active=active, repeat=1),
            on_trace_ready=self._finish,
            record_shapes=True,  # also records the devices of the arguments of each operator, which show what is copied where
            profile_memory=True,
            with_stack=with_stack,
        )

    def step(self) -> None:
        """End a step of the loop. Call this method after each step, in the thread that runs the loop."""
        self._num_left -= 1
        if self._num_left == self._num_active:
            self._start_history()
        self.torch_profiler.step()
        if self._num_left == 0:
            self._end_history(None)

    def __enter__(self) -> Self:
        with ExitStack() as entered:
            for module in self._modules:
                before = module.register_forward_pre_hook(self._begin_forward)
                after = module.register_forward_hook(self._end_forward, always_call=True)
                entered.callback(before.remove)
                entered.callback(after.remove)
            if self._history is not None:
                entered.callback(self._history.stop)
            if self._num_left == self._num_active:
                self._start_history()
            self.torch_profiler.__enter__()  # type: ignore[no-untyped-call]
            self._hooks = entered.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._hooks:
            self._has_failed = error is not None
            self.torch_profiler.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
            self._end_history(error)

    def _start_history(self) -> None:
        if self._history is not None:
            self._history.start()

    def _end_history(self, error: BaseException | None) -> None:
        if self._history is not None:
            self.memory_snapshot = self._history.end(error) or self.memory_snapshot

    def _begin_forward(self, module: torch.nn.Module, _: Any) -> None:
        if self._forward is None:
            self._forward, self._outermost = record_function(FORWARD), module
            self._forward.__enter__()  # type: ignore[no-untyped-call]

    def _end_forward(self, module: torch.nn.Module, *_: Any) -> None:
        if self._forward is not None and module is self._outermost:
            self._forward.__exit__(None, None, None)
            self._forward = None

    def _finish(self, profiler: profile) -> None:
        if self._has_failed:
            return
        if self._trace is not None:
            self._trace(profiler)
        self.summary = summarize(profiler, self._device, has_partial_step=self._num_left > 0)


def activities(device_type: str) -> list[ProfilerActivity]:
    """Return the activities that can be recorded: operators on the host and, if torch.profiler supports the device, work on the device."""
    of_device = getattr(ProfilerActivity, device_type.upper(), ProfilerActivity.PrivateUse1)
    return list(dict.fromkeys([ProfilerActivity.CPU, *({of_device} & supported_activities())]))  # type: ignore[no-untyped-call]
