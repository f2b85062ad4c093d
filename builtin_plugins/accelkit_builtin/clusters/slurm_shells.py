"""Whether a process was typed into the shell of ``srun --pty``, or is one that srun started on every task.

The variables do not tell: all tasks of ``srun --ntasks-per-node=4 --pty bash`` have SLURM_PTY_PORT, though the user sits at the first only,
and so have all tasks of every step that is started from such a shell, because srun hands on its own variables. Linux does: a shell that
has a terminal puts each command into a process group of its own, in its own session. Neither srun nor the shell of a script does that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True)
class _Process:
    """What the kernel says of a process. ``terminal`` is 0 if it has none."""

    parent: int
    group: int
    session: int
    terminal: int


def is_typed(task: str | None) -> bool:
    """Whether this process was started from the interactive program (a shell, a Python prompt) of a task.

    Args:
        task: SLURM_TASK_PID, the number of the program that srun started. Where there is no such process, as in a container that has
            numbers of its own, whatever has a terminal is taken to be typed.
    """
    here = _look(os.getpid())
    program = int(task) if task and task.isascii() and task.isdigit() else 0
    first = _look(program) if program > 1 else None
    if here is None:
        return False
    if first is None:
        return here.terminal != 0
    if first.terminal == 0:
        return False  # srun gave it none: a task beside the first, or of a step without --pty
    if program == os.getpid():
        return hasattr(sys, "ps1")  # Python's own prompt
    child: _Process | None = here
    while child is not None and child.parent > 1 and child.parent != program:
        child = _look(child.parent)
    if child is None or child.parent != program:
        return True  # it left the task's processes, as the server of tmux does
    return child.session == first.session and child.group != first.group


def _look(pid: int) -> _Process | None:
    """From ``/proc``; None if it is not there."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return _Process(*map(int, fields[1:5]))
    return None
