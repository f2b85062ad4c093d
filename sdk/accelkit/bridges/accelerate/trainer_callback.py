"""A callback that saves and restores the device's random state.

``transformers.Trainer`` itself saves and restores the random state of only some device types.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from accelkit.bridges.accelerate.random_state import load_random_state, save_random_state
from accelkit.bridges.accelerate.state import current_runtime


class DeviceRandomStateCallback(TrainerCallback):
    """A callback that saves the device's random state with each checkpoint, and restores it before the first step after resuming.

    Use it as ``Trainer(..., callbacks=[DeviceRandomStateCallback()])``. It reads the state from the folder that
    ``TrainingArguments.resume_from_checkpoint`` names, or else from the checkpoint of the current step under ``output_dir``. A folder that
    is passed only to ``Trainer.train`` is not known to callbacks. If there is no state, the callback warns. It does nothing on the CPU,
    whose state Trainer itself saves, or on a device without a generator.
    """

    def __init__(self) -> None:
        self._has_to_load = False

    def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        save_random_state(_checkpoint(args.output_dir, state), current_runtime())

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self._has_to_load = state.global_step > 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if self._has_to_load:
            resume_from = args.resume_from_checkpoint
            folder = (
                Path(resume_from) if isinstance(resume_from, str) and Path(resume_from).is_dir() else _checkpoint(args.output_dir, state)
            )
            load_random_state(folder, current_runtime())
            self._has_to_load = False


def _checkpoint(folder: str, state: Any) -> Path:
    return Path(folder) / f"checkpoint-{state.global_step}"
