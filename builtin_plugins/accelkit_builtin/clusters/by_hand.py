"""Functions that check whether a user set torch's variables (RANK, WORLD_SIZE) by hand in the processes of srun, jsrun or mpirun.

An example is ``export RANK=$SLURM_PROCID`` in a script. Such variables do not mean that one of torch's launchers created the processes. The
launcher that created the processes (srun, jsrun or mpirun) also set its own variables. The launcher's variables are read instead of torch's
variables, for two reasons. If a script exports ``RANK=$SLURM_PROCID`` before it calls srun, RANK is 0 in all tasks, but the variables of
srun are correct. Also, the user may not have set LOCAL_WORLD_SIZE, but srun, jsrun and most versions of mpirun set a variable for the
number of processes on the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accelkit import ClusterDetection

TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_OF_A_LAUNCHER = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "CROSS_RANK", "CROSS_SIZE")


def raised(claim: ClusterDetection, environ: Mapping[str, str], process: Sequence[str], size: Sequence[str]) -> ClusterDetection:
    """Return ``claim``, or a copy with a higher priority if torch's variables (RANK, WORLD_SIZE) were set by hand.

    The copy ranks above the claim of the cluster environment ``torchelastic``.

    Args:
        claim: The claim (a ``ClusterDetection``) that srun, jsrun or mpirun started this process.
        environ: The environment variables.
        process: The names of the variables in which srun, jsrun or mpirun stores the rank of a process, the preferred one first.
        size: The names of the variables in which srun, jsrun or mpirun stores the world size, the preferred one first.
    """
    if not is_by_hand(environ, process, size):
        return claim
    reason = f"{claim.reason}; RANK and WORLD_SIZE={environ['WORLD_SIZE'].strip()} were set by hand for that many processes"
    return ClusterDetection(claim.name, 80 + claim.priority // 10, reason)


def is_by_hand(environ: Mapping[str, str], process: Sequence[str], size: Sequence[str]) -> bool:
    """Return whether torch's variables (``TORCH``) were set by hand for the processes that srun, jsrun or mpirun started.

    The result is False if one of these variables is missing. It is also False if srun, jsrun or mpirun started another launcher, such as
    torchrun, because torch's variables then describe the processes of that launcher. Another launcher is recognised by any of these signs:

    - TORCHELASTIC_RUN_ID is set. torchrun sets it.
    - WORLD_SIZE differs from the world size that srun, jsrun or mpirun set. If there is another launcher, it usually starts several
      processes, so WORLD_SIZE is larger.
    - RANK differs from the rank that srun, jsrun or mpirun set, and the environment contains a variable that only launchers set, such as
      LOCAL_SIZE of DeepSpeed's launcher.

    Args:
        environ: The environment variables.
        process: The names of the variables in which srun, jsrun or mpirun stores the rank of a process, the preferred one first.
        size: The names of the variables in which srun, jsrun or mpirun stores the world size, the preferred one first.
    """
    values = {variable: environ.get(variable, "").strip() for variable in (*TORCH, *_OF_A_LAUNCHER, "TORCHELASTIC_RUN_ID")}
    if values["TORCHELASTIC_RUN_ID"] or not all(values[variable] for variable in TORCH):
        return False
    if values["WORLD_SIZE"] != _first(environ, size):
        return False
    return values["RANK"] == _first(environ, process) or not any(values[variable] for variable in _OF_A_LAUNCHER)


def _first(environ: Mapping[str, str], names: Sequence[str]) -> str | None:
    return next((value for name in names if (value := environ.get(name, "").strip())), None)
