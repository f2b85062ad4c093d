"""Real jobs on this machine, whose processes read from the kernel what went through their TCP connections. See ``scale.py``."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sharded_layout import parameter_shapes, sharded_state
from simulated_ranks import Count

import accelkit
from accelkit.runtime import seeding
from accelkit.runtime.checkpoints import checkpoint
from accelkit.runtime.checkpoints.coordinator import Ranks
from accelkit.runtime.collectives import fingerprint
from accelkit.runtime.collectives.communicator import Communicator
from accelkit_conformance.oracle.free_ports import free_ports
from accelkit_conformance.worker_cluster import WorkerCluster

_COUNTERS = struct.Struct("=120xQQ16xII")  # tcp_info of linux/tcp.h: bytes acknowledged and received, and segments with data in and out
_ACKNOWLEDGED_SECONDS = 0.1


class CountedCluster(WorkerCluster):
    """Cluster environment with given ranks, as a launcher would report them."""

    name, plugin = "launched", "launched"

    def __init__(self, rank: int, size: int, port: int) -> None:
        super().__init__(rank, size)
        self._port = port

    main_port = property(lambda self: self._port)


def transferred() -> Count:
    """Return what this process has sent and received through its open TCP connections."""
    found = Count(seconds=time.process_time())
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(entry))) as connection:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            sent, received, segments_in, segments_out = _COUNTERS.unpack_from(info)
            found.sent += sent
            found.received += received
            found.messages += segments_in + segments_out
    return found


@contextlib.contextmanager
def measured(calls: int = 1) -> Iterator[Count]:
    """Count what one call sends and receives, if the block makes ``calls`` equal calls. Messages are TCP segments with data."""
    time.sleep(_ACKNOWLEDGED_SECONDS)
    before, result = transferred(), Count()
    yield result
    seconds = time.process_time()
    time.sleep(_ACKNOWLEDGED_SECONDS)
    after = transferred()
    result.received, result.sent = (after.received - before.received) / calls, (after.sent - before.sent) / calls
    result.messages, result.seconds = (after.messages - before.messages) / calls, (seconds - before.seconds) / calls


def work(cluster: CountedCluster, folder: Path, layers: int, divisor: int) -> dict[str, Count]:
    """Do the work of one process, and return its counts, keyed by the same row names as in the simulation."""
    found: dict[str, Count] = {}
    runtime = accelkit.Runtime("cpu", devices=cluster.world_size, strategy="ddp", cluster=cluster)
    with measured() as found["join, with torch's own rendezvous"]:
        _ = runtime.device
    communicator, calls = Communicator(None, torch.device("cpu")), 20
    call = functools.partial(fingerprint.verify, communicator, "reduce (sum)", "float32[1024]")
    call()
    with measured(calls) as found["verified call"]:
        for _ in range(calls):
            call()
    runtime.is_preempted()
    with measured(calls) as found["vote on preemption"]:
        for _ in range(calls):
            runtime.is_preempted()
    mesh = dist.init_device_mesh("cpu", (cluster.world_size,))
    state = sharded_state(parameter_shapes(layers, divisor), mesh, cluster.global_rank)
    own = {"random_state": seeding.capture_host(), "loaders": {}, "trackers": {}}
    ranks = Ranks.of_job()
    ranks.from_main(RuntimeError, lambda: None)
    with measured() as found["save"]:
        fingerprint.verify(communicator, "save_state")
        ranks.each(RuntimeError, lambda: None)
        checkpoint.save(folder, {"model_0": state}, per_rank=own, ranks=ranks)
    runtime.wait_for_everyone()
    return found


def join_lazily(cluster: CountedCluster) -> dict[str, Count]:
    """Join a job in which gloo connects two processes only when one of them first sends the other a message."""
    os.environ["TORCH_GLOO_LAZY_INIT"] = "1"  # set only in this child process, which ends after this job
    runtime = accelkit.Runtime("cpu", devices=cluster.world_size, strategy="ddp", cluster=cluster)
    with measured() as count:
        _ = runtime.device
    runtime.wait_for_everyone()
    return {"join, with TORCH_GLOO_LAZY_INIT=1": count}


def run(size: int, layers: int, divisor: int) -> list[dict[str, Count]]:
    """Run two jobs of ``size`` processes, and return what each process counted in both."""
    with tempfile.TemporaryDirectory() as folder:
        found = _run(size, lambda cluster: work(cluster, Path(folder), layers, divisor))
    return [counts | joined for counts, joined in zip(found, _run(size, join_lazily), strict=True)]


def _run(size: int, job: Callable[[CountedCluster], dict[str, Count]]) -> list[dict[str, Count]]:
    (port,) = free_ports(1)
    answers = [_fork(lambda rank=rank: job(CountedCluster(rank, size, port))) for rank in range(size)]
    return [{name: Count(*values) for name, values in answer().items()} for answer in answers]


def _fork(function: Callable[[], dict[str, Count]]) -> Callable[[], Any]:
    """Run ``function`` in a child process, and return a function that waits for its result."""
    read, write = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            os.close(read)
            found = {name: (count.received, count.sent, count.messages, count.seconds) for name, count in function().items()}
            with open(write, "w") as pipe:
                json.dump(found, pipe)
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    os.close(write)

    def answer() -> Any:
        with open(read) as pipe:
            text = pipe.read()
        if os.waitpid(pid, 0)[1]:
            raise SystemExit(f"a process of the job failed: {text}")
        return json.loads(text)

    return answer
