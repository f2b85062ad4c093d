"""What each rank does in test_process_exit.py.

It starts a DataLoader's workers while one of gloo's threads is not yet done with a collective.
"""

from __future__ import annotations

import os
import threading
import zlib

import torch

import accelkit
from accelkit import thread_shutdown


def compress(_):
    """Work for a while without the GIL; to return from here takes the GIL."""
    has_begun.set()
    zlib.compress(os.urandom(1 << 24))


os.register_at_fork(before=lambda: found.append(thread_shutdown._look()[0]))  # what is registered first is called last
found: list[set[str]] = []
rt = accelkit.Runtime("cpu")
rt.prepare(torch.nn.Linear(2, 2))
has_begun = threading.Event()
torch.distributed.all_reduce(torch.ones(3), async_op=True).get_future().then(compress)
has_begun.wait()
batches = list(torch.utils.data.DataLoader(range(4), num_workers=1))
print(len(batches), found, flush=True)
