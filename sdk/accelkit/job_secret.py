"""The secret of a job.

The processes of the job sign their messages with the secret, so that no bytes from other senders are unpickled.

For a job that runs on a single machine, ``accelkit launch`` and ``Runtime.launch`` create a secret, unless ``ACCELKIT_JOB_SECRET`` is set,
and pass it to the processes that they start. Any other job has a secret only if the user sets this variable to the same value in all of its
processes. In a job without a secret, messages have a checksum instead of a signature. Anyone can compute this checksum.
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
    """Return a new secret of 256 random bits, as hexadecimal digits."""
    return secrets.token_hex(32)


def settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return accelkit's environment variables sorted by name, with the value of the secret replaced by ``(set)``."""
    return {name: "(set)" if name == VARIABLE else value for name, value in sorted(environ.items()) if name.startswith("ACCELKIT_")}


def signed(message: bytes, rank: int) -> bytes:
    """Return the message prefixed with its HMAC-SHA256 (RFC 2104).

    The HMAC also covers the rank of the sender, so that the message cannot be replayed as a message of another rank.
    """
    return _signature(message, rank) + message


def checked(received: bytes, rank: int) -> bytes:
    """Verify the signature of a message from ``rank``, and return the message.

    Raises:
        CollectiveError: If the signature is not the one that ``rank`` makes with this job's secret.
    """
    message = received[SIGNATURE_BYTES:]
    if not hmac.compare_digest(received[:SIGNATURE_BYTES], _signature(message, rank)):
        own = "has one" if os.environ.get(VARIABLE) else "has none"
        raise CollectiveError(
            f"a message that claims to be from rank {rank} is not from a process of this job",
            why=f"its signature was not made with this job's secret, {VARIABLE} (this process {own})",
            hint=f"set {VARIABLE} to the same value in all processes, or in none; otherwise, someone else is sending to the job's ports",
        )
    return message


def _signature(message: bytes, rank: int) -> bytes:
    key = os.environ.get(VARIABLE, "").encode(errors="surrogateescape")
    return hmac.digest(key, rank.to_bytes(8, "little") + message, _HASH)
