"""Start a program as its user would, and read what it prints."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import preloaded
from free_port import free_port

HERE = Path(__file__).parent
LAUNCHERS = {
    "accelkit launch": ["-m", "accelkit", "launch", "--accelerator", "{name}", "--devices", "2"],
    "torchrun": ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"],
    "accelerate launch": ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "{port}"],
    "accelerate launch, one process": ["-m", "accelerate.commands.launch", "--num_processes", "1", "--mixed_precision", "no"],
}


def start(
    *arguments: object, launcher: Sequence[str] = (), name: str = "", cwd: Path | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run ``HERE/arguments[0]`` with the rest in a folder, with a launcher before it, told the accelerator's name."""
    script, *rest = map(str, arguments)
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    env = os.environ | quiet | environ
    if not launcher:
        return preloaded.run([str(HERE / script), *rest], env, cwd=cwd, modules=["accelerate"])
    words = [word.format(port=free_port(), name=name) for word in launcher]
    command = [str(preloaded.programs("accelerate") / "python"), *words, str(HERE / script), *rest]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=280, env=env, cwd=cwd)


def run(*arguments: object, launcher: Sequence[str] = (), name: str = "", cwd: Path | None = None, **environ: str) -> list[dict]:
    """As ``start``; the JSON that each process printed.

    Raises:
        AssertionError: If it failed, with what it said.
    """
    result = start(*arguments, launcher=launcher, name=name, cwd=cwd, **environ)
    assert result.returncode == 0, result.stderr[-6000:]
    lines = [line[line.index("{") :] for line in result.stdout.splitlines() if "{" in line]
    return [found for line in lines for found in _objects(line)]


def _objects(line: str) -> list[dict]:
    """The JSON objects in a line: two processes may share one."""
    found, position, decoder = [], 0, json.JSONDecoder()
    while (position := line.find("{", position)) >= 0:
        value, position = decoder.raw_decode(line, position)
        found.append(value)
    return found
