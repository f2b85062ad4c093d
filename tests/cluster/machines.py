"""Start processes as if on several machines: each in a UTS namespace of its own, where the host has another name."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from free_port import free_port

HERE = Path(__file__).parent


@functools.cache
def missing() -> str:
    """Why hosts cannot have other names here; empty if they can."""
    if shutil.which("unshare") is None:
        return "unshare of util-linux, which gives a process another host name, not found"
    tried = subprocess.run([*on_machine("elsewhere"), "true"], capture_output=True, text=True, check=False)
    return f"another host name is refused here: {tried.stderr.strip()}" if tried.returncode else ""


def on_machine(name: str) -> Sequence[str]:
    """The command that runs the words after it on a machine of this name."""
    own_user = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", "--uts", *own_user, "sh", "-c", 'hostname "$0" && exec "$@"', name]


def start(
    machines: Sequence[str], environs: Sequence[Mapping[str, str]], *arguments: str, script: str = "placement_program.py"
) -> list[subprocess.CompletedProcess[str]]:
    """Run ``tests/cluster/<script>`` once for each of ``machines``, with its variables and torch's meeting place; what became of each."""
    meeting_place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "ACCELKIT_", "OMPI_", "PMI", "JSM_"))}
    command = [sys.executable, str(HERE / script), *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [
        subprocess.Popen([*on_machine(machine), *command], env=own | meeting_place | {"OMP_NUM_THREADS": "1"} | dict(environ), **pipes)
        for machine, environ in zip(machines, environs, strict=True)
    ]
    try:
        texts = [process.communicate(timeout=100) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return [subprocess.CompletedProcess(process.args, process.returncode, *text) for process, text in zip(processes, texts, strict=True)]


def told(
    machines: Sequence[str], environs: Sequence[Mapping[str, str]], *arguments: str, script: str = "placement_program.py"
) -> list[dict[str, Any]]:
    """The line of JSON that each printed."""
    results = start(machines, environs, *arguments, script=script)
    assert not any(one.returncode for one in results), "\n".join(one.stdout + one.stderr[-3000:] for one in results)
    return [json.loads(one.stdout.splitlines()[-1]) for one in results]
