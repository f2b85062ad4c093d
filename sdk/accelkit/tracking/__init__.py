"""Experiment trackers for ``Runtime(trackers=[...])``. Importing this package imports neither torch nor a tracker's package."""

from accelkit.tracking.csv import CSV
from accelkit.tracking.jsonl import JSONLines
from accelkit.tracking.mlflow import MLflow
from accelkit.tracking.tensorboard import TensorBoard
from accelkit.tracking.tracker import Tracker
from accelkit.tracking.wandb import WandB

__all__ = ["CSV", "JSONLines", "MLflow", "TensorBoard", "Tracker", "WandB"]
