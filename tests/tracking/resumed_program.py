"""Training that is killed at a step, or not: ``PROGRAM STEP_AT_WHICH_IT_IS_KILLED TRACKER...``. Values tell which process logged them."""

from __future__ import annotations

import os
import signal
import sys

import torch

import accelkit
from accelkit.tracking import TensorBoard, Tracker

LAST, SAVED_AT = 9, (2, 5)
killed_at = int(sys.argv[1])


class Outcome(Tracker):
    """Prints how the run ends."""

    name = "outcome"

    def log(self, values, step):
        pass

    def close(self, outcome):
        print(outcome)


class Steps:
    done = 0

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]


rt = accelkit.Runtime("cpu", trackers=[*sys.argv[2:], Outcome()])
model = rt.prepare(torch.nn.Linear(1, 1))
steps = Steps()
rt.register_for_checkpointing(steps)
rt.log_hyperparameters({"learning_rate": 0.5, "model": {"depth": 2}})
offset = 100 if rt.resume("ckpt") else 0
while steps.done <= LAST:
    step = steps.done
    rt.log({"loss": torch.tensor(float(step + offset))}, step=step)
    if step % 3 == 2:
        rt.log({"accuracy": 0.5}, step=step)
    steps.done += 1
    if step in SAVED_AT:
        rt.save_state("ckpt")
    if step == killed_at:
        for tracker in rt.trackers:
            if isinstance(tracker, TensorBoard):
                tracker.writer.flush()  # what it has written would reach the disk a moment later
        os.kill(os.getpid(), signal.SIGKILL)
# The trackers are closed at exit.
