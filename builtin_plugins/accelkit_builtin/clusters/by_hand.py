"""Recognition of torch's variables that a user exported by hand for the processes of srun, jsrun or mpirun.

An example is ``export RANK=$SLURM_PROCID`` in a script. Such variables do not mean that one of torch's launchers created the processes.
srun, jsrun or mpirun created them and set their own variables. The launcher's variables are right even if the script exported
RANK before it called srun, in which case RANK is 0 in all tasks. Most of these launchers also set the local rank and the number of
processes on the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accelkit import ClusterDetection

TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_OF_A_LAUNCHER = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "CROSS_RANK", "CROSS_SIZE")


def raised(claim: ClusterDetection, environ: Mapping[str, str], process: Sequence[str], size: Sequence[str]) -> ClusterDetection:
    """Return a launcher's claim. If torch's variables were set by hand, the claim gets a priority above that of ``torchelastic``.

    Args:
        claim: The launcher's claim on this process.
        environ: The environment variables.
        process, size: The names of the launcher's own variables for the rank of the process and the number of processes, in order of
            preference.
    """
    if not is_by_hand(environ, process, size):
        return claim
    reason = f"{claim.reason}; RANK and WORLD_SIZE={environ['WORLD_SIZE'].strip()} were set by hand for that many processes"
    return ClusterDetection(claim.name, 80 + claim.priority // 10, reason)


def is_by_hand(environ: Mapping[str, str], process: Sequence[str], size: Sequence[str]) -> bool:
    """Return whether torch's variables describe the same processes as the launcher's variables ``process`` and ``size``.

    torch's variables describe other processes if one of torch's launchers runs inside a process of the launcher. torchrun then sets
    TORCHELASTIC_RUN_ID, and DeepSpeed's launcher sets the number of processes on the machine. With any other launcher of torch, WORLD_SIZE
    usually differs from the value of ``size``.
    """
    values = {variable: environ.get(variable, "").strip() for variable in (*TORCH, *_OF_A_LAUNCHER, "TORCHELASTIC_RUN_ID")}
    if values["TORCHELASTIC_RUN_ID"] or not all(values[variable] for variable in TORCH):
        return False
    if values["WORLD_SIZE"] != _first(environ, size):
        return False
    return values["RANK"] == _first(environ, process) or not any(values[variable] for variable in _OF_A_LAUNCHER)


def _first(environ: Mapping[str, str], names: Sequence[str]) -> str | None:
    return next((value for name in names if (value := environ.get(name, "").strip())), None)
