"""Elastic restarts, on one machine and on two agents with a c10d rendezvous."""

from __future__ import annotations

import socket
import time

from free_port import free_port
from launch_command import FAMILY, GLOO
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from accelkit.launching.job import HERE
from accelkit.launching.rendezvous import OrderedRendezvous, address_towards, in_this_process

CPU = ("--accelerator", "cpu", "--devices", 2)
KILLED_ONCE = "if rank == {rank} and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n    os.kill(os.getpid(), signal.SIGKILL)"


def test_a_rank_that_is_killed_restarts_the_job_once(launch, script):
    # torch's shared store still has what the killed rank 0 wrote, and rank 1 would read that before the new rank 0 comes
    late = "import os, time\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '1' and os.environ['RANK'] == '0':\n    time.sleep(3)"
    path = script(FAMILY, late, GLOO, "total()", KILLED_ONCE.format(rank=0), "print('total', total())")
    one = launch(*CPU, "--max-restarts", 1, path).wait(0)
    assert one.out.count("total 3.0") == 2
    assert "rank 0 failed first: killed by SIGKILL" in one.err
    assert "all processes are restarted: restart 1 of 1" in one.err
    always = script(FAMILY, "import os; print('round', os.environ['TORCHELASTIC_RESTART_COUNT']); 1 / 0", name="always.py")
    two = launch(*CPU, "--max-restarts", 2, always).wait(1)
    assert [f"round {number}" in two.out for number in range(4)] == [True, True, True, False]
    assert sorted(path.name for path in two.logs().iterdir()) == ["restart-0", "restart-1", "restart-2"]


def test_two_machines_of_two(launch, script):
    tell = "print('node', os.environ['GROUP_RANK'], 'rank', rank, 'total', total(), os.environ['ACCELKIT_NUM_NODES'])"
    nodes = _nodes(launch, script(GLOO, tell))
    for rank, node in enumerate(nodes):
        node.wait(0)
        for local in range(2):
            assert f"node {rank} rank {2 * rank + local} total 10.0 2" in node.out


def test_two_machines_restart_and_end_together(launch, script):
    second = "print('total', total(), flush=True)\nif rank == 1:\n    raise ValueError('the second time')"
    path = script(FAMILY, GLOO, "family()\ntotal()", KILLED_ONCE.format(rank=2), second, "total()")
    nodes = _nodes(launch, path, "--max-restarts", 1)
    for node in nodes:
        node.wait(1)
        assert node.out.count("total 10.0") == 2
    assert "rank 2 failed first: killed by SIGKILL" in nodes[1].err
    assert "rank 1 failed first: ValueError: the second time" in nodes[0].err
    assert "ended the job: " in nodes[1].err
    assert "rank 1 failed first: ValueError: the second time" in nodes[1].err


def test_ctrl_c_on_one_machine_ends_the_other(launch, script):
    nodes = _nodes(launch, script(FAMILY, "import time; time.sleep(600)"))
    nodes[0].until_noted(4)
    nodes[1].process.send_signal(2)
    nodes[1].wait(130)
    nodes[0].wait(1)
    assert "it received SIGINT" in nodes[0].err


def test_a_machine_that_loses_the_host_of_the_rendezvous_ends_its_processes_and_says_so(launch, script):
    nodes = _nodes(launch, script(FAMILY, "import time; time.sleep(600)"))
    nodes[0].until_noted(4)
    nodes[0].process.kill()
    nodes[1].process.wait(timeout=60)
    nodes[0].wait(-9)
    nodes[1].wait(1)
    assert "lost the connection to the other machines of the job: " in nodes[1].err
    assert nodes[1].logs().is_dir()
    assert "Traceback" not in nodes[1].err


def test_a_machine_that_comes_after_another_has_ended_the_job_starts_nothing(launch, script):
    port = free_port()
    parameters = RendezvousParameters("c10d", f"127.0.0.1:{port}", "accelkit", min_nodes=2, max_nodes=2, is_host=True)
    other = get_rendezvous_handler(parameters)
    other.shutdown()
    late = _node(launch, script("print('started')"), 1, port).wait(4)
    assert f"did not find each other at 127.0.0.1:{port}\n  why: another machine has ended the job\n" in late.err
    assert late.out == ""


def test_a_machine_that_waits_in_vain_for_another_reports_its_own_error(launch, script):
    hang = "if rank == 1:\n    signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    path = script(FAMILY, GLOO, hang, "total()")
    nodes = _nodes(launch, path, "--devices", 1, "--timeout", "3", "--grace-period", "1")
    for node in nodes:
        node.wait(1)
    assert "rank 0 failed first: " in nodes[0].report()
    assert "failed because another process did not respond" in nodes[0].report()
    assert "ended the job: rank 0 failed first: " in nodes[1].err


def test_machines_that_do_not_agree_on_their_ranks(launch, script):
    path, port = script("print('started')"), free_port()
    told = _node(launch, path, 0, port)
    _until_listening(port)
    for node in (told, _node(launch, path, None, port)):
        node.wait(2)
        assert "the machines must have the node ranks 0 to 1, each exactly once" in node.err
        assert "has no --node-rank" in node.err
        assert node.out == ""


def test_a_machine_without_a_rank_that_took_the_port_first(launch, script):
    path, port = script("print('started')"), free_port()
    untold = _node(launch, path, None, port)
    _until_listening(port)
    late = _node(launch, path, 0, port).wait(4)
    assert "started here without --node-rank, give each machine its own" in late.err
    untold.process.send_signal(2)
    untold.wait(130)


def _nodes(launch, path, *more):
    port = free_port()
    last = _node(launch, path, 1, port, *more)  # the last one comes first
    return _node(launch, path, 0, port, *more), last


def _node(launch, path, rank, port, *more):
    meeting = ("--num-nodes", 2, "--main-address", "127.0.0.1", "--main-port", port)
    return launch(*CPU, *meeting, *(("--node-rank", rank) if rank is not None else ()), *more, path)


def _until_listening(port):
    deadline = time.monotonic() + 60
    while True:
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < deadline, "nobody listens"
        time.sleep(0.05)


def test_a_port_that_is_taken_is_told(launch, script):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        meeting = ("--num-nodes", 2, "--node-rank", 0, "--main-address", "127.0.0.1", "--main-port", port)
        one = launch(*CPU, *meeting, script("")).wait(4)
    assert f"did not find each other at 127.0.0.1:{port}" in one.err
    assert "the port is in use on this machine. If another program uses it, choose another --main-port" in one.err


def test_the_rendezvous_is_closed_for_later_rounds():
    rendezvous = OrderedRendezvous(in_this_process("7"), None, HERE)
    assert not rendezvous.is_closed()
    rendezvous.set_closed()
    assert rendezvous.is_closed()
    assert (rendezvous.get_backend(), rendezvous.get_run_id()) == ("c10d", "7")


def test_the_address_of_this_machine_depends_on_the_other_one():
    assert address_towards("127.0.0.1:29400") == "127.0.0.1"
    assert address_towards("255.255.255.255:29400") == "255.255.255.255", "a socket cannot be connected with this one"
