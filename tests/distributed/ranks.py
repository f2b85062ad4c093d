"""Start a script as the ranks of a job, as torchrun would, and collect what they print."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from free_port import free_port
from preloaded import Process, start_servers

HERE = Path(__file__).parent


def variables(rank: int, size: int, port: int) -> dict[str, str]:
    """What torchrun sets."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "test",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "OMP_NUM_THREADS": "1",
    }


def run(script: str, size: int, *arguments: str, environ: Mapping[str, str] | None = None, seconds: float = 200) -> list[str]:
    """Run ``tests/distributed/<script>`` on ``size`` ranks; what each printed.

    Raises:
        AssertionError: If a rank failed, with what every failed rank printed.
    """
    codes, texts = outcome(script, size, *arguments, environ=environ, seconds=seconds)
    failed = [f"--- rank {rank} (exit status {code})\n{texts[rank][-8000:]}" for rank, code in enumerate(codes) if code]
    assert not failed, "\n".join(failed)
    return texts


def outcome(
    script: str, size: int, *arguments: str, environ: Mapping[str, str] | None = None, seconds: float = 200
) -> tuple[Sequence[int], list[str]]:
    """As ``run``, for jobs that are to fail: exit status and text of each rank."""
    start_servers()
    port = free_port()
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in range(size)]
        ranks = [
            Process(
                [str(HERE / script), *arguments],
                os.environ | {"FAKE_XPU_DEVICES": str(size), "PYTHONFAULTHANDLER": "1"} | variables(rank, size, port) | dict(environ or {}),
                log,
                log,
                number=rank,
            )
            for rank, log in enumerate(logs)
        ]
        while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
            time.sleep(0.02)
        late = [number for number, rank in enumerate(ranks) if rank.poll() is None]
        for number in late:  # it and its workers print where they stand
            os.killpg(ranks[number].pid, signal.SIGABRT)
        deadline = time.monotonic() + 5
        while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
            time.sleep(0.02)
        for rank in ranks:
            rank.end()
        texts = []
        for number, log in enumerate(logs):
            log.seek(0)
            texts.append(log.read() + (f"\nnot done within {seconds} s" if number in late else ""))
    return [rank.wait() for rank in ranks], texts
