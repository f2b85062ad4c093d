"""Trackers of Accelerate and loggers of Lightning, given to a Runtime as they are."""

from __future__ import annotations

import csv

from accelerate.tracking import GeneralTracker, on_main_process
from lightning.fabric.loggers import CSVLogger

import accelkit


class Mine(GeneralTracker):
    name, requires_logging_directory, tracker = "mine", False, None

    def __init__(self):
        super().__init__()
        self.calls = []

    @on_main_process
    def store_init_configuration(self, values):
        self.calls.append(values["rate"])

    @on_main_process
    def log(self, values, step=None):
        self.calls.append((step, values))

    @on_main_process
    def finish(self):
        self.calls.append("finish")


def test_they_are_used_as_they_are(tmp_path):
    tracker, logger = Mine(), CSVLogger(tmp_path, name="a", version=0)
    with accelkit.Runtime("cpu", trackers=[tracker, logger]) as rt:
        rt.log_hyperparameters({"rate": 0.5})
        rt.log({"loss": 1.0})
        assert rt.trackers == (tracker, logger)
    assert tracker.calls == [0.5, (0, {"loss": 1.0}), "finish"]
    with (tmp_path / "a/version_0/metrics.csv").open() as file:
        assert list(csv.DictReader(file)) == [{"loss": "1.0", "step": "0"}]
