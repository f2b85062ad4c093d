"""The tracker ``wandb``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from accelkit.tracking.tracker import Outcome, Scalar, Tracker

if TYPE_CHECKING:
    from wandb import Run


class WandB(Tracker):
    """A tracker that records the run in Weights & Biases. It needs the package ``wandb``.

    Hyperparameters become the configuration of the run.

    If a program continues from a checkpoint, the same W&B run is continued, and steps that the run already has are not recorded again.
    In offline mode, W&B may lose what a killed process recorded: use another tracker as well.

    Args:
        project: The project. None means ``WANDB_PROJECT``, or else W&B's default.
        options: Further arguments of ``wandb.init``, such as ``entity``, ``name``, ``tags`` and ``mode="offline"``.

    Attributes:
        run: The ``wandb.Run``. Use it to log images, tables and artifacts. None before the first ``rt.log``, and always None on processes
            other than the main process.
    """

    name = "wandb"
    package = "wandb"
    module = "wandb"

    def __init__(self, project: str | None = None, **options: Any) -> None:
        self.run: Run | None = None
        self._options = {"project": project, **options}

    def open(self, state: Mapping[str, Any] | None) -> None:
        import wandb

        continued = {} if state is None else {"id": state["id"], "resume": "allow"}
        self.run = wandb.init(**{**self._options, **continued})

    def log(self, values: Mapping[str, Scalar], step: int) -> None:
        assert self.run is not None
        if step >= self.run.starting_step:
            self.run.log(dict(values), step=step)

    def log_hyperparameters(self, values: Mapping[str, Any]) -> None:
        assert self.run is not None
        self.run.config.update(dict(values), allow_val_change=True)

    def close(self, outcome: Outcome) -> None:
        if self.run is None:
            return
        if outcome == "interrupted":
            self.run.mark_preempting()
        self.run.finish(exit_code=0 if outcome == "finished" else 1)

    def state(self) -> dict[str, Any]:
        assert self.run is not None
        return {"id": self.run.id}
