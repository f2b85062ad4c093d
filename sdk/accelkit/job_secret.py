"""The secret of a job, with which its processes sign what they send each other, so that nobody else's bytes are unpickled.

``accelkit launch`` and ``Runtime.launch`` make one for each job of one machine and pass it to the processes that they start. Whoever starts
processes by other means, or on several machines, sets the variable for all of them. Without it messages have a checksum and no signature.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Mapping

from accelkit.errors import CollectiveError

VARIABLE = "ACCELKIT_JOB_SECRET"
SIGNATURE_BYTES = 32
_HASH = "sha256"


def new() -> str:
    """A secret of 256 random bits, in hexadecimal digits."""
    return secrets.token_hex(32)


def settings(environ: Mapping[str, str]) -> dict[str, str]:
    """accelkit's variables in the order of their names, to be shown to others: of the secret only that there is one."""
    return {name: "(set)" if name == VARIABLE else value for name, value in sorted(environ.items()) if name.startswith("ACCELKIT_")}


def signed(message: bytes, rank: int) -> bytes:
    """The message behind its HMAC-SHA256 (RFC 2104), which covers the rank that sends it: nobody can send it back as another's."""
    return _signature(message, rank) + message


def checked(received: bytes, rank: int) -> bytes:
    """What ``signed`` was given by the process of this rank.

    Raises:
        CollectiveError: If the process that sent it does not know this job's secret, or is another rank.
    """
    message = received[SIGNATURE_BYTES:]
    if not hmac.compare_digest(received[:SIGNATURE_BYTES], _signature(message, rank)):
        own = "has one" if os.environ.get(VARIABLE) else "has none"
        raise CollectiveError(
            f"what arrived in the name of rank {rank} is not from a process of this job",
            why=f"its signature was not made with this job's secret, {VARIABLE} (this process {own})",
            hint=f"set {VARIABLE} to the same value for all processes, or for none; if it is, somebody else reaches the job's ports",
        )
    return message


def _signature(message: bytes, rank: int) -> bytes:
    key = os.environ.get(VARIABLE, "").encode(errors="surrogateescape")
    return hmac.digest(key, rank.to_bytes(8, "little") + message, _HASH)
