"""Start processes as if on several machines: each in a UTS namespace of its own, where the host has another name."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import preloaded
from free_port import free_port

HERE = Path(__file__).parent
ON_MACHINE = str(HERE / "on_machine.py")
SECONDS = 100


@functools.cache
def missing() -> str:
    """Why hosts cannot have other names here; empty if they can."""
    if sys.platform != "linux":
        return "only Linux gives a process another host name"
    command = [sys.executable, ON_MACHINE, "elsewhere", os.devnull]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"another host name is refused here: {tried.stderr.splitlines()[-1]}" if tried.returncode else ""


def start(
    machines: Sequence[str], environs: Sequence[Mapping[str, str]], *arguments: str, script: str = "placement_program.py"
) -> list[subprocess.CompletedProcess[str]]:
    """Run ``tests/cluster/<script>`` once for each of ``machines``, with its variables and torch's meeting place; what became of each."""
    meeting_place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "ACCELKIT_", "OMPI_", "PMI", "JSM_"))}
    preloaded.start_servers()
    with contextlib.ExitStack() as stack:
        files = [[stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in range(2)] for _ in machines]
        processes = []
        for number, (machine, environ) in enumerate(zip(machines, environs, strict=True)):
            command = [ON_MACHINE, machine, str(HERE / script), *arguments]
            process = preloaded.Process(command, own | meeting_place | dict(environ), *files[number], number=number)
            stack.callback(process.end)
            processes.append(process)
        codes = [process.wait(SECONDS) for process in processes]
        texts = []
        for pair in files:
            for file in pair:
                file.seek(0)
            texts.append([file.read() for file in pair])
    return [subprocess.CompletedProcess(machine, code, *text) for machine, code, text in zip(machines, codes, texts, strict=True)]


def told(
    machines: Sequence[str], environs: Sequence[Mapping[str, str]], *arguments: str, script: str = "placement_program.py"
) -> list[dict[str, Any]]:
    """The line of JSON that each printed."""
    results = start(machines, environs, *arguments, script=script)
    assert not any(one.returncode for one in results), "\n".join(one.stdout + one.stderr[-3000:] for one in results)
    return [json.loads(one.stdout.splitlines()[-1]) for one in results]
