"""Worlds of processes: each forks from a process that has torch imported already, which makes them cheap, and forms a real group."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback

import torch
import torch._dynamo
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.tensor  # all of them imported once, before forking

import accelkit
from accelkit_conformance.oracle.free_ports import free_ports
from accelkit_conformance.worker_cluster import WorkerCluster

SECONDS = 120


class Forked(WorkerCluster):
    """What a launcher would say of this process."""

    def __init__(self, rank, size, port):
        super().__init__(rank, size)
        self._port = port

    main_port = property(lambda self: self._port)


def runtime(env, strategy=None, accelerator="cpu", **arguments):
    strategy = strategy or ("ddp" if env.world_size > 1 else "single_device")
    return accelkit.Runtime(accelerator=accelerator, devices=env.world_size, strategy=strategy, cluster=env, **arguments)


def world(size, function, *args, may_die=()):
    """Run ``function(env, *args)`` on ``size`` processes; every one must end well, except those that ``may_die`` of SIGKILL.

    Returns the ranks that died.
    """
    (port,) = free_ports(1)
    sys.stdout.flush()
    pids = [_fork(Forked(rank, size, port), function, args) for rank in range(size)]
    died, left, until = [], dict(zip(pids, range(size), strict=True)), time.monotonic() + SECONDS
    try:
        while left:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                assert time.monotonic() < until, f"ranks {list(left.values())} do not end"
                time.sleep(0.005)
                continue
            rank = left.pop(pid)
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and rank in may_die:
                died.append(rank)
            else:
                assert status == 0, f"rank {rank} of {size} failed ({status})"
    finally:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return died


def _fork(env, function, args):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        torch.set_num_threads(1)
        function(env, *args)
        code = 0
    except BaseException:
        print(f"-- rank {env.global_rank} of {env.world_size}", file=sys.stderr)
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)
