"""What each rank does in test_process_exit.py, ``exit_program.py STRATEGY [PROCESSOR]``: with the second, it runs on this processor only.

It ends while one of gloo's threads is not yet done with a collective.
"""

from __future__ import annotations

import os
import sys
import threading
import zlib

import torch

import accelkit


def compress(_):
    """Work for a while without the GIL; to return from here takes the GIL."""
    has_begun.set()
    zlib.compress(os.urandom(1 << 24))


rt = accelkit.Runtime("cpu", strategy=sys.argv[1])
model = rt.prepare(torch.nn.Linear(5, 7))  # a global: it keeps the process group, and its threads, to the end
rt.backward(model(torch.randn(4, 5)).square().mean())
has_begun = threading.Event()
torch.distributed.all_reduce(torch.ones(3), async_op=True).get_future().then(compress)
has_begun.wait()
if len(sys.argv) > 2:
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {int(sys.argv[2])})
print("done", flush=True)
