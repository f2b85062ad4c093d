"""Device memory, in bytes. Nothing is cached: freed memory is immediately available again, so reserved and allocated memory are equal."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from accelkit_fake_xpu.device_module.devices import Device, device_count, index_of

_ENABLED = ("state", "all")
_CONTEXTS = ("state", "alloc", "all")
_STACKS = ("python", "all")
_ACTIONS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "oom", "snapshot")


def memory_allocated(device: Device = None) -> int:
    """Return the number of bytes that tensors now hold on the device."""
    return torch.accelerator.memory_allocated(index_of(device))


def max_memory_allocated(device: Device = None) -> int:
    """Return the peak memory of tensors on the device in bytes, since the program started or the peak was reset."""
    return torch.accelerator.max_memory_allocated(index_of(device))


def memory_reserved(device: Device = None) -> int:
    """Return the same as ``memory_allocated``, because nothing is cached."""
    return torch.accelerator.memory_reserved(index_of(device))


def max_memory_reserved(device: Device = None) -> int:
    """Return the same as ``max_memory_allocated``, because nothing is cached."""
    return torch.accelerator.max_memory_reserved(index_of(device))


def memory_stats(device: Device = None) -> dict[str, Any]:
    """Return all statistics, in the form of ``torch.accelerator.memory_stats``."""
    return dict(torch.accelerator.memory_stats(index_of(device)))


def reset_peak_memory_stats(device: Device = None) -> None:
    """Reset the peak to the memory that is allocated now."""
    torch.accelerator.reset_peak_memory_stats(index_of(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Reset the totals of allocated and freed memory to zero."""
    torch.accelerator.reset_accumulated_memory_stats(index_of(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Return the free memory and the total memory of the device, in bytes. FAKE_XPU_MEMORY sets the total memory."""
    free, total = torch.ops.fake_xpu.memory_info(index_of(device))
    return free, total


def empty_cache() -> None:
    """Do nothing, because nothing is cached."""


def _record_memory_history(  # noqa: PLR0917 # the signature of torch.xpu
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = sys.maxsize,
    clear_history: bool = False,
    skip_actions: Sequence[str] | None = None,
) -> None:
    """Start to record the memory history of all devices. The arguments are those of ``torch.xpu.memory._record_memory_history``.

    ``enabled=None`` stops the recording and discards the recorded history. Only Python frames are recorded, whatever ``stacks`` is.
    Deallocations are recorded without frames, even with ``context="all"``.

    Raises:
        ValueError: If ``torch.xpu.memory._record_memory_history`` does not allow the value of an argument.
    """
    skipped = list(skip_actions or ())
    given = (("enabled", enabled, (None, *_ENABLED)), ("context", context, (None, *_CONTEXTS)), ("stacks", stacks, _STACKS))
    for name, value, allowed in (*given, *(("skip_actions", action, _ACTIONS) for action in skipped)):
        if value not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    torch.ops.fake_xpu.record_memory_history(enabled or "", context or "", max_entries, clear_history, skipped)


def _snapshot(device: Device = None) -> dict[str, Any]:
    """Return the allocated memory of all devices and the recorded history, in the form of ``torch.cuda.memory._snapshot``.

    Nothing is cached, so each block is a segment of its own. ``device`` is ignored, as it is in ``torch.cuda``.
    """
    actions, entries, blocks, stacks, files, functions, lines = torch.ops.fake_xpu.memory_history()
    frames = [{"filename": file, "name": name, "line": line} for file, name, line in zip(files, functions, lines, strict=True)]
    tracebacks: list[list[dict[str, Any]]] = [
        *([frames[index] for index in stack] for stack in stacks),
        [],
    ]  # index -1, which means no traceback, selects this empty list
    traces: list[list[dict[str, Any]]] = [[] for _ in range(device_count())]
    for action, (index, address, size, stream, time_us, traceback) in zip(actions, entries, strict=True):
        key = "device_free" if action == "oom" else "addr"
        entry = {"action": action, key: address, "size": size, "stream": stream, "time_us": time_us, "frames": tracebacks[traceback]}
        traces[index].append({**entry, "device": index, "segment_pool_id": (0, 0)})
    segments = [_segment(index, address, size, stream, tracebacks[traceback]) for index, address, size, stream, traceback in blocks]
    return {"segments": segments, "device_traces": traces, "allocator_settings": {}, "external_annotations": []}


def _segment(device: int, address: int, size: int, stream: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    block = {"address": address, "size": size, "requested_size": size, "state": "active_allocated", "frames": frames}
    return {
        "device": device,
        "address": address,
        "total_size": size,
        "allocated_size": size,
        "active_size": size,
        "requested_size": size,
        "stream": stream,
        "segment_type": "large" if size > 1 << 20 else "small",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": frames,
        "blocks": [block],
    }


def _dump_snapshot(filename: str = "dump_snapshot.pickle") -> None:
    """Write the result of ``_snapshot()`` to a file, which https://docs.pytorch.org/memory_viz can open."""
    Path(filename).write_bytes(pickle.dumps(_snapshot()))
