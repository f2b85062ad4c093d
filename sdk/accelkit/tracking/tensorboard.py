"""The tracker ``tensorboard``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelkit.tracking.tracker import FolderTracker, Outcome, Scalar
from accelkit.tracking.values import flat

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter


class TensorBoard(FolderTracker):
    """A tracker that writes event files for TensorBoard with ``torch.utils.tensorboard``. It needs the package ``tensorboard``.

    Numbers become scalars, and strings become text. Hyperparameters appear in the HPARAMS tab.

    If a program continues from a checkpoint, the tracker begins a new event file with a ``purge_step``. TensorBoard then ignores the events
    that older event files contain for steps after the checkpoint. This works only if steps never decrease during the run. Therefore, pass
    the index of the optimizer step as ``step`` for every value; do not pass the index of the epoch for some of them. If a new run begins in
    a folder that has event files, TensorBoard ignores the events in these files.

    Args:
        folder: The folder. None means the folder of the run, ``runs/<date>_<time>``.
        options: Further arguments of ``SummaryWriter``, such as ``flush_secs``.

    Attributes:
        folder: The folder. If the argument ``folder`` is None, this attribute is None until ``open`` is called.
        writer: The ``SummaryWriter``. The program can also use it to write images, histograms and so on. None before the first ``rt.log``,
            and always None on processes other than the main process.
    """

    name = "tensorboard"
    package = "tensorboard"
    module = "tensorboard"

    def __init__(self, folder: str | Path | None = None, **options: Any) -> None:
        super().__init__(folder)
        self.writer: SummaryWriter | None = None
        self._options = options
        self._next_step = 0

    def open(self, state: Mapping[str, Any] | None) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        position = self.position(state)
        self._next_step = position["next_step"] if position else 0
        self.writer = SummaryWriter(str(self.folder), purge_step=self._next_step, **self._options)

    def log(self, values: Mapping[str, Scalar], step: int) -> None:
        writer: Any = self.writer
        for key, value in values.items():
            if isinstance(value, str):
                writer.add_text(key, value, step)
            else:
                writer.add_scalar(key, value, step)
        if step >= self._next_step:
            self._next_step = step + 1

    def log_hyperparameters(self, values: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard.summary import hparams

        writer: Any = self.writer
        for summary in hparams(flat(values), {}):  # type: ignore[no-untyped-call]
            writer.file_writer.add_summary(summary)  # SummaryWriter.add_hparams would begin another run, in a subfolder

    def flush(self) -> None:
        writer: Any = self.writer
        writer.flush()

    def close(self, outcome: Outcome) -> None:
        writer: Any = self.writer
        if writer is not None:
            writer.close()

    def state(self) -> dict[str, Any]:
        return super().state() | {"next_step": self._next_step}
