"""Run a script that is killed after its n-th optimizer step: ``killed_at_step.py N SCRIPT [ARGUMENTS]``."""

from __future__ import annotations

import itertools
import os
import runpy
import signal
import sys
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

number, script = int(sys.argv[1]), sys.argv[2]
steps = itertools.count(1)


def kill(*_: Any) -> None:
    if next(steps) == number:
        os.kill(os.getpid(), signal.SIGKILL)


register_optimizer_step_post_hook(kill)
sys.argv[:] = sys.argv[2:]
runpy.run_path(script, run_name="__main__")
