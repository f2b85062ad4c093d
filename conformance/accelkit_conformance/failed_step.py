"""Find out which step of a check failed: a helper that prepares the inputs, an operator, the comparison of the results, or the wait for the
device at the end."""

from __future__ import annotations

import traceback
from pathlib import Path

_ROOT = str(Path(__file__).parent)
_MUTANTS = str(Path("accelkit_conformance", "mutants"))
_HELPERS = ("sample_transfer", "layouts", "cotangents", "opdb", "layers", "places", "device_streams", "subject", "reproducer")
"""Modules whose functions prepare a test on the device, for example by copying its inputs."""
_COMPARISONS = ("tolerance", "testing")
"""The suite's module and torch's package that compare results."""


def failed_step(error: BaseException) -> str:
    """Return the step in which a check raised an error, or an empty string if the error has no traceback.

    The steps are ``helper NAME`` (the suite's function NAME was preparing the test), ``comparison`` (results were compared, or an assertion
    of the check failed), ``end`` (the suite was waiting for the device) and ``operator`` (anything else, usually a call to an operator).
    """
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    last, mine = (
        Path(frames[-1].filename),
        [frame for frame in frames if frame.filename.startswith(_ROOT) and _MUTANTS not in frame.filename],
    )
    is_compared = frames[-1].filename.startswith(_ROOT) or any(part in _COMPARISONS for part in last.parts)
    if isinstance(error, AssertionError) and is_compared:
        return "comparison"
    module = Path(mine[-1].filename).stem if mine else ""
    if module in _COMPARISONS:
        return "comparison"
    if module == "late_errors":
        return "end"
    return f"helper {mine[-1].name}" if module in _HELPERS else "operator"
