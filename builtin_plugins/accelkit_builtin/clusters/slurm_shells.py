"""Distinguish commands typed into the shell of ``srun --pty`` from processes that srun started as tasks.

Environment variables do not distinguish commands from tasks. srun sets SLURM_PTY_PORT in every task of
``srun --ntasks-per-node=4 --pty bash``, although the user works in the first task only. If the user calls srun again in this shell, all
tasks of the new step have SLURM_PTY_PORT too, because srun passes its environment on to the tasks.

Process groups distinguish commands from tasks. A shell that has a terminal creates a new process group for each command. The process group
belongs to the shell's session. Neither srun nor a shell that runs a script creates a process group of this kind.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import NamedTuple


class _Process(NamedTuple):
    """IDs of a process's parent, process group and session, and the device number of its terminal, from ``/proc/<pid>/stat``.

    Without a terminal, ``terminal`` is 0.
    """

    parent: int
    group: int
    session: int
    terminal: int


def is_typed(task: str | None) -> bool:
    """Return whether this process executes what a user typed into a shell or a Python prompt that srun started.

    Args:
        task: The value of SLURM_TASK_PID, the process id of the program that srun started. If it is None or no process has this id, for
            example because a container has its own process ids, the result is True for every process that has a terminal.
    """
    here = _look(os.getpid())
    program = int(task) if task and task.isascii() and task.isdigit() else 0
    first = _look(program) if program > 1 else None
    if here is None:
        return False
    if first is None:
        return here.terminal != 0
    if first.terminal == 0:
        return False  # it has no terminal from srun, because it is not the first task or its step has no --pty
    if program == os.getpid():
        return hasattr(sys, "ps1")  # this is Python's interactive prompt
    child: _Process | None = here
    while child is not None and child.parent > 1 and child.parent != program:
        child = _look(child.parent)
    if child is None or child.parent != program:
        return True  # it left the process tree of the task, as a tmux server does
    return child.session == first.session and child.group != first.group


def _look(pid: int) -> _Process | None:
    """Return what ``/proc`` says about a process, or None if the process does not exist."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return _Process(*map(int, fields[1:5]))
    return None
