"""Count the modules and functions of accelkit that run in four flows, to show how much code one must read to follow each of them.

    python benchmarks/flows.py            # a table; --list names the functions, --json prints everything as JSON

The flows are: create a Runtime and its device, train on a batch, save the state on two processes, and run one test of the suite. Each runs
in a separate process. Only calls during the flow count, in any thread of the process. A module counts if one of its functions was entered;
importing it is not enough. Functions are identified by module, line and name. Before the second and the third flow, the device is already
in use and one step has been trained.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PACKAGES = ("accelkit", "accelkit_builtin", "accelkit_conformance")
START = "Runtime() up to the device"
BATCH = "one batch of a training loop"
SAVE = "save_state on two processes (rank 0)"
CONFORMANCE = "accelkit conformance run, one verdict (parent)"
TEST = "contract/class_is_documented"


class Recording:
    """Records the functions of accelkit that are called inside ``with recording.active():``."""

    def __init__(self) -> None:
        self.entered: set[tuple[str, str, int]] = set()
        self._seen: set[CodeType] = set()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Context manager that records calls in this thread and in threads that start inside the block."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or code in self._seen:
            return
        self._seen.add(code)
        module = frame.f_globals.get("__name__", "")
        is_function = code.co_name != "<module>" and not code.co_filename.startswith("<") and not _is_class_body(code)
        if is_function and module.partition(".")[0] in PACKAGES:
            self.entered.add((module, code.co_qualname, code.co_firstlineno))


def _is_class_body(code: CodeType) -> bool:
    return "__module__" in code.co_names and "__qualname__" in code.co_names


def start(recording: Recording) -> None:
    """Make a Runtime and its device."""
    import accelkit

    with recording.active():
        _ = accelkit.Runtime("cpu").device


def batch(recording: Recording) -> None:
    """Train on the second of three batches."""
    runtime, model, optimizer, loader = _prepared()
    batches = iter(loader)
    _step(runtime, model, optimizer, next(batches))
    with recording.active():
        _step(runtime, model, optimizer, next(batches))


def save(recording: Recording) -> None:
    """Save the state of a model that was trained for one step."""
    runtime, model, optimizer, loader = _prepared()
    _step(runtime, model, optimizer, next(iter(loader)))
    folder = runtime.broadcast(tempfile.mkdtemp())
    with recording.active():
        runtime.save_state(folder)
    runtime.teardown()


def conformance(recording: Recording) -> None:
    """Run the command line in this process. The test itself runs in a worker process."""
    from accelkit import cli

    sys.argv = ["accelkit", "conformance", "run", "cpu", "--profile", "contract", "--select", TEST, "-n", "1"]
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.suppress(SystemExit), recording.active():
        cli.main()


FLOWS: dict[str, Callable[[Recording], None]] = {START: start, BATCH: batch, SAVE: save, CONFORMANCE: conformance}


def _prepared() -> tuple[Any, Any, Any, Any]:
    import torch

    import accelkit

    runtime = accelkit.Runtime("cpu")
    model = torch.nn.Linear(4, 1)
    loader = torch.utils.data.DataLoader(torch.ones(24, 4), batch_size=4)
    return runtime, *runtime.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)


def _step(runtime: Any, model: Any, optimizer: Any, data: Any) -> None:
    loss = model(data).mean()
    runtime.backward(loss)
    optimizer.step()
    optimizer.zero_grad()


def measured(flow: str) -> list[str]:
    """Run a flow in a separate process, and return the functions that it enters, each as ``module:name``.

    Raises:
        SystemExit: If the flow fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "entered.json"
        command = [sys.executable, str(Path(__file__).resolve()), "--flow", flow, "--output", str(output)]
        if flow == SAVE:
            command[1:1] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        environ = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, check=False, env=environ, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"the flow {flow!r} failed:\n{done.stderr}")
        return [f"{module}:{name}" for module, name, _ in json.loads(output.read_text())]


def main() -> None:
    parser = argparse.ArgumentParser(description="How many modules and functions of accelkit run in four flows.")
    parser.add_argument("--json", action="store_true", help="every function of every flow, as JSON")
    parser.add_argument("--list", action="store_true", help="also print the functions")
    parser.add_argument("--flow", choices=FLOWS, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.flow:
        recording = Recording()
        FLOWS[options.flow](recording)
        if os.environ.get("RANK", "0") == "0":
            options.output.write_text(json.dumps(sorted(recording.entered)))
        return
    found = {flow: measured(flow) for flow in FLOWS}
    modules = {flow: {name.partition(":")[0] for name in names} for flow, names in found.items()}
    if options.json:
        print(json.dumps({flow: {"modules": sorted(modules[flow]), "functions": names} for flow, names in found.items()}))
        return
    print(f"{'':<48}{'modules':>9}{'functions':>11}")
    for flow, names in found.items():
        print(f"{flow:<48}{len(modules[flow]):>9}{len(names):>11}")
        for name in names if options.list else ():
            print(f"    {name}")


if __name__ == "__main__":
    main()
