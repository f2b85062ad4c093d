"""Experiment trackers for ``Runtime(trackers=[...])``.

Importing this package imports neither torch nor a tracker's package. The module of a tracker is imported when its class is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from accelkit.tracking.tracker import Tracker

if TYPE_CHECKING:
    from accelkit.tracking.csv import CSV as CSV
    from accelkit.tracking.jsonl import JSONLines as JSONLines
    from accelkit.tracking.mlflow import MLflow as MLflow
    from accelkit.tracking.tensorboard import TensorBoard as TensorBoard
    from accelkit.tracking.wandb import WandB as WandB

CLASSES = {"csv": "CSV", "jsonl": "JSONLines", "mlflow": "MLflow", "tensorboard": "TensorBoard", "wandb": "WandB"}
"""The class of each tracker that can be selected by name. The module of the class has the name of the tracker."""

__all__ = ["CSV", "JSONLines", "MLflow", "TensorBoard", "Tracker", "WandB"]


def __getattr__(name: str) -> object:
    for module, class_name in CLASSES.items():
        if name == class_name:
            return getattr(importlib.import_module(f"accelkit.tracking.{module}"), name)
    raise AttributeError(f"module 'accelkit.tracking' has no attribute {name!r}")
