"""The program of the guard process (see ``child_processes``), which kills all process groups on its list when its parent ends.

The program reads lines from standard input: ``+N`` adds process group N to the list, and ``-N`` removes it. Standard input is a pipe whose
other end is held only by the parent, so the pipe closes when the parent ends, for whatever reason. The program is run by its path and
imports only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys


def main() -> None:
    groups: set[int] = set()
    for line in sys.stdin:
        if line.endswith("\n"):
            (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for group in groups:
        kill_group(group)


def kill_group(leader: int) -> None:
    """Send SIGKILL to every process in the group that ``leader`` leads.

    If ``leader`` does not lead a group yet, only the process ``leader`` itself is killed. The same is true on Windows, because Windows has
    no process groups.
    """
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader, signal.SIGKILL)
                return
        os.kill(leader, getattr(signal, "SIGKILL", signal.SIGTERM))


if __name__ == "__main__":
    main()
