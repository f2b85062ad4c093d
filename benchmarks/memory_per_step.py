"""Peak device memory of a training step in accelkit, Fabric and Accelerate, compared with the raw loop.

The model is an MLP 256-1024-1024-10, trained with AdamW on batches of 2048. By default, it runs on the fake XPU, whose memory statistics
are exact. Each contestant runs in a separate process.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import peers
import torch
from measuring import Measure, arguments, compare, report

import accelkit

STEPS = 3
PRECISIONS = ("32-true", "bf16-mixed")


def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10)]
    model = torch.nn.Sequential(*layers)
    return model, torch.optim.AdamW(model.parameters())


def prepared(name: str, precision: str, accelerator: str) -> tuple[Any, Any, Callable[[torch.Tensor], object], torch.device]:
    """Return the prepared model and optimizer, the backward function, and the device."""
    if name == "accelkit":
        runtime = accelkit.Runtime(accelerator, precision=precision)
        return *runtime.prepare(*make()), runtime.backward, runtime.device
    if name == "Fabric":
        fabric = peers.fabric(accelerator, precision)
        return *fabric.setup(*make()), fabric.backward, fabric.device
    if name == "Accelerate":
        theirs = peers.accelerate(accelerator, precision)
        return *theirs.prepare(*make()), theirs.backward, theirs.device
    device = accelkit.device(accelerator)
    torch.manual_seed(0)
    model = make()[0].to(device)
    return model, torch.optim.AdamW(model.parameters()), torch.Tensor.backward, device


def peak(name: str, precision: str, accelerator: str) -> float:
    """Return the peak memory of the last step in MiB."""
    model, optimizer, backward, device = prepared(name, precision, accelerator)
    statistics = torch.get_device_module(device)
    batch = torch.randn(2048, 256).to(device)
    is_raw_and_mixed = name == "raw loop" and precision == "bf16-mixed"
    for _ in range(STEPS):
        statistics.reset_peak_memory_stats(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=is_raw_and_mixed):
            loss = model(batch).square().mean()
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    return float(statistics.max_memory_allocated(device)) / (1 << 20)


def in_a_process(*what: str) -> float:
    run = subprocess.run([sys.executable, __file__, *what], check=True, capture_output=True, text=True)
    return float(run.stdout.split()[-1])


def main() -> None:
    if len(sys.argv) == 4 and sys.argv[2] in PRECISIONS:
        print(peak(*sys.argv[1:]))
        return
    options = arguments(__doc__.partition("\n")[0], rounds=1, accelerator="fake_xpu")
    tables = []
    for precision in PRECISIONS:
        names = ("raw loop", "accelkit", "Fabric", "Accelerate")
        measures: dict[str, Measure | str] = {name: functools.partial(in_a_process, name, precision, options.accelerator) for name in names}
        tables.append(compare(f"peak memory of a step in {precision}", "MiB", measures, options.rounds, options.seconds))
    report(tables, is_json=options.json)


if __name__ == "__main__":
    main()
