"""torch's variables that a user exported for the processes of srun, jsrun or mpirun, such as RANK=$SLURM_PROCID in a script.

In this case, no variable shows that one of torch's launchers created the processes. The variables of srun, jsrun or mpirun, which did
create them, give the same values, and also the machine of each process. These variables are right even if the script exported RANK before
it called srun, so that RANK is 0 in all tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accelkit import Detection

TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_OF_A_LAUNCHER = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "CROSS_RANK", "CROSS_SIZE")


def raised(claim: Detection, environ: Mapping[str, str], process: Sequence[str], size: Sequence[str]) -> Detection:
    """Return a launcher's claim, ranked above that of torch's variables if those were set by hand for the launcher's processes.

    Args:
        claim: The launcher's claim on this process.
        environ: The environment variables.
        process, size: The names of the launcher's own variables for the rank of the process and the number of processes, in order of
            preference.
    """
    if not is_by_hand(environ, process, size):
        return claim
    reason = f"{claim.reason}; RANK and WORLD_SIZE={environ['WORLD_SIZE'].strip()} were set by hand for that many processes"
    return Detection(claim.name, 80 + claim.rank // 10, reason)


def is_by_hand(environ: Mapping[str, str], process: Sequence[str], size: Sequence[str]) -> bool:
    """Return whether torch's variables describe the same processes as the launcher's variables ``process`` and ``size``.

    A torchrun inside such a process creates other processes and sets TORCHELASTIC_RUN_ID in them. DeepSpeed's launcher also sets the
    number of processes on the machine. A launcher without such a sign usually has a different number of processes.
    """
    values = {variable: environ.get(variable, "").strip() for variable in (*TORCH, *_OF_A_LAUNCHER, "TORCHELASTIC_RUN_ID")}
    if values["TORCHELASTIC_RUN_ID"] or not all(values[variable] for variable in TORCH):
        return False
    if values["WORLD_SIZE"] != _first(environ, size):
        return False
    return values["RANK"] == _first(environ, process) or not any(values[variable] for variable in _OF_A_LAUNCHER)


def _first(environ: Mapping[str, str], names: Sequence[str]) -> str | None:
    return next((value for name in names if (value := environ.get(name, "").strip())), None)
