"""What each rank does in test_lazy_verification_of_ranks.py: save a checkpoint, or load one whose part of rank 2 is damaged."""

from __future__ import annotations

import sys

import pytest
import torch

import accelkit

folder, action = sys.argv[1:]
rt = accelkit.Runtime("cpu", strategy="ddp")
model = rt.prepare(torch.nn.Linear(4, 4))
if action == "save":
    rt.save_state(folder)
else:
    rt.load_state(folder, verify="lazy")
    with pytest.raises(accelkit.CheckpointError, match=r"__2_0.distcp: its checksum is wrong"):
        rt.save_state(folder)
rt.teardown()
