"""Profile some steps of a small transformer with ``rt.profile()``, and check what the summary says.

    python benchmarks/profile_step.py --accelerator cuda --output build/profile

Writes a trace for Perfetto, summary.txt with the summary of ordinary steps, and summary-slow.txt with the summary of steps whose data
loader sleeps. The second summary must say that the steps wait for the loader. Exits with 1 if it does not say so, or if the trace of a
CUDA device contains no work of that device.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from accelkit import Runtime

BATCH, LENGTH, WIDTH = 8, 64, 256
WARMUP, ACTIVE = 3, 3
LOADER_SLEEP = 0.1
"""Seconds that a slow sample takes to load. A batch of such samples takes longer to load than a step takes on a CPU."""
DEVICE_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset"}
"""The categories of the device's work in Kineto's traces."""


class Samples(Dataset[torch.Tensor]):
    """Random sequences. Each takes ``sleep`` seconds to load."""

    def __init__(self, sleep: float) -> None:
        self._sleep = sleep
        self._values = torch.randn(BATCH * (WARMUP + ACTIVE + 2), LENGTH, WIDTH)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._sleep)
        return self._values[index]


def profile(rt: Runtime, folder: Path | None, *, sleep: float) -> Any:
    """Profile steps of training, write the trace to ``folder`` unless it is None, and return the profiler's summary."""
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    model, optimizer = rt.prepare(model, torch.optim.AdamW(model.parameters()))
    loader = rt.prepare(DataLoader(Samples(sleep), batch_size=BATCH))
    with rt.profile(warmup=WARMUP, active=ACTIVE, folder=folder) as profiler:
        for x in loader:
            rt.backward(model(x).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    return profiler.summary


def device_activities(folder: Path) -> int:
    """Return how many device activities the traces in ``folder`` contain."""
    events = [event for path in folder.glob("*.json") for event in json.loads(path.read_text("utf-8"))["traceEvents"]]
    return sum(event.get("ph") == "X" and event.get("cat") in DEVICE_CATEGORIES for event in events)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--accelerator", default="cuda", metavar="NAME")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    options = parser.parse_args()
    rt = Runtime(options.accelerator, seed=0)
    ordinary = profile(rt, options.output / "traces", sleep=0.0)
    slow = profile(rt, None, sleep=LOADER_SLEEP)
    for name, summary in (("summary.txt", ordinary), ("summary-slow.txt", slow)):
        (options.output / name).write_text(f"{summary}\n", "utf-8")
    print(ordinary)
    count = device_activities(options.output / "traces")
    print(f"activities of the device in the trace: {count}")
    complaints = []
    if "waiting for the loader" not in str(slow):
        complaints.append("the summary does not say that the loader is slow")
    if rt.device.type == "cuda" and not count:
        complaints.append("the trace has no activity of the device")
    print(*complaints, sep="\n", file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
