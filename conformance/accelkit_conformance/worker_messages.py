"""The messages between a worker process and the runner. The worker reads requests from standard input, and writes answers to its original
standard output (what a plugin prints goes to standard error). Each message is a line of JSON."""

from __future__ import annotations

import json
import os
import queue
import threading
from typing import IO, Any


def requests() -> queue.SimpleQueue[dict[str, Any]]:
    """Start a thread that reads requests from standard input, and return a queue of these requests.

    If standard input ends, the runner has exited. The thread then ends this process immediately, whatever other threads are doing.
    """
    found: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    source = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def read() -> None:
        for line in source:
            found.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=read, name="accelkit-requests", daemon=True).start()
    return found


def say(answers: IO[str], answer: dict[str, Any]) -> None:
    """Write an answer to the stream ``answers`` as one line of JSON, and flush the stream."""
    answers.write(json.dumps(answer) + "\n")
    answers.flush()
