"""Adapter for Lightning's loggers.

The module does not import Lightning. A program that passes a Lightning logger has already imported Lightning.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from accelkit.tracking.tracker import Outcome, Scalar, Tracker

_STATUS = {"finished": "success", "failed": "failed", "interrupted": "aborted"}


class LightningLogger(Tracker):
    """A tracker that passes values to a Lightning or Fabric ``Logger``, or to an object with the same methods.

    If a program logs values again after a resume, the values are passed to the ``Logger`` again, because a ``Logger`` does not report which
    steps it has already recorded.

    Args:
        logger: The ``Logger``.
    """

    def __init__(self, logger: Any) -> None:
        self.name = type(logger).__qualname__
        self._logger = logger

    def log(self, values: Mapping[str, Scalar], step: int) -> None:
        self._logger.log_metrics(dict(values), step=step)

    def log_hyperparameters(self, values: Mapping[str, Any]) -> None:
        with contextlib.suppress(NotImplementedError):  # Fabric's CSVLogger records no hyperparameters
            self._logger.log_hyperparams(dict(values))

    def flush(self) -> None:
        save = getattr(self._logger, "save", None)
        if callable(save):
            save()

    def close(self, outcome: Outcome) -> None:
        self._logger.finalize(_STATUS[outcome])

    def rewind(self, state: Mapping[str, Any] | None) -> None:
        pass  # a run that was finalized cannot be continued
