"""The program of the guard process (see ``child_processes``), which kills the process groups that are left when its parent has ended.

It reads lines from standard input: ``+N`` adds process group N, ``-N`` removes it. Only the parent holds the other end of that pipe,
which closes when the parent ends for any reason. The program is run by its path and imports only the standard library.
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

    Only the process itself is killed if it does not lead a group yet, or on Windows, which has no process groups.
    """
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader, signal.SIGKILL)
                return
        os.kill(leader, getattr(signal, "SIGKILL", signal.SIGTERM))


if __name__ == "__main__":
    main()
