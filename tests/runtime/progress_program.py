"""Draws nested progress bars, for test_progress_bars.py."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

import accelkit

rt = accelkit.Runtime("cpu")
loader = rt.prepare(DataLoader(torch.arange(8.0), batch_size=4))
for epoch in rt.progress(range(3), "epochs"):
    for batch in rt.progress(loader, f"epoch [{epoch}]"):
        print("batch", batch.sum().item(), flush=True)
for _ in rt.progress((number for number in range(4)), "unknown"):
    pass
