"""Parsing of environment variables set by a launcher: numbers, addresses and ports. Errors name the variable and its value."""

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
    """A read-only view of environment variables. Base class of ``ClusterEnvironment``.

    Args:
        environ: The environment variables to read. The default is the environment of this process.

    Attributes:
        name: The name of the cluster environment that reads the variables. Shown in errors.
        plugin: The ``dist==version`` of the plugin that provides the cluster environment. Shown in errors.
        launcher: The command that sets these variables for the processes that it starts. Errors tell the user to start the program with
            this command.
    """

    name: str = ""
    plugin: str = ""
    launcher: str = "the launcher"

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self.environ: Mapping[str, str] = os.environ if environ is None else environ
        self._assumed: set[str] = set()

    def text(self, *names: str) -> str | None:
        """Return the stripped value of the first variable in ``names`` that is set and not empty, or None if there is none."""
        return next((value for name in names if (value := self.environ.get(name, "").strip())), None)

    def number(self, *names: str, least: int = 0, below: int | Sequence[str] | None = None, default: int | None = None) -> int:
        """Return the value of the first variable in ``names`` that is set and not empty, as an integer.

        Args:
            names: The names of one or more variables, the preferred one first.
            least: The smallest valid number.
            below: The exclusive upper limit, or the names of one or more variables (preferred first). If names are given, the limit is the
                value of the first of these variables that is set and not empty.
            default: The value to return if no variable is set. If ``default`` is None, a missing variable is an error.

        Raises:
            UsageError: If no variable is set and ``default`` is None, if the value is not a whole number, or if it is less than ``least``.
                If ``below`` contains names, one of these variables must be set, and the limit must be a whole number of at least 1;
                otherwise, this error is also raised.
            ContradictionError: If the number is not less than ``below``.
        """
        value = self.text(*names)
        if value is None:
            if default is not None:
                return default
            is_one = len(names) == 1
            raise self._error(
                f"{' and '.join(names)} {'is' if is_one else 'are'} not set", "requires it" if is_one else "requires one of them"
            )
        name = self._set(names)
        if not _NUMBER.fullmatch(value):
            raise self._error(f"{name}={value!r:.60} is not a whole number", "reads a number from it")
        number = int(value)
        if number < least:
            raise self._error(f"{name}={value} is too small", f"expects at least {least}")
        if below is not None:
            limit = below if isinstance(below, int) else self.number(*below, least=1)
            source = "" if isinstance(below, int) else f" ({self._set(below)}={limit})"
            if number >= limit:
                raise ContradictionError(
                    f"{name}={value} must be less than {limit}{source}",
                    plugin=self.plugin,
                    why=f"the cluster environment {self.name!r} reads the variables, and they contradict each other",
                    hint=self._hint(),
                )
        return number

    def address(self, *names: str, default: str | None = None) -> str:
        """Return the host name or IP address, without brackets, from the first variable in ``names`` that is set and not empty.

        If there is no such variable, return ``default``. If ``default`` is also None, return ``127.0.0.1``, and warn once that ``names[0]``
        is not set.

        Raises:
            UsageError: If the value is not a host name or address.
        """
        value = self.text(*names)
        if value is None:
            return default if default is not None else self._assume(names[0], LOOPBACK, "which other machines cannot reach")
        return self._host(value, self._set(names))

    def port(self, *names: str, default: int | None = None) -> int:
        """Return the TCP port in the first variable in ``names`` that is set and not empty.

        If there is no such variable, return ``default``. If ``default`` is also None, return 12910, and warn once that ``names[0]`` is not
        set.

        Raises:
            UsageError: If the value is not a port number.
        """
        if self.text(*names) is None:
            drawback = "which another job on rank 0's machine may also use"
            return default if default is not None else int(self._assume(names[0], str(DEFAULT_PORT), drawback))
        port = self.number(*names)
        if not 0 < port < 65536:
            raise self._error(f"{self._set(names)}={port} is not a TCP port", "expects a number from 1 to 65535")
        return port

    def _host(self, value: str, name: str) -> str:
        if (match := _ADDRESS.fullmatch(value)) is None:
            raise self._error(f"{name}={value!r:.60} is not a host name or address", "reads the address of the rendezvous from it")
        return match[1]

    def _set(self, names: Sequence[str]) -> str:
        return next((name for name in names if self.text(name)), names[0])

    def _assume(self, name: str, value: str, drawback: str) -> str:
        if name not in self._assumed:
            self._assumed.add(name)
            warnings.warn(
                f"{name} is not set; the cluster environment {self.name!r} uses {value}, {drawback}. "
                f"Set {name} to the same value in every process of the job.",
                RuntimeWarning,
                stacklevel=4,
            )
        return value

    def _error(self, what: str, why: str) -> UsageError:
        return UsageError(what, plugin=self.plugin, why=f"the cluster environment {self.name!r} {why}", hint=self._hint())

    def _hint(self) -> str:
        start = f"start the program with {self.launcher}, or set ACCELKIT_CLUSTER=local to run a single process"
        return f"{start}; accelkit why --cluster shows what was detected"


def port_for_job(job: int | str, step: int = 0) -> int:
    """Compute a TCP port from a job's identifier, so that every process of the job gets the same port.

    The port lies outside the range from which Linux assigns ephemeral ports (32768 and above).

    Two jobs whose identifiers are numbers or strings of digits get the same port only if these numbers differ by a multiple of 1250. Two
    steps of such a job get the same port only if the numbers of the steps differ by a multiple of 16.

    If ``job`` is any other string, all steps of the job get the same port. The probability that another job gets this port is 1 in 20,000.

    Args:
        job: The scheduler's number for the job, or another name that is unique among the jobs on the machine.
        step: The number of the job step (as in Slurm), or the index in a job array. Ignored if ``job`` is neither a number nor a string of
            digits.

    Returns:
        A port from 10000 to 29999.
    """
    if isinstance(job, str) and not _NUMBER.fullmatch(job):
        return FIRST_JOB_PORT + zlib.crc32(job.encode("utf-8", "replace")) % NUM_JOB_PORTS
    return FIRST_JOB_PORT + (int(job) * PORTS_A_JOB + step % PORTS_A_JOB) % NUM_JOB_PORTS
