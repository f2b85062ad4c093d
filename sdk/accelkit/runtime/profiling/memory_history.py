"""A device's memory allocations during the profiled steps, recorded by the device's memory module, such as ``torch.cuda.memory``."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from accelkit.atomic_file import atomic_file
from accelkit.errors import UnsupportedError, is_out_of_memory
from accelkit.runtime.rank_info import RankInfo
from accelkit.specs.accelerator import Accelerator

MAX_ENTRIES = 100_000
"""The largest number of entries in a recording. When it is reached, the oldest entries are discarded."""

_FUNCTIONS = ("_record_memory_history", "_snapshot")


class MemoryHistory:
    """A recording of the memory allocations of a device. ``end`` writes it to a file that https://docs.pytorch.org/memory_viz can open.

    If the program itself is recording, no new recording is started, because a new recording would replace the options of the program's
    recording, and torch could not restore these options. The program's recording is used instead, and keeps running. If the program's
    recording has no entries yet, it is not detected, and a new recording replaces it.

    Args:
        accelerator: The accelerator. Errors name its plugin.
        device: The device.
        folder: The folder for the file, created if it does not exist.
        rank_info: The ranks of this process. The name of the file contains the global rank.

    Raises:
        UnsupportedError: If the device's memory module, such as ``torch.cuda.memory``, lacks functions that record allocations.
    """

    def __init__(self, accelerator: Accelerator, device: torch.device, folder: Path, rank_info: RankInfo) -> None:
        self._name = f"torch.{device.type}.memory"
        memory: Any = getattr(getattr(torch, device.type, None), "memory", None)
        missing = [name for name in _FUNCTIONS if not callable(getattr(memory, name, None))]
        if missing:
            raise UnsupportedError(
                f"memory snapshots are not supported on {device}",
                plugin=accelerator.plugin,
                why=f"{self._name} does not exist" if memory is None else f"{self._name} does not have {', '.join(missing)}",
                hint=f"leave memory_snapshot=True out; a vendor can add {', '.join(_FUNCTIONS)} to {self._name}, as in torch.cuda.memory",
            )
        self._record, self._take = memory._record_memory_history, memory._snapshot
        self._accelerator, self._folder, self._rank_info = accelerator, folder, rank_info
        self._is_recording = self._is_own = False

    def start(self) -> None:
        """Start recording allocations. If the program itself is recording, use its recording instead (see the class)."""
        with self._plugin_noted():
            self._is_own = not any(self._take()["device_traces"])  # only a running recording has entries, because ending it discards them
            self._is_recording = True
            if self._is_own:
                self._record("all", stacks="python", max_entries=MAX_ENTRIES)

    def end(self, error: BaseException | None) -> Path | None:
        """Write the file, end the recording as ``stop`` does, and return the path of the file.

        Args:
            error: The error that ended the profiled steps, or None. After an error, the file is written only if the error is an
                out-of-memory error. A note that names the file is then added to the error.

        Returns:
            The path. None if there is no recording, or if no file is written.
        """
        if error is None or not self._is_recording:
            return self._write()
        if not is_out_of_memory(error):
            self.stop()
            return None
        try:
            path = self._write()
        except Exception as failure:
            error.add_note(f"The memory snapshot could not be written: {failure}")
            return None
        error.add_note(f"The memory snapshot is in {path}. Open it with https://docs.pytorch.org/memory_viz")
        return path

    def stop(self) -> None:
        """End the recording without writing a file. If the program itself started the recording, the recording continues.

        Does nothing if ``start`` has not been called, or if the recording has ended.
        """
        was_recording, self._is_recording = self._is_recording, False
        if was_recording and self._is_own:
            with self._plugin_noted():
                self._record(None)

    def _write(self) -> Path | None:
        if not self._is_recording:
            return None
        path = self._folder / f"rank{self._rank_info.process_index}.{time.time_ns()}.memory.pickle"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._plugin_noted():
                snapshot = self._take()
            with atomic_file(path, is_durable=False) as temporary, temporary.open("wb") as file:
                pickle.dump(snapshot, file)  # pickle.dumps would need as much memory again as the snapshot, which may take gigabytes
        finally:
            self.stop()
        return path

    @contextlib.contextmanager
    def _plugin_noted(self) -> Iterator[None]:
        """Return a context manager that adds a note to any error raised in its ``with`` block.

        The note names the device's memory module and the plugin.
        """
        try:
            yield
        except Exception as error:
            error.add_note(f"{self._name}, which belongs to the plugin {self._accelerator.plugin}, raised this error")
            raise
