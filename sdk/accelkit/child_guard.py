"""The program of the guard process (see ``child_processes``): wait until the parent has ended, then kill the process groups that it left.

Reads lines from standard input: ``+N`` adds process group N, ``-N`` removes it. The parent alone holds the other end of that pipe, which
closes when the parent ends, however it ends. Run by its path; imports the standard library only.
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
    """SIGKILL to everything in the process group that ``leader`` leads; to it alone if it leads none yet, or on Windows, which has none."""
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader, signal.SIGKILL)
                return
        os.kill(leader, getattr(signal, "SIGKILL", signal.SIGTERM))


if __name__ == "__main__":
    main()
