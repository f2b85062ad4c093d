"""Environment variables that limit which GPUs a process sees, in the notation that CUDA and ROCm share."""

from __future__ import annotations

import re


def visible_indices(variable: str | None, uuids: list[str]) -> list[int]:
    """Return the indices of the machine's GPUs that CUDA would show, in CUDA's order.

    ``variable`` is the value of the environment variable: a list of indices, UUIDs or their prefixes, or MIG slices.
    As in CUDA, everything after an entry that names no GPU is hidden.
    Source: CUDA C++ Programming Guide, 'CUDA Environment Variables', CUDA_VISIBLE_DEVICES.
    """
    if variable is None:
        return list(range(len(uuids)))
    found: list[int] = []
    for entry in (part.strip() for part in variable.split(",")):
        if re.fullmatch(r"\d+", entry):
            matches = [int(entry)] if int(entry) < len(uuids) else []
        elif entry.startswith("MIG-"):
            matches = [index for index, uuid in enumerate(uuids) if uuid in entry] or [0]
        else:
            matches = [index for index, uuid in enumerate(uuids) if entry and uuid.startswith(entry)]
        if len(matches) != 1:
            break
        found += matches
    return found
