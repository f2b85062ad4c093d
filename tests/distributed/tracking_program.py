"""What each rank does in test_tracking.py: values, messages and progress bars of a job."""

from __future__ import annotations

import logging
import os
import sys

import accelkit

os.chdir(sys.argv[1])
logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
log = accelkit.get_logger("mine")
calls = []
rt = accelkit.Runtime("cpu", strategy="ddp", trackers=["csv", "jsonl", "tensorboard", lambda values, step: calls.append(step)])
rt.log_hyperparameters({"rate": 0.1})
_ = rt.device
log.info("main only")
log.info("everywhere", main_process_only=False)
with open("order", "a") as file:  # each process has a handle of its own
    log.logger.addHandler(logging.StreamHandler(file))
    for _ in range(3):
        log.info("in order", in_order=True)
for step in rt.progress(range(2), "steps"):
    rt.log({"loss": rt.process_index}, step=step)
print("calls", calls, [type(tracker).__name__ for tracker in rt.trackers])
rt.teardown()
