"""The option ``--num-nodes M`` or ``--num-nodes MIN:MAX`` of ``accelkit launch``."""

from __future__ import annotations

import contextlib
import os
import re

from accelkit.cluster.detection import select_cluster
from accelkit.errors import AccelkitError, UsageError

VARIABLE = "ACCELKIT_NUM_NODES"
_LOCAL = "local"
_NUMBER_OF_PODS = "PET_NNODES"
"""The variable that contains a range in an elastic PyTorchJob of Kubeflow."""


def read_num_nodes(text: str | None) -> tuple[int | None, int]:
    """Return the minimum and the maximum number of machines that ``--num-nodes`` allows.

    Args:
        text: The value of the option, ``M`` or ``MIN:MAX``. None means that the option was not given.

    Returns:
        ``(MIN, MAX)`` for a range. The minimum is None if the number of machines is fixed: the result is ``(None, M)`` for a number, and
        ``(None, 1)`` for None.

    Raises:
        UsageError: If the text is neither a positive number nor a range of positive numbers, or if the minimum exceeds the maximum.
    """
    if text is None:
        return None, 1
    found = re.fullmatch(r"(?:0*([1-9]\d{0,8}):)?0*([1-9]\d{0,8})", text, re.ASCII)
    if found is None:
        raise UsageError(
            f"--num-nodes {text!r:.60} is not a number of machines",
            why="M or MIN:MAX is expected, with numbers that are 1 or more",
            hint="write for example --num-nodes 4, or --num-nodes 1:4 if machines may come and go while the job runs",
        )
    least, most = found[1], int(found[2])
    if least is not None and int(least) > most:
        raise UsageError(
            f"--num-nodes {text}: the minimum number of machines exceeds the maximum",
            why="MIN:MAX is expected",
            hint=f"write --num-nodes {most}:{least}",
        )
    return None if least is None else int(least), most


def check_changing_number(text: str, *, node_rank: int | None, rdzv_backend: str) -> None:
    """Check that the number of machines can change, as ``--num-nodes MIN:MAX`` requires.

    Args:
        text: The value of ``--num-nodes``, for the error.
        node_rank: The value of ``--node-rank``. None if the option was not given.
        rdzv_backend: The value of ``--rdzv-backend``.

    Raises:
        UsageError: If an option, a variable or the scheduler fixes the number or the order of the machines, or if ``rdzv_backend`` is not
            ``c10d``.
    """
    what = f"--num-nodes {text} is a range, but the number of machines cannot change"
    if node_rank is not None:
        raise UsageError(
            f"--node-rank {node_rank} cannot be used with the range --num-nodes {text}",
            why="when a machine joins or leaves, the machines get new ranks",
            hint="omit --node-rank on all machines",
        )
    if rdzv_backend != "c10d":
        raise UsageError(what, why=f"--rdzv-backend {rdzv_backend} was given, and a range needs c10d", hint="omit --rdzv-backend")
    if number := os.environ.get(VARIABLE):
        raise UsageError(
            what, why=f"{VARIABLE}={number:.60} is set, and fixes it", hint=f"unset {VARIABLE}, or use --num-nodes {number:.60}"
        )
    environment = select_cluster().environment
    if environment.name == _LOCAL or ":" in os.environ.get(_NUMBER_OF_PODS, ""):
        return
    with contextlib.suppress(AccelkitError):  # mpirun does not say how many machines there are
        number = str(environment.num_nodes)
    raise UsageError(
        what,
        plugin=environment.plugin,
        why=f"this process belongs to a job of {environment.name!r}, which fixes the number{f' of machines to {number}' if number else ''}",
        hint=f"use --num-nodes {number or 'M'}; if the variables of {environment.name!r} do not apply, set ACCELKIT_CLUSTER={_LOCAL}",
    )
