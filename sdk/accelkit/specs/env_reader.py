"""Reading what a launcher wrote into the environment: a number, an address, a port, or an error that names the variable and its value."""

from __future__ import annotations

import os
import re
import warnings
import zlib
from collections.abc import Mapping, Sequence

from accelkit.errors import ContradictionError, UsageError

LOOPBACK, DEFAULT_PORT = "127.0.0.1", 12910
FIRST_JOB_PORT, NUM_JOB_PORTS, PORTS_A_JOB = 10000, 20000, 16
_NUMBER = re.compile(r"[0-9]{1,18}")
_ADDRESS = re.compile(r"\[?([0-9A-Za-z_.:%-]{1,253})\]?")


class Variables:
    """Environment variables, read and never written.

    Args:
        environ: The variables; this process's own by default.

    Attributes:
        name: Of the cluster environment that reads them, for errors.
        plugin: ``dist==version``, for errors.
        launcher: What starts such processes, as a command: errors tell the user to start the program with it.
    """

    name: str = ""
    plugin: str = ""
    launcher: str = "the launcher"

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self.environ: Mapping[str, str] = os.environ if environ is None else environ
        self._assumed: set[str] = set()

    def text(self, *names: str) -> str | None:
        """The value of the first of these variables that is set and not empty, without spaces around it; None if there is none."""
        return next((value for name in names if (value := self.environ.get(name, "").strip())), None)

    def number(self, *names: str, least: int = 0, below: int | Sequence[str] | None = None, default: int | None = None) -> int:
        """The first of these variables that is set and not empty, as a whole number.

        Args:
            names: At least one variable, the preferred one first.
            least: The smallest number that makes sense.
            below: What it must be less than: a number, or the names of the variables (preferred first) that hold it.
            default: Taken if none is set; without it that is an error.

        Raises:
            UsageError: If none is set, or the value is no whole number, or less than ``least``.
            ContradictionError: If it is not ``below``.
        """
        value = self.text(*names)
        if value is None:
            if default is not None:
                return default
            raise self._error(f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} not set", "it must be")
        name = self._set(names)
        if not _NUMBER.fullmatch(value):
            raise self._error(f"{name}={value!r:.60} is no whole number", "it reads a number from it")
        number = int(value)
        if number < least:
            raise self._error(f"{name}={value} is too small", f"at least {least} is expected")
        if below is not None:
            limit = below if isinstance(below, int) else self.number(*below, least=1)
            said = "" if isinstance(below, int) else f" ({self._set(below)}={limit})"
            if number >= limit:
                raise ContradictionError(
                    f"{name}={value} cannot be: less than {limit} is expected{said}",
                    plugin=self.plugin,
                    why=f"the variables contradict each other, says the cluster environment {self.name!r}",
                    hint=self._hint(),
                )
        return number

    def address(self, *names: str, default: str | None = None) -> str:
        """The first of these variables that is set, as a host name or address (an IPv6 one without brackets).

        Without a default, a missing one is ``127.0.0.1``, with one warning that names the first variable.

        Raises:
            UsageError: If the value is no host name.
        """
        value = self.text(*names)
        if value is None:
            return default if default is not None else self._assume(names[0], LOOPBACK, "which other machines do not reach")
        return self._host(value, self._set(names))

    def port(self, *names: str, default: int | None = None) -> int:
        """The first of these variables that is set, as a TCP port.

        Without a default, a missing one is 12910, with one warning that names the first variable.

        Raises:
            UsageError: If the value is no port.
        """
        if self.text(*names) is None:
            drawback = "which another job on rank 0's machine may take too"
            return default if default is not None else int(self._assume(names[0], str(DEFAULT_PORT), drawback))
        port = self.number(*names)
        if not 0 < port < 65536:
            raise self._error(f"{self._set(names)}={port} is no TCP port", "a port is 1 to 65535")
        return port

    def _host(self, value: str, name: str) -> str:
        if (match := _ADDRESS.fullmatch(value)) is None:
            raise self._error(f"{name}={value!r:.60} is no host name or address", "the processes meet there")
        return match[1]

    def _set(self, names: Sequence[str]) -> str:
        return next((name for name in names if self.text(name)), names[0])

    def _assume(self, name: str, value: str, drawback: str) -> str:
        if name not in self._assumed:
            self._assumed.add(name)
            warnings.warn(
                f"{name} is not set; the cluster environment {self.name!r} takes {value}, {drawback}. "
                f"Set {name}, alike in every process of the job.",
                RuntimeWarning,
                stacklevel=4,
            )
        return value

    def _error(self, what: str, why: str) -> UsageError:
        return UsageError(what, plugin=self.plugin, why=f"{why}, says the cluster environment {self.name!r}", hint=self._hint())

    def _hint(self) -> str:
        return f"start the program with {self.launcher}; accelkit why --cluster explains; ACCELKIT_CLUSTER=local is one process alone"


def job_port(job: int | str, step: int = 0) -> int:
    """A TCP port that every process of a job computes alike, outside of the range from which Linux hands out ports (32768 and more).

    Two jobs whose numbers differ by less than 1250 never get the same, nor do two steps of a job whose numbers do not differ by a
    multiple of 16. Ports of jobs further apart, or named by a text, are the same once in 20,000 pairs (of 1250 for two numbers).

    Args:
        job: The scheduler's number for the job, or another name that no other job on the machine has.
        step: The number of the step in the job.

    Returns:
        10000 to 29999.
    """
    if isinstance(job, str) and not _NUMBER.fullmatch(job):
        return FIRST_JOB_PORT + zlib.crc32(job.encode("utf-8", "replace")) % NUM_JOB_PORTS
    return FIRST_JOB_PORT + (int(job) * PORTS_A_JOB + step % PORTS_A_JOB) % NUM_JOB_PORTS
