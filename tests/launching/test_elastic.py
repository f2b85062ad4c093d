"""Jobs whose number of machines changes while they run. Each machine is one ``accelkit launch``."""

from __future__ import annotations

import json
import signal
import socket
import time
from pathlib import Path

import elastic_program
import psutil
import pytest
import torch
from free_port import free_port
from launch_command import FAMILY, GLOO

from accelkit.launching.elastic import _Signals

CPU = ("--accelerator", "cpu", "--devices", 1)
PROGRAM = Path(elastic_program.__file__)


@pytest.fixture
def machine(launch, tmp_path):
    """Start a machine. The first one hosts the rendezvous."""
    port = free_port()
    machines = []

    def start(*arguments, nodes="2:3"):
        meeting = ("--num-nodes", nodes, "--main-address", "127.0.0.1", "--main-port", port, "--last-call-timeout", 3)
        machines.append(launch(*CPU, *meeting, *arguments, ACCELKIT_JOB_SECRET="of this job", OMP_NUM_THREADS="1"))
        if len(machines) == 1:
            until(lambda: is_listening(port), "nobody listens")
        return machines[-1]

    return start


def is_listening(port):
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


def until(condition, text, machines=(), seconds=200):
    """Wait until the condition is met. Fail if one of the machines exits before that."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, text
        assert all(one.process.poll() is None for one in machines), text
        time.sleep(0.05)


def check(folder, processes):
    """Check that the epoch was trained on these numbers of processes, on each sample once, and that the weights follow from the samples."""
    result = json.loads((folder / "result.json").read_text())
    records = result["records"]
    assert [record["processes"] for record in records] == processes
    assert sorted(index for record in records for index in record["kept"]) == list(range(elastic_program.SAMPLES))
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=elastic_program.LEARNING_RATE)
    for record in records:
        loss = model(elastic_program.inputs()[record["used"]]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert record["loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert records[-1]["loss"] < records[0]["loss"]
    for name, value in model.state_dict().items():
        torch.testing.assert_close(torch.tensor(result["weights"][name]), value)


def test_a_machine_is_killed_and_another_one_joins(machine, tmp_path):
    """The machine that hosts the rendezvous is suspended for several seconds, while the other one detects that a machine is lost."""
    arguments = (PROGRAM, tmp_path, "4:2", "7:3")
    host, other, lost = [machine(*arguments) for _ in range(3)]
    until((tmp_path / "waits-4-3").exists, "the job did not start on three machines")
    lost.process.kill()
    time.sleep(4)
    host.process.send_signal(signal.SIGSTOP)
    time.sleep(6)
    host.process.send_signal(signal.SIGCONT)
    until((tmp_path / "waits-7-2").exists, "the job did not continue on two machines", [host, other])
    new = machine(*arguments)
    lost.wait(-signal.SIGKILL)
    for one in (host, other, new):
        one.wait(0)
    assert [line for line in (host.out + other.out + new.out).splitlines() if line[0].isdigit()] == [
        "3 processes begin after step 0",
        "2 processes begin after step 3",
        "3 processes begin after step 7",
    ]
    check(tmp_path, [3] * 3 + [2] * 4 + [3] * 5)
    for one in (host, other):
        assert "lost the connection to " in one.err
        assert "another machine is joining the job" in one.err
        assert "restart 1 of" not in one.err


def test_too_few_machines_say_how_many_came(machine, script):
    one = machine("--join-timeout", 3, script("print('started')")).wait(4)
    assert "the job needs at least 2 machines, and after 3 seconds, 1 is present\n" in one.err
    assert "these machines are at 127.0.0.1:" in one.err
    assert one.err.count(socket.gethostname()) == 1
    assert "reduce MIN of --num-nodes MIN:MAX, or increase --join-timeout" in one.err
    assert one.out == ""


@pytest.mark.soak
def test_a_machine_that_gets_sigterm_leaves_after_all_have_saved(machine, tmp_path):
    machines = [machine(PROGRAM, tmp_path, "4:2") for _ in range(3)]
    until((tmp_path / "waits-4-3").exists, "the job did not start on three machines")
    machines[2].process.send_signal(signal.SIGTERM)
    machines[2].wait(128 + signal.SIGTERM)
    for one in machines[:2]:
        one.wait(0)
        assert "is leaving the job, because it received SIGTERM; the processes are stopped" in one.err
    assert "2 processes begin after step 4" in machines[0].out + machines[1].out
    check(tmp_path, [3] * 4 + [2] * 9)


@pytest.mark.soak
def test_two_machines_that_get_sigterm_one_after_the_other_leave_after_all_have_saved(machine, tmp_path):
    machines = [machine(PROGRAM, tmp_path, "4:1", nodes="1:3") for _ in range(3)]
    until((tmp_path / "waits-4-3").exists, "the job did not start on three machines")
    for one in machines[1:]:
        one.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
    for one in machines[1:]:
        one.wait(128 + signal.SIGTERM)
    machines[0].wait(0)
    check(tmp_path, [3] * 4 + [1] * 18)


@pytest.mark.soak
def test_a_machine_that_was_frozen_joins_again(machine, tmp_path):
    machines = [machine(PROGRAM, tmp_path, "4:2", "7:3") for _ in range(3)]
    until((tmp_path / "waits-4-3").exists, "the job did not start on three machines")
    launcher = psutil.Process(machines[2].process.pid)
    frozen = [launcher, *launcher.children(recursive=True)]
    for process in frozen:
        process.suspend()
    until((tmp_path / "waits-7-2").exists, "the job did not continue on two machines")
    for process in frozen:
        process.resume()
    for one in machines:
        one.wait(0)
    check(tmp_path, [3] * 3 + [2] * 4 + [3] * 5)


@pytest.mark.soak
def test_the_machine_that_hosts_the_rendezvous_ends_the_job_when_it_gets_sigterm(machine, tmp_path):
    host, other = [machine(PROGRAM, tmp_path, "4:5") for _ in range(2)]
    until((tmp_path / "waits-4-2").exists, "the job did not start on two machines")
    host.process.send_signal(signal.SIGTERM)
    host.wait(128 + signal.SIGTERM)
    other.wait(1)
    assert "ended the job: it received SIGTERM" in other.err
    again = [machine(PROGRAM, tmp_path) for _ in range(2)]
    for one in again:
        one.wait(0)
    assert "2 processes begin after step 4" in again[0].out + again[1].out
    check(tmp_path, [2] * 15)


@pytest.mark.soak
def test_the_failure_of_a_process_counts_as_a_restart_on_all_machines(machine, script):
    fails = "if rank == 1:\n    raise ValueError('round ' + os.environ['TORCHELASTIC_RESTART_COUNT'])"
    path = script(FAMILY, GLOO, "total()", fails, "total()")
    machines = [machine("--max-restarts", 1, path, nodes="2:2") for _ in range(2)]
    for one in machines:
        one.wait(1)
    text = machines[0].err + machines[1].err
    assert "rank 1 failed first: ValueError: round 0" in text
    assert "all processes are restarted: restart 1 of 1" in text
    assert "rank 1 failed first: ValueError: round 1" in text
    assert "restart 2 of" not in text
    assert "ended the job: rank 1 failed first: ValueError: round 1" in text


@pytest.mark.soak
def test_more_machines_than_the_job_needs_wait_until_one_is_lost(machine, tmp_path):
    machines = [machine(PROGRAM, tmp_path, "4:1", nodes="1:2") for _ in range(2)]
    until((tmp_path / "waits-4-2").exists, "the job did not start on two machines")
    machines[1].process.kill()
    machines[0].wait(0)
    check(tmp_path, [2] * 3 + [1] * 24)


def test_under_nohup_a_closed_terminal_does_not_end_the_job():
    """``nohup`` ignores SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with _Signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
