"""Cost of accelkit's ``reduce`` in each mode of ACCELKIT_VERIFY_COLLECTIVES, compared with ``dist.all_reduce``, on gloo.

Measures two sizes. If every call is verified, one float is sent in the same packet that verifies the call. 4 KiB are sent in a separate
collective. The numbers are wall-clock times of a call on rank 0, in float32 on the CPU, with one thread per process.
``--processes 2 8 16`` gives the numbers of processes to measure with.
"""

from __future__ import annotations

import functools
import io
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from measuring import compare, make_parser, microseconds, report

from accelkit.runtime.collectives import operations, verification
from accelkit.runtime.collectives.communicator import Communicator

CALLS = 100
SIZES = {"one float": 1, "4 KiB": 1024}


def main() -> None:
    parser = make_parser("Cost of reduce in each mode of verification.", rounds=7)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 8, 16])
    options = parser.parse_args()
    if "RANK" not in os.environ:
        for number in options.processes:
            launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(number), *sys.argv]
            subprocess.run(launcher, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        return
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    is_first = dist.get_rank() == 0
    if not is_first:
        sys.stderr = io.StringIO()
    device = torch.device("cpu")
    calls = max(CALLS * 2 // dist.get_world_size(), 20)
    measure = functools.partial(microseconds, calls=calls, warm_up=5, clock=time.perf_counter)
    tables = []
    for size, elements in SIZES.items():
        data = torch.ones(elements)
        measures = {"dist.all_reduce": functools.partial(measure, lambda data=data: dist.all_reduce(data.clone()))}
        for mode in ("always", "first", "off"):
            communicator = Communicator(None, device, verification.parse_mode(mode))
            reduce = functools.partial(operations.reduce, communicator, data, "sum")
            measures[f"reduce, {mode}"] = functools.partial(measure, reduce)
        title = f"reduce of {size}, {dist.get_world_size()} processes"
        # No time limit is passed, because the ranks would then stop after different numbers of rounds.
        tables.append(compare(title, "us of wall time", measures, options.rounds))
    if is_first:
        report(tables, is_json=options.json)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
