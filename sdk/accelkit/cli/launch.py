"""``accelkit launch [OPTIONS] PROGRAM [ARGUMENTS]``: start the processes of a job, one per device."""

from __future__ import annotations

import importlib.machinery
import math
import os
import re
import sys
from pathlib import Path
from typing import Any

import click

from accelkit import job_secret
from accelkit.cli.num_nodes import VARIABLE, check_changing_number, read_num_nodes
from accelkit.cli.output import say
from accelkit.discovery.catalog import find
from accelkit.errors import UsageError
from accelkit.launching import device_allocation
from accelkit.launching.job import Job
from accelkit.launching.local_workers import Program
from accelkit.selection.request import AUTO
from accelkit.specs.process_group import read_seconds

_MAIN_PORT = 12910
_INTERPRETER = re.compile(r"python[\d.]*(\.exe)?")


def _positive(context: click.Context, parameter: click.Parameter, value: float) -> float:
    if not 0 < value < math.inf:
        raise click.BadParameter("a positive number of seconds is expected")
    return value


@click.command("launch", context_settings={"allow_interspersed_args": False})
@click.option("--accelerator", metavar="NAME", help="The accelerator, as in Runtime(accelerator=NAME).")
@click.option("--devices", metavar="N|auto|0,2", help="The number of devices, auto for all (the default), or their indices.")
@click.option("--strategy", metavar="NAME", help="The strategy, as in Runtime(strategy=NAME). auto means the default.")
@click.option("--precision", metavar="NAME", help="The precision, as in Runtime(precision=NAME).")
@click.option("--timeout", metavar="SECONDS", help="The timeout of collectives (default: 1800).")
@click.option(
    "--num-nodes",
    metavar="M|MIN:MAX",
    help="The number of machines, or the minimum and maximum number if machines may come and go. Run this command on each machine.",
)
@click.option(
    "--node-rank",
    type=click.IntRange(0),
    metavar="R",
    help="The rank of this machine. Omit it on all machines to let them be numbered in any order.",
)
@click.option("--main-address", metavar="HOST", help="The rendezvous host: a machine that all others can reach.")
@click.option(
    "--main-port",
    type=click.IntRange(1, 65535),
    default=_MAIN_PORT,
    show_default=True,
    metavar="PORT",
    help="The port on the rendezvous host.",
)
@click.option("--rdzv-backend", default="c10d", show_default=True, metavar="NAME", help="The backend of torch's rendezvous.")
@click.option("--rdzv-endpoint", metavar="HOST:PORT", help="The endpoint of torch's rendezvous, instead of --main-address.")
@click.option("--rdzv-id", metavar="ID", help="The ID of the job, if several jobs share a rendezvous endpoint.")
@click.option(
    "--join-timeout",
    type=click.IntRange(1),
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the other machines.",
)
@click.option(
    "--last-call-timeout",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    metavar="SECONDS",
    help="With MIN:MAX, how long to wait for more machines once MIN machines have joined.",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="How many times to restart all processes after a failure.",
)
@click.option(
    "--monitor-interval",
    type=float,
    callback=_positive,
    default=0.1,
    show_default=True,
    metavar="SECONDS",
    help="The interval between two checks of the processes.",
)
@click.option(
    "--grace-period",
    type=float,
    callback=_positive,
    default=25.0,
    show_default=True,
    metavar="SECONDS",
    help="The time between SIGTERM and SIGKILL.",
)
@click.option("--log-dir", type=click.Path(path_type=Path), metavar="DIR", help="Write the output of each process to files in this folder.")
@click.option("-m", "is_module", is_flag=True, help="Run PROGRAM as a module, like python -m.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(program: str, arguments: tuple[str, ...], is_module: bool, **options: Any) -> None:
    """Run PROGRAM in one process per device, on one machine or on several machines. All arguments after PROGRAM are passed to PROGRAM.

    Exit codes: 0 if all processes succeed; 130 after Ctrl-C; 143 after SIGTERM; otherwise the exit code of the process that failed first on
    this machine. If a signal ended that process, the exit code is 128 plus the number of the signal. If only another machine failed, or the
    connection to the other machines was lost, the exit code is 1.
    """
    job = _job(Program(program, is_module, arguments), **options)
    from accelkit.launching.elastic import run  # imported late, because it imports torch, which takes a second or two

    click.get_current_context().exit(run(job, _say))


def _job(
    program: Program,
    *,
    accelerator: str | None,
    devices: str | None,
    strategy: str | None,
    precision: str | None,
    timeout: str | None,
    num_nodes: str | None,
    node_rank: int | None,
    main_address: str | None,
    main_port: int,
    rdzv_endpoint: str | None,
    rdzv_id: str | None,
    **others: Any,
) -> Job:
    """Return the job that the options describe. Checks everything that can be checked without starting a process of the job.

    Prints the accelerator and the number of processes on this machine to standard error.

    Raises:
        AccelkitError: If an option is invalid. The error names the option to change.
    """
    _check_program(program)
    min_nodes, nodes = read_num_nodes(num_nodes)
    if num_nodes is not None and min_nodes is not None:
        check_changing_number(num_nodes, node_rank=node_rank, rdzv_backend=others["rdzv_backend"])
    if node_rank is not None and node_rank >= nodes:
        raise UsageError(
            f"--node-rank {node_rank} is too large for --num-nodes {nodes}",
            why="ranks start at 0",
            hint=f"use 0 to {nodes - 1}, or increase --num-nodes",
        )
    endpoint = rdzv_endpoint or (f"{main_address}:{main_port}" if main_address else "")
    if (nodes > 1 or min_nodes is not None) and not endpoint:
        raise UsageError(
            f"--num-nodes {num_nodes} needs --main-address",
            why="the machines need an address at which to find each other",
            hint="add --main-address HOST with the host name of one of the machines",
        )
    is_alone = nodes == 1 and min_nodes is None
    environ = {} if not is_alone or os.environ.get(job_secret.VARIABLE) else {job_secret.VARIABLE: job_secret.new()}
    if strategy is not None and strategy != AUTO:
        environ["ACCELKIT_STRATEGY"] = _known("strategy", strategy)
    if precision is not None:
        environ["ACCELKIT_PRECISION"] = _known("precision", precision)
    if timeout is not None:
        environ["ACCELKIT_TIMEOUT"] = f"{read_seconds(timeout, '--timeout'):g}"
    if num_nodes is not None and min_nodes is None:
        environ[VARIABLE] = str(nodes)
    choice = device_allocation.choose(accelerator, devices)
    count = len(choice.device_indices)
    _say(f"{choice.name}, {count} process{'es' * (count != 1)}{_threads(count, environ)}")
    return Job(
        program,
        count,
        environ | choice.environ,
        num_nodes=nodes,
        min_nodes=min_nodes,
        node_rank=node_rank,
        rdzv_endpoint="" if is_alone else endpoint,
        rdzv_id=rdzv_id or ("" if is_alone else "accelkit"),
        **others,
    )


def _known(kind: Any, name: str) -> str:
    find(kind, name)
    return name


def _threads(count: int, environ: dict[str, str]) -> str:
    threads = device_allocation.threads_each(count)
    if threads is None:
        return ""
    environ[device_allocation.THREADS_VARIABLE] = str(threads)
    return f", {device_allocation.THREADS_VARIABLE}={threads} each ({device_allocation.cores()} cores; set the variable to override this)"


def _check_program(program: Program) -> None:
    if not program.is_module:
        if _INTERPRETER.fullmatch(os.path.basename(program.name)):
            raise UsageError(
                f"{program.name} is not a program for accelkit launch",
                why="accelkit launch runs the script with the Python interpreter that runs accelkit",
                hint=f"leave out {program.name}, as in accelkit launch train.py or accelkit launch -m package.module",
            )
        if not os.path.exists(program.name):
            raise UsageError(
                f"the file {program.name} does not exist", why=f"the current directory is {os.getcwd()}", hint="use -m to run a module"
            )
        return
    top = program.name.partition(".")[0]
    if importlib.machinery.PathFinder.find_spec(top, [os.getcwd(), *sys.path]) is None:
        raise UsageError(f"there is no module named {program.name}", why=f"{top} was not found", hint="omit -m to run a script")


def _say(message: str) -> None:
    say(f"accelkit launch: {message}")
