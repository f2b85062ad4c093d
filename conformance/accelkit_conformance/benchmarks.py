"""Measure the performance of a device. The measured numbers do not affect the result of any test.

``measure`` runs this module in a child process, which reads a request (JSON) from its standard input.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelkit import DevicesError, PluginRecord
from accelkit_conformance.subprocess_checks import about, answer, ask

_SECONDS = 300
_ROUNDS = 9
_COPY_BYTES = 64 << 20
_SIZES = {"float32": 1024, "bfloat16": 1024, "float16": 1024, "float64": 512}


def measure(record: PluginRecord) -> dict[str, Any]:
    """Measure the performance of a plugin's device, in a child process.

    Returns:
        Groups of rows for a report: ``{"groups": [{"title", "unit", "rows": [{"name", "value"}]}]}``.

    Raises:
        AssertionError: If the process ends or exceeds the time limit of 300 s before it returns a result.
    """
    return ask(__name__, about(record), _SECONDS)


def main() -> None:
    """Handle a request from ``measure``, in the child process."""
    request = json.load(sys.stdin)
    sys.path[:] = request["sys_path"]
    record = PluginRecord(**request["record"])
    from accelkit.discovery import loading

    accelerator: Any = loading.instantiate(loading.load_class(record), record)
    accelerator.load()
    device = accelerator.device(0)
    accelerator.setup_device(device)
    groups = [_launches(accelerator, device), _bandwidth(accelerator, device), _matmuls(accelerator, device), _collectives(accelerator)]
    answer({"groups": [group for group in groups if group["rows"]]})


def _median_seconds(accelerator: Any, device: Any, call: Callable[[], Any], repeat: int) -> float:
    """Return the time in seconds that one call takes.

    After a warm-up call, ``_ROUNDS`` rounds of ``repeat`` calls are timed. A round ends when the device has finished all of its calls. The
    result is the median of the rounds' average times.
    """
    call()
    rounds = []
    for _ in range(_ROUNDS):
        accelerator.synchronize(device)
        start = time.perf_counter()
        for _ in range(repeat):
            call()
        accelerator.synchronize(device)
        rounds.append((time.perf_counter() - start) / repeat)
    return statistics.median(rounds)


def _launches(accelerator: Any, device: Any) -> dict[str, Any]:
    """Measure the launch latency: the time in microseconds that an operator takes on one element."""
    import torch

    x = torch.ones(1, device=device)
    calls = {"add": lambda: x + x, "add_": lambda: x.add_(0), "empty": lambda: torch.empty(1, device=device), "item": x.item}
    rows = [{"name": name, "value": _median_seconds(accelerator, device, call, 1000) * 1e6} for name, call in calls.items()]
    return {"title": "Launch latency", "unit": "us", "rows": rows}


def _bandwidth(accelerator: Any, device: Any) -> dict[str, Any]:
    """Measure the bandwidth in GB/s of copies of 64 MiB: from host to device, from device to host, and within the device.

    Host memory is pageable and, if the device supports it, also pinned. A copy within the device counts as 64 MiB, although it reads 64 MiB
    and writes 64 MiB.
    """
    import torch

    host = torch.ones(_COPY_BYTES // 4)
    there, other = host.to(device, copy=True), host.to(device, copy=True)
    calls: dict[str, Callable[[], Any]] = {
        "host to device, pageable": lambda: there.copy_(host),
        "device to host, pageable": lambda: host.copy_(there),
        "within the device": lambda: other.copy_(there),
    }
    if accelerator.capabilities(device).can("pinned_memory"):
        pinned = torch.ones(_COPY_BYTES // 4).pin_memory()
        calls["host to device, pinned"] = lambda: there.copy_(pinned, non_blocking=True)
        calls["device to host, pinned"] = lambda: pinned.copy_(there, non_blocking=True)
    rows = [{"name": name, "value": _COPY_BYTES / 1e9 / _median_seconds(accelerator, device, call, 1)} for name, call in calls.items()]
    return {"title": "Bandwidth of copies", "unit": "GB/s", "rows": rows}


def _matmuls(accelerator: Any, device: Any) -> dict[str, Any]:
    """Measure the rate in GFLOP/s of square matmuls in each dtype. An n x n matmul counts as 2 n^3 operations.

    The result has a row for each dtype. The highest rate counts as the measured peak of the device, and the name of each row gives the rate
    as a percentage of this peak.
    """
    import torch

    rows = []
    for name, size in _SIZES.items():
        if accelerator.capabilities(device).can(f"dtype.{name}"):
            x = torch.ones(size, size, dtype=getattr(torch, name), device=device)
            seconds = _median_seconds(accelerator, device, lambda x=x: x @ x, 1)  # type: ignore[misc]
            rows.append({"name": f"{name}, {size} x {size}", "value": 2 * size**3 / seconds / 1e9})
    peak = max((float(str(row["value"])) for row in rows), default=1.0)
    rows = [{"name": f"{row['name']} ({float(str(row['value'])) / peak:.0%} of the peak measured)", "value": row["value"]} for row in rows]
    return {"title": "Matmul", "unit": "GFLOP/s", "rows": rows}


def _collectives(accelerator: Any) -> dict[str, Any]:
    """Measure the rate in GB/s of an all-reduce of 16 MiB between two processes.

    The rate is 16 MiB divided by the time of one all-reduce.

    The result has no rows if the accelerator does not declare ``process_group``, or if it has only one device and processes cannot share
    it. Many backends, such as NCCL, refuse two processes on one device.
    """
    rows, indices = [], _indices_of_two(accelerator)
    if accelerator.capabilities().can("process_group") and indices:
        import tempfile

        from torch.multiprocessing.spawn import spawn

        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rate")
            spawn(_reduce, (type(accelerator), accelerator.name, indices, folder), nprocs=2)  # type: ignore[no-untyped-call]
            rows.append({"name": "all_reduce, 2 processes", "value": float(Path(path).read_text())})
    return {"title": "Collectives", "unit": "GB/s", "rows": rows}


def _indices_of_two(accelerator: Any) -> list[int]:
    """Return the device index for each of two processes.

    The list is empty if there is only one device and processes cannot share it.
    """
    try:
        found: list[int] = accelerator.parse_devices(2)
    except DevicesError:
        return []
    return found


def _reduce(rank: int, cls: Any, name: str, indices: list[int], folder: str) -> None:
    """Run one of the two ranks of the all-reduce, on the device with the index ``indices[rank]``. Rank 0 writes the measured rate in GB/s
    to the file ``rate`` in ``folder``."""
    import torch
    import torch.distributed as dist

    from accelkit.runtime.process_group import backend_of

    accelerator = cls()
    accelerator.name = name
    accelerator.load()
    device = accelerator.device(indices[rank])
    accelerator.setup_device(device)
    backend = backend_of(device, accelerator.process_group_backend)
    dist.init_process_group(backend, init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    x = torch.ones(4 << 20, device=device)
    seconds = _median_seconds(accelerator, device, lambda: dist.all_reduce(x), 1)
    if rank == 0:
        Path(folder, "rate").write_text(str(x.numel() * 4 / 1e9 / seconds), "utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
