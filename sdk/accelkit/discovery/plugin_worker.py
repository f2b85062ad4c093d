"""The child's side of ``plugin_process``: a process that uses a plugin, and writes JSON messages to the process that started it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any

from accelkit.discovery.autoload import import_torch
from accelkit.discovery.loading import instantiate, load_class, plugin_errors
from accelkit.errors import AccelkitError
from accelkit.types import PluginRecord

if TYPE_CHECKING:
    from accelkit.specs.accelerator import Accelerator


class Connection:
    """The connection to the process that started this process.

    Attributes:
        request: The first line of standard input, decoded from JSON. It says what this process is to do.
        record: The record of the accelerator that the request names.
        further_requests: The remaining lines of standard input. Iteration waits for the next line, and ends when standard input is closed.
    """

    def __init__(self, requests: IO[str], answers: IO[str]) -> None:
        self.request: dict[str, Any] = json.loads(requests.readline())
        self.record = PluginRecord(**self.request["record"])
        self.further_requests: Iterable[str] = requests
        self._answers = answers

    def write(self, message: Mapping[str, Any]) -> None:
        self._answers.write(json.dumps(message) + "\n")

    def load(self) -> Accelerator:
        """Import torch, create an instance of the accelerator, call its ``load()``, and return the instance.

        Raises:
            BrokenPluginError: If the plugin fails.
        """
        import_torch()
        accelerator: Accelerator = instantiate(load_class(self.record), self.record)
        with plugin_errors(self.record.plugin, f"loading {self.record.name}"):
            accelerator.load()
        return accelerator


@contextlib.contextmanager
def connected() -> Iterator[Connection]:
    """Yield a connection that takes over standard input and output.

    Inside and after the block, only the connection can use the original standard input and output. For all other code, such as the code of
    the plugin, standard input is empty, and everything written to standard output or standard error is discarded. ``sys.path`` is replaced
    by the path in the request.

    An ``AccelkitError`` raised inside the block is sent as a message, and is not raised again.
    """
    requests, answers = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w", buffering=1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    connection = Connection(requests, answers)
    sys.path[:] = connection.request["sys_path"]
    try:
        yield connection
    except AccelkitError as error:
        connection.write({"error": type(error).__name__} | error.parts)
