"""Main memory for loading a checkpoint, besides the tensors that are restored: accelkit, Fabric, Accelerate and torch.load.

The state is 1 GiB of float32 weights, and the state of Adam after a step. The model exists before its state is loaded, so these tensors are
the model's weights and the state that the optimizer has after loading. The numbers are anonymous memory (``RssAnon`` of Linux), which does
not include the pages of mapped files. On the fake XPU, it includes the memory of the device. Each contestant loads in a separate process.
"""

from __future__ import annotations

import functools
import gc
import logging
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import peers
import torch
from measuring import Measure, compare, make_parser, report

import accelkit

MIB = 1 << 20
PARTS = 8
Objects = tuple[torch.nn.Module, torch.optim.Optimizer]


def make(mib: int) -> Objects:
    """Return a model with ``mib`` MiB of weights, in 8 parameters, and its optimizer."""
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(mib * MIB // 4 // PARTS)) for _ in range(PARTS)])
    return model, torch.optim.Adam(model.parameters(), foreach=False)


def prepared(name: str, objects: Objects, folder: Path, accelerator: str) -> tuple[Objects, Callable[[], object], Callable[[], object]]:
    """Return the prepared objects, and the functions that save and load their state."""
    if name.startswith("accelkit"):
        runtime = accelkit.Runtime(accelerator)
        ours: Objects = runtime.prepare(*objects)
        verify = "lazy" if "lazy" in name else "full"

        def load() -> None:
            runtime.load_state(folder, verify=verify)
            runtime.get_state_dict(ours[0])  # waits until everything is verified

        return ours, lambda: runtime.save_state(folder), load
    if name == "Fabric":
        fabric = peers.fabric(accelerator)
        theirs = fabric.setup(*objects)
        state = {"model": theirs[0], "optimizer": theirs[1]}
        return theirs, lambda: fabric.save(folder / "state", state), lambda: fabric.load(folder / "state", state)
    if name == "Accelerate":
        accelerate = peers.accelerate(accelerator)
        return accelerate.prepare(*objects), lambda: accelerate.save_state(str(folder)), lambda: accelerate.load_state(str(folder))
    device = accelkit.device(accelerator)
    objects[0].to(device)

    def load_with_torch() -> None:
        loaded = torch.load(folder / "state", weights_only=True)
        for thing, part in zip(objects, loaded, strict=True):
            thing.load_state_dict(part)

    return objects, lambda: torch.save([thing.state_dict() for thing in objects], folder / "state"), load_with_torch


def anonymous_memory() -> float:
    """Return the anonymous memory of this process in MiB."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon:"))


def peak_of(call: Callable[[], object]) -> float:
    """Return the peak of anonymous memory during the call, minus the memory before it. A thread samples the memory every millisecond."""
    gc.collect()
    before = peak = anonymous_memory()
    is_over = threading.Event()

    def sample() -> None:
        nonlocal peak
        while not is_over.wait(0.001):
            peak = max(peak, anonymous_memory())

    thread = threading.Thread(target=sample)
    thread.start()
    call()
    is_over.set()
    thread.join()
    return peak - before


def state_size(optimizer: torch.optim.Optimizer) -> float:
    return sum(value.nbytes for state in optimizer.state.values() for value in state.values()) / MIB


def work(name: str, mib: int, accelerator: str, folder: Path, is_saving: bool) -> float:
    """Save or load the state. Return the peak while loading, without the state that loading creates, in MiB."""
    (model, optimizer), save, load = prepared(name, make(mib), folder, accelerator)
    if is_saving or "again" in name:
        for parameter in model.parameters():
            parameter.grad = parameter.detach()
        optimizer.step()
        optimizer.zero_grad()
    if is_saving:
        save()
        return 0.0
    if name.startswith("accelkit"):
        from accelkit.runtime.checkpoints import checkpoint  # its memory is not counted

        assert checkpoint
    before = state_size(optimizer)
    peak = peak_of(load)
    return peak - (state_size(optimizer) - before)


def in_processes(name: str, mib: int, accelerator: str, folder: Path | None) -> float:
    with tempfile.TemporaryDirectory(dir=folder) as saved:
        for action in ("save", "load"):
            command = [sys.executable, __file__, "--work", action, name, str(mib), accelerator, saved]
            run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(run.stdout.split()[-1])


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    if sys.argv[1:2] == ["--work"]:
        action, name, mib, accelerator, saved = sys.argv[2:]
        print(work(name, int(mib), accelerator, Path(saved), action == "save"))
        return
    parser = make_parser(__doc__.partition("\n")[0], rounds=1, accelerator="cpu")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--folder", type=Path, help="folder for the checkpoints; by default, the folder for temporary files")
    options = parser.parse_args()
    names = ("torch.load", "accelkit", 'accelkit, verify="lazy"', "accelkit, loaded again", "Fabric", "Accelerate")
    measures: dict[str, Measure | str] = {
        name: functools.partial(in_processes, name, options.mib, options.accelerator, options.folder) for name in names
    }
    title = f"peak memory while loading {options.mib} MiB of weights and their optimizer, besides these tensors"
    report([compare(title, "MiB", measures, options.rounds, options.seconds)], is_json=options.json)


if __name__ == "__main__":
    main()
