"""A program that prints, as a line of JSON, what a Runtime says of this process's place before the processes join, and afterwards."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import torch

import accelkit

NAMES = ("world_size", "global_rank", "local_rank", "local_world_size", "node_rank", "num_nodes")


def read(rt: accelkit.Runtime) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for name in NAMES:
        try:
            said[name] = getattr(rt.cluster, name)
        except accelkit.AccelkitError as error:
            said[name] = type(error).__name__
    state = rt.state
    return said | {"state": [state.devices, state.local_process_index, state.num_nodes, state.device]}


options = json.loads(sys.argv[1]) if sys.argv[1:] else {}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    rt = accelkit.Runtime(**{"accelerator": "cpu", **options})
    before = read(rt)
    total = rt.reduce(torch.ones(1, device=rt.device)).item()
    after = read(rt)
    is_main = rt.is_local_main_process
    rt.teardown()
line = {"cluster": rt.cluster.name, "before": before, "after": after, "total": total, "is_local_main": is_main}
print(json.dumps(line | {"warnings": [str(one.message) for one in caught if "accelkit" in str(one.message)]}))
