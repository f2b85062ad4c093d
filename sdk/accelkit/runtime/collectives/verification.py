"""Decide which calls to collectives are verified.

Verifying a call costs an exchange among all ranks of its group (see ``fingerprint``). ACCELKIT_VERIFY_COLLECTIVES sets the mode. For
``gather`` (forward and backward) and ``reduce``, the mode determines which calls are verified:

- ``always``: Every call is verified. This is the default.
- ``first``: The first NUM_FIRST calls that have the same name and the same outline of data (structure, dtypes, shapes and device types) are
  verified. In addition, a call is verified if none of the MAX_UNVERIFIED calls before it was verified.
- ``off``: No call is verified.

The other collectives of a Runtime (``wait_for_everyone``, ``broadcast``, ``pad_across_processes``, ``gather`` of objects) need the exchange
for their own purpose, so their calls are verified in every mode.

In the mode ``first``, all ranks must make the same decision about whether to verify a call. So the decision depends only on values that are
equal on all ranks if the ranks make the same calls. These values are the name of the call, the outline of its data, the number of earlier
exchanges that found this name and this outline on all ranks, and the number of unverified calls since the last exchange. The decision does
not depend on the line of code that makes the call, because ranks may make the same call from different lines (the branches of ``if
rt.is_main_process: ... else: ...``). Ranks therefore decide differently only if their calls differ. Then some ranks wait for the digests of
an exchange, and the others wait for data. All these ranks wait until the timeout; the call log explains why. Digests and data cannot be
mistaken for each other: over gloo, digests are sent in ways that are never used for data (with ``all_to_all``, or with a tag of their own).

Two ranks that make different calls without verifying them may compute wrong numbers. To find such calls at the next exchange, each rank
keeps a digest of its calls since the last exchange and sends the digest with its next packet. In the mode ``first``, at most MAX_UNVERIFIED
calls are made between two exchanges.
"""

from __future__ import annotations

import functools
import hashlib
import os
from typing import Literal, get_args

from accelkit.errors import UsageError

Mode = Literal["always", "first", "off"]
VARIABLE = "ACCELKIT_VERIFY_COLLECTIVES"
DEFAULT: Mode = "always"
NUM_FIRST = 3
MAX_UNVERIFIED = 99
_MAX_KINDS = 4096  # the number of pairs of name and outline to remember; calls with any other pair are always verified
_NO_HISTORY = bytes(8)


@functools.cache
def job_mode() -> Mode:
    """Return the mode in the environment variable ACCELKIT_VERIFY_COLLECTIVES, or ``always`` if it is unset.

    The variable is read only once per process.

    Raises:
        UsageError: If the value is not the name of a mode.
    """
    return parse_mode(os.environ.get(VARIABLE) or DEFAULT)


def parse_mode(given: str) -> Mode:
    """Return a value of ACCELKIT_VERIFY_COLLECTIVES as a mode.

    Raises:
        UsageError: If the value is not the name of a mode.
    """
    for mode in get_args(Mode):
        if given == mode:
            return mode  # type: ignore[no-any-return]
    raise UsageError(
        f"{VARIABLE}={given} is not a valid mode",
        why=f"it must be one of {', '.join(get_args(Mode))}",
        hint=f"unset it to use {DEFAULT}",
    )


class History:
    """A record of the calls in one process group. It decides whether the next call has to be verified by an exchange among the ranks.

    Attributes:
        num_unverified: The number of unverified calls since the last exchange.
        last_unverified: The name of the last unverified call since the last exchange, and a description of the call's data. Empty if there
            was no such call.
        digest: A digest of all unverified calls since the last exchange. It is equal on ranks that made the same calls.
    """

    def __init__(self) -> None:
        self._num_verified: dict[str, int] = {}
        self.num_unverified, self.last_unverified, self.digest = 0, "", _NO_HISTORY

    def is_due(self, mode: Mode, what: str) -> bool:
        """Return whether a call has to be verified.

        Args:
            mode: The mode that is in effect.
            what: The name of the call and a description of its data (structure, dtypes, shapes and device types).
        """
        if mode == "first":
            return self._num_verified.get(what, 0) < NUM_FIRST or self.num_unverified >= MAX_UNVERIFIED
        return mode == "always"

    def add_verified(self, what: str) -> None:
        """Count a call that an exchange found to be the same on all ranks. ``what`` describes the call, as in ``is_due``."""
        if what in self._num_verified or len(self._num_verified) < _MAX_KINDS:
            self._num_verified[what] = min(self._num_verified.get(what, 0) + 1, NUM_FIRST)

    def add_unverified(self, what: str) -> None:
        """Add a call that is made without an exchange. ``what`` describes the call, as in ``is_due``."""
        self.num_unverified += 1
        self.last_unverified = what
        self.digest = hashlib.blake2b(self.digest + what.encode(), digest_size=8).digest()

    def forget_unverified(self) -> None:
        """Remove the unverified calls from the record. Called after an exchange, when the ranks have compared their digests."""
        self.num_unverified, self.last_unverified, self.digest = 0, "", _NO_HISTORY
