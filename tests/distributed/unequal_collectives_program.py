"""What each rank does in test_collectives.py where not all do the same: whose turn it is, and who does not come."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import torch
from member import everyone, mine, raises, rank, rt, run, same, size

import accelkit
from accelkit.runtime.collectives import communicator, desync_report


def first():
    times = []
    with rt.main_process_first():
        time.sleep(0.3 if rank == 0 else 0)
        times.append(time.time())
    with rt.local_main_process_first():
        times.append(time.time())
    when = rt.gather(torch.tensor(times, dtype=torch.float64)[None])
    assert all(when[other, 0] >= when[0, 0] for other in everyone)

    def failing():
        with rt.main_process_first():
            if rank == 0:
                raise KeyError("no such file")
            raise AssertionError("this block must not run")

    raises(accelkit.CollectiveError if rank else KeyError, failing, "failed on rank 0" if rank else "no such file")
    rt.wait_for_everyone()


def places():
    assert rt.is_last_process == (rank == size - 1)
    assert rt.on_process(process_index=1)(lambda: rank)() == (1 if rank == 1 else None)
    assert rt.on_last_process(lambda: rank)() == (rank if rank == size - 1 else None)
    assert rt.on_local_main_process(lambda: "ran")() == (None if rank else "ran")
    with rt.split_between_processes(list(range(size + 1))) as share:
        assert share == ([0, 1] if rank == 0 else [rank + 1])
    with rt.split_between_processes(torch.arange(size + 1), apply_padding=True) as share:
        same(rt.gather(share)[::2], [0, *range(2, size + 1)])


def in_rounds():
    """From here on, the processes compare their calls as in a large group."""
    communicator.SMALL_GROUP = 1


def alone():
    """A rank does not come to the third call; the others say who, and what it called last."""
    rt.wait_for_everyone()
    rt.reduce(mine([1.0, 2.0]))
    if rank == 1:
        time.sleep(float(os.environ["ACCELKIT_TIMEOUT"]) + 4)
        return
    rt.gather({"loss": torch.ones(3)})


def silent():
    """A rank joins the job, and does not come to the very first call."""
    _ = rt.device
    if rank == 1:
        time.sleep(float(os.environ["ACCELKIT_TIMEOUT"]) + 4)
        return
    rt.gather(torch.ones(1))


def stopped():
    rt.wait_for_everyone()
    if rank == 0:
        subprocess.Popen(["sh", "-c", f"sleep {float(os.environ['ACCELKIT_TIMEOUT']) + 5}; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    time.sleep(0.5)
    desync_report.READING_SECONDS = 1.0
    rt.gather(mine([1.0]))


def reporter_dies():
    """Rank 1 ends. Rank 2, the first to ask the store for a report, is killed while it reads the call log for rank 0."""
    rt.wait_for_everyone()
    desync_report.READING_SECONDS = 4.0
    desync_report._read_entries = (lambda *_: os.kill(os.getpid(), signal.SIGKILL)) if rank == 2 else desync_report._read_entries
    if rank == 1:
        os._exit(7)
    time.sleep(0 if rank else 1.0)
    rt.gather(mine([1.0]))


def dead():
    rt.wait_for_everyone()
    if rank == 1:
        os._exit(7)
    rt.gather(mine([1.0]))


if __name__ == "__main__":
    run(globals())
