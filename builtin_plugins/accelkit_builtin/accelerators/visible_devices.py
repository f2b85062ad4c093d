"""Environment variables that limit which GPUs a process sees, in the notation that CUDA and ROCm share."""

from __future__ import annotations

import re


def visible_indices(variable: str | None, uuids: list[str]) -> list[int]:
    """Return the indices of the GPUs that a process sees, in the order in which the process sees them.

    The entries of the variable are read from left to right, as in CUDA:

    - Each entry must name exactly one GPU. If an entry does not, it is ignored, together with all entries after it.
    - A MIG slice stands for the GPU whose UUID is part of the slice's name. If the name contains no GPU's UUID, the slice stands for the
      first GPU that the entries before it do not name. A process sees only the first MIG slice, so all entries after the slice are ignored.
    - If two of the remaining entries name the same GPU, the process sees no GPU.

    Source: CUDA C++ Programming Guide, 'CUDA Environment Variables', CUDA_VISIBLE_DEVICES.

    Args:
        variable: The value of the environment variable, with entries separated by commas. Each entry is an index, a UUID, the beginning of
            a UUID, or a MIG slice. If the variable is not set, pass None: the process then sees all GPUs.
        uuids: The UUIDs of all GPUs, ordered by index.
    """
    if variable is None:
        return list(range(len(uuids)))
    found: list[int] = []
    for entry in (part.strip() for part in variable.split(",")):
        if re.fullmatch(r"\d+", entry):
            matches = [int(entry)] if int(entry) < len(uuids) else []
        elif entry.startswith("MIG-"):
            others = [index for index in range(len(uuids)) if index not in found]
            matches = [index for index, uuid in enumerate(uuids) if uuid in entry] or others[:1]
        else:
            matches = [index for index, uuid in enumerate(uuids) if entry and uuid.startswith(entry)]
        if len(matches) != 1:
            break
        if matches[0] in found:
            return []
        found += matches
        if entry.startswith("MIG-"):
            break
    return found
