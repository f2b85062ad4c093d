"""A real SLURM on this machine: its own munged, one slurmctld and a slurmd for each of several nodes, on free ports of the loopback."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from accelkit_conformance.oracle.free_ports import free_ports

NODES = 4
CPUS = 4  # that SLURM counts on each node, whatever the machine has
INSTALL = "apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge"
_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "squeue")
_SBIN = "/usr/sbin:/sbin"

_CONFIGURATION = """
ClusterName=accelkit
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=50000,bf_interval=1
SlurmdParameters=config_overrides
GresTypes=gpu
ReturnToService=2
SlurmctldTimeout=60
SlurmdTimeout=60
KillWait=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}/tmp-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
PluginDir={plugins}
{extra}
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


class Slurm:
    """A running cluster of ``NODES`` nodes ``n0``, ``n1``, ... with ``CPUS`` processors each.

    Attributes:
        folder: Configuration, logs and spool. Short, as the path of a Unix socket must be.
        environ: The variables with which its commands are run.
    """

    def __init__(self, folder: Path, extra: str = "") -> None:
        self.folder = folder
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "ACCELKIT_", "PMI", "OMPI_"))}
        self.environ |= {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{os.environ['PATH']}:{_SBIN}"}
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._extra = extra

    def start(self) -> None:
        """Write the configuration and start every daemon. Returns when all nodes are idle."""
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        names = [f"n{index}" for index in range(NODES)]
        host, ports = socket.gethostname().partition(".")[0], free_ports(NODES + 1)
        nodes = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} RealMemory=4000 Gres=gpu:2 State=UNKNOWN"
            for name, port in zip(names, ports, strict=False)
        ]
        for name in ["state", *(f"{part}-{node}" for node in names for part in ("spool", "tmp"))]:
            (self.folder / name).mkdir()
        plugins = next(Path("/usr/lib").glob("**/auth_munge.so")).parent
        user = pwd.getpwuid(os.getuid()).pw_name
        text = _CONFIGURATION.format(
            host=host, controller_port=ports[-1], user=user, folder=self.folder, plugins=plugins, extra=self._extra, nodes="\n".join(nodes)
        )
        (self.folder / "slurm.conf").write_text(text)
        # Two devices a node that are not there: what counts is which of them SLURM lets a task see.
        (self.folder / "gres.conf").write_text("AutoDetect=off\nName=gpu File=/dev/null,/dev/zero\n")
        files = {"socket": "munge.socket", "pid-file": "munged.pid", "log-file": "munged.log", "seed-file": "munged.seed"}
        options = [f"--{option}={self.folder / name}" for option, name in files.items()]
        self._daemon("munged", "--foreground", "--force", "--num-threads=4", f"--key-file={key}", *options)
        self.wait_until((self.folder / "munge.socket").exists, "munged")
        self._daemon("slurmctld", "-D", "-i")
        for name in names:
            self._daemon("slurmd", "-D", "-N", name)
        self.wait_until(lambda: self.run("sinfo", "-h", "-N", "-o", "%t", check=False).stdout.split() == ["idle"] * NODES, "every node")

    def stop(self) -> None:
        """End the jobs, then the daemons, last started first."""
        if len(self._daemons) > 1:
            self.run("scancel", "-f", "--state=RUNNING", "--state=PENDING", "-u", str(os.getuid()), check=False)
            with contextlib.suppress(TimeoutError):
                self.wait_until(lambda: not self.run("squeue", "-h", check=False).stdout.strip(), "the end of all jobs", seconds=10)
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def run(self, *command: str | Path, check: bool = True, seconds: float = 120, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run ``srun``, ``sbatch``, ``scontrol``, ... against this cluster and return what it printed."""
        result = subprocess.run(
            [str(word) for word in command], capture_output=True, text=True, check=False, timeout=seconds, env=self.environ | variables
        )
        if check and result.returncode != 0:
            raise RuntimeError(f"{command[0]} ended with {result.returncode}\n{result.stdout}\n{result.stderr}\n{self.logs()}")
        return result

    def submit(self, *options: str, script: str, **variables: str) -> str:
        """``sbatch`` a shell script; its output goes to ``job-%j.out`` in the folder. Returns the job id."""
        path = self.folder / f"{secrets.token_hex(4)}.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        words = ("sbatch", "--parsable", f"--output={self.folder}/job-%j.out", "--open-mode=append", *options, path)
        return self.run(*words, **variables).stdout.strip()

    def wait(self, job: str, *states: str, seconds: float = 120) -> str:
        """Poll until the job is in one of the states (by default any in which it has ended) and return the state."""
        wanted = states or ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
        state = ""

        def is_there() -> bool:
            nonlocal state
            lines = self.run("scontrol", "show", "job", "-o", job, check=False).stdout
            state = lines.partition("JobState=")[2].partition(" ")[0]
            return state in wanted

        self.wait_until(is_there, f"job {job} to be {' or '.join(wanted)}", seconds)
        return state

    def restarts(self, job: str) -> int:
        """How often the job was put back into the queue."""
        return int(self.run("scontrol", "show", "job", "-o", job).stdout.partition("Restarts=")[2].partition(" ")[0])

    def output(self, job: str) -> str:
        """What the job has printed so far."""
        path = self.folder / f"job-{job}.out"
        return path.read_text() if path.exists() else ""

    def logs(self) -> str:
        """The end of each daemon's log, for errors."""
        return "\n".join(f"-- {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in sorted(self.folder.glob("*.log")))

    def _daemon(self, *command: str | Path) -> None:
        with (self.folder / f"{command[0]}-{len(self._daemons)}.err.log").open("wb") as output:
            self._daemons.append(subprocess.Popen([str(word) for word in command], env=self.environ, stdout=output, stderr=output))

    def wait_until(self, is_done: Callable[[], bool], what: str, seconds: float = 120) -> None:
        """Poll. A daemon that has ended is an error at once, with the logs."""
        deadline = time.monotonic() + seconds
        while not is_done():
            dead = [daemon.args for daemon in self._daemons if daemon.poll() is not None]
            if dead or time.monotonic() > deadline:
                raise TimeoutError(f"waited {seconds} s for {what}; ended: {dead}\n{self.logs()}")
            time.sleep(0.05)


def missing() -> str:
    """What is not installed, and how to install it; empty if a cluster can be started."""
    path = f"{os.environ['PATH']}:{_SBIN}"
    absent = [program for program in _PROGRAMS if shutil.which(program, path=path) is None]
    if not sys.platform.startswith("linux"):
        return "a SLURM cluster is started on Linux only"
    return f"{', '.join(absent)} not found: {INSTALL}" if absent else ""


@contextlib.contextmanager
def cluster(extra: str = "") -> Iterator[Slurm]:
    """A cluster of its own, ended and removed afterwards. ``extra`` are lines for slurm.conf."""
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # munged refuses a socket that others cannot reach
        slurm = Slurm(Path(folder), extra)
        try:
            slurm.start()
            yield slurm
        finally:
            slurm.stop()
