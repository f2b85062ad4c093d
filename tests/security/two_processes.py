"""Run a function in the two processes of a job of one machine, however the job is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def answer(kind: str, accelerator: str, source: str, folder: Path, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """What rank 0's ``tell(rt)`` returned.

    Args:
        kind: ``accelkit launch`` or ``Runtime.launch``.
        accelerator: Its name.
        source: A program that prints, as JSON, the expression that stands in place of its ``%s``.
        folder: For the program, which runs there.
        environ: For the program.
    """
    program = folder / "program.py"
    if kind == "accelkit launch":
        program.write_text(source % "tell(accelkit.Runtime())")
        command = [sys.executable, "-m", "accelkit", "launch", "--accelerator", accelerator, "--devices", "2", str(program)]
    else:
        program.write_text(source % f"accelkit.Runtime('{accelerator}', devices=2).launch(tell)")
        command = [sys.executable, str(program)]
    done = subprocess.run(command, cwd=folder, env=dict(environ), capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return found
