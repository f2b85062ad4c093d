"""What each rank does in test_preemption_notice.py: trains until the notice of rank 1's machine. The service of rank 0 never answers.

``preemption_notice_program.py FOLDER``: the notice is the file FOLDER/notice.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import torch

import accelkit
from accelkit_builtin.clusters.torchelastic import TorchElasticEnvironment

FOLDER = Path(sys.argv[1])


class Spot(TorchElasticEnvironment):
    """A machine that may be taken away."""

    preemption_poll_seconds = 0.1

    def is_preempted(self) -> bool:
        if self.global_rank == 0:
            threading.Event().wait()
        return (FOLDER / "notice").exists()


rt = accelkit.Runtime("cpu", cluster=Spot(), strategy="ddp")
rank = rt.process_index
model = torch.nn.Linear(4, 1)
model, optimizer = rt.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
rt.resume(FOLDER / "ckpt")
for step in range(2000):
    rt.backward(model(torch.ones(2, 4)).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0 and step == 5:
        (FOLDER / "notice").touch()
    try:
        rt.save_and_stop_if_preempted(FOLDER / "ckpt")
    except SystemExit:
        print(f"stopped after step {step}", flush=True)
        raise
    time.sleep(0.02)
