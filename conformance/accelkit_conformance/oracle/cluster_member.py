"""One process of a job. It reads its rank from a cluster environment, joins the process group and takes part in an all_reduce.

``cluster_jobs.run_job`` runs this module in a child process for each process of the job.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from accelkit import PluginRecord
from accelkit.discovery import loading
from accelkit_conformance.subprocess_checks import answer

UNSET = dict.fromkeys(("ACCELKIT_ACCELERATOR", "ACCELKIT_DEVICES", "ACCELKIT_NUM_NODES", "ACCELKIT_PRECISION", "ACCELKIT_STRATEGY"), "")
"""Empty values for the user's own settings, which must not affect the generated job."""


def _join(record: PluginRecord, variables: Mapping[str, str], seconds: float) -> dict[str, Any]:
    """Join the process group, all_reduce a tensor and leave. Return the rank, the number of processes, the backend and the sum."""
    import torch
    import torch.distributed as dist

    from accelkit import ProcessGroupOptions, Runtime

    environment = loading.instantiate(loading.load_class(record), record)
    environment.environ = variables
    rt = Runtime("cpu", cluster=environment, process_group=ProcessGroupOptions(process_group_backend="gloo", timeout=seconds))
    total = torch.tensor(float(rt.process_index + 1), device=rt.device)
    dist.all_reduce(total)
    found = {"rank": rt.process_index, "size": rt.num_processes, "backend": dist.get_backend(), "total": total.item()}
    rt.teardown()
    return found


def main() -> None:
    request = json.load(sys.stdin)
    sys.path[:] = request["sys_path"]
    try:
        found = _join(PluginRecord(**request["record"]), request["variables"], request["seconds"])
    except Exception as error:  # whatever the plugin raises is the answer
        found = {"error": f"{type(error).__name__}: {error}"}
    answer(found)


if __name__ == "__main__":
    main()
