"""``srun --pty``: what is typed into its shell is one process, and what srun starts on every task is a step."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from subprocess import PIPE, STDOUT

import pytest
import slurm as real_slurm
from cluster_parts import TELL

PROGRAM = f"{sys.executable} {TELL}"
IN_PTY = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0", "SLURM_NNODES": "1", "SLURM_TASKS_PER_NODE": "4", "SLURM_NODELIST": "n0", "SLURM_PTY_PORT": "40151",
}  # fmt: skip

needs_terminal = pytest.mark.skipif(
    not sys.platform.startswith("linux") or shutil.which("script") is None, reason="script of util-linux, which makes a terminal, not found"
)


@pytest.fixture
def in_terminal(tmp_path, told):
    """Run a command in a terminal, as a person who types lines would; return what each ``detection_program.py`` wrote to its file."""

    def run(command, *lines, environ):
        logs, ready = [tmp_path / f"{index}.log" for index, _ in enumerate(lines)], tmp_path / "ready"
        typed = "".join(f"{line} > {log} 2>&1 < /dev/null\n" for line, log in zip(lines, logs, strict=True))
        with subprocess.Popen(
            ["script", "-qec", command, "/dev/null"], stdin=PIPE, stdout=PIPE, stderr=STDOUT, text=True, env=environ
        ) as terminal:
            deadline = time.monotonic() + 120
            while lines and not ready.exists() and terminal.poll() is None:  # a shell throws away what was typed before it started
                assert time.monotonic() < deadline, "the shell does not start"
                terminal.stdin.write(f"touch {ready}\n")
                terminal.stdin.flush()
                time.sleep(0.5)
            shown, _ = terminal.communicate(typed + "exit\n", timeout=150)
        assert all(log.exists() for log in logs), shown
        return [told(log.read_text()) for log in logs]

    return run


def sizes(ranks):
    return [(one["environment"], one["global_rank"], one["world_size"]) for one in ranks]


ALONE = [("local", 0, 1)]


@needs_terminal
def test_job_control_tells_what_was_typed(in_terminal, tmp_path, told):
    """The same variables everywhere: typed into a shell with a terminal, in a script there, and a task that has the terminal itself."""
    task = "SLURM_TASK_PID=$$; export SLURM_TASK_PID; exec"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")} | IN_PTY
    typed, in_script = in_terminal(f"bash --norc -c '{task} bash --norc -i'", PROGRAM, f"bash -c '{PROGRAM}; true'", environ=environ)
    assert sizes(typed) == sizes(in_script) == ALONE
    reason = "this is an interactive shell of job 7 (SLURM_PTY_PORT, of srun --pty); srun starts its processes"
    assert typed[0]["candidates"]["slurm"] == ["declined", reason]
    log = tmp_path / "task"
    for command in (PROGRAM, f'bash -c "{PROGRAM}; true"'):
        in_terminal(f"bash -c '{task} {command} > {log}'", environ=environ)
        assert sizes(told(log.read_text())) == [("slurm", 0, 4)]


@needs_terminal
@pytest.mark.slurm
@pytest.mark.xdist_group("slurm")
def test_the_shell_of_a_step_with_several_tasks_is_one_process(in_terminal, slurm):
    shell = "srun --ntasks-per-node=4 --pty bash --norc"
    typed, started = in_terminal(shell, PROGRAM, f"srun --overlap -n2 {PROGRAM}", environ=slurm.environ)
    assert sizes(typed) == ALONE
    assert "interactive shell of job" in typed[0]["candidates"]["slurm"][1]
    assert sizes(started) == [("slurm", 0, 2), ("slurm", 1, 2)], "they have the shell's SLURM_PTY_PORT, and are a step"


@needs_terminal
@pytest.mark.slurm
@pytest.mark.xdist_group("slurm")
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_program_on_every_task_is_a_step_though_the_first_has_a_terminal(slurm, told, tmp_path, is_wrapped):
    each = f"{PROGRAM} > {tmp_path}/$SLURM_PROCID"
    path = tmp_path / "program.sh"
    path.write_text(f"#!/bin/bash\n{each}; true\n" if is_wrapped else f"#!/bin/bash\nexec {each}\n")
    path.chmod(0o755)
    slurm.run("script", "-qec", f"srun --ntasks-per-node=2 --pty {path}", "/dev/null")
    assert sizes(told("".join((tmp_path / str(rank)).read_text() for rank in range(2)))) == [("slurm", 0, 2), ("slurm", 1, 2)]


@needs_terminal
@pytest.mark.slurm
@pytest.mark.xdist_group("slurm")
def test_the_shell_that_salloc_opens_on_a_node_is_no_step(in_terminal):
    """With ``use_interactive_step`` salloc starts its shell with srun --pty, as a step with a number of its own."""
    if missing := real_slurm.missing():
        pytest.skip(missing)
    with real_slurm.cluster("LaunchParameters=use_interactive_step") as own:
        typed, started = in_terminal("salloc -N2 -n2", PROGRAM, f"srun {PROGRAM}", environ=own.environ | {"SHELL": "/bin/bash"})
    assert sizes(typed) == ALONE
    assert "the sbatch script or the salloc shell of job" in typed[0]["candidates"]["slurm"][1]
    assert sizes(started) == [("slurm", 0, 2), ("slurm", 1, 2)]
