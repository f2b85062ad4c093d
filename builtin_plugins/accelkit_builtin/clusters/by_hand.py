"""torch's variables that somebody exported for the processes of srun, jsrun or mpirun, as RANK=$SLURM_PROCID in a script.

They come with no sign of a launcher that made processes of its own. The launcher that did make these processes says the same of them and
more: on which machine each is. And it is right where the script exported RANK before srun, when it is 0 for all tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accelkit import Detection

TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_OF_A_LAUNCHER = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "CROSS_RANK", "CROSS_SIZE")


def raised(claim: Detection, environ: Mapping[str, str], process: Sequence[str], size: Sequence[str]) -> Detection:
    """A launcher's claim, above that of torch's variables if these were set by hand for the launcher's processes.

    Args:
        claim: On this process.
        environ: The variables.
        process, size: The names of the launcher's own variables for the process's rank and the number of processes, preferred first.
    """
    if not is_by_hand(environ, process, size):
        return claim
    reason = f"{claim.reason}; RANK and WORLD_SIZE={environ['WORLD_SIZE'].strip()} were set by hand for as many processes"
    return Detection(claim.name, 80 + claim.rank // 10, reason)


def is_by_hand(environ: Mapping[str, str], process: Sequence[str], size: Sequence[str]) -> bool:
    """Whether torch's variables are about the processes that these variables number.

    torchrun that runs inside such a process makes others, and says so with TORCHELASTIC_RUN_ID; DeepSpeed's launcher has the number of
    processes on the machine beside them. A launcher without a sign of its own has another number of processes, as a rule.
    """
    said = {variable: environ.get(variable, "").strip() for variable in (*TORCH, *_OF_A_LAUNCHER, "TORCHELASTIC_RUN_ID")}
    if said["TORCHELASTIC_RUN_ID"] or not all(said[variable] for variable in TORCH):
        return False
    if said["WORLD_SIZE"] != _first(environ, size):
        return False
    return said["RANK"] == _first(environ, process) or not any(said[variable] for variable in _OF_A_LAUNCHER)


def _first(environ: Mapping[str, str], names: Sequence[str]) -> str | None:
    return next((value for name in names if (value := environ.get(name, "").strip())), None)
