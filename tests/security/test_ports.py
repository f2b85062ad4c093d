"""A job of one machine is reached from this machine only, and its launcher reads no pickle that came through a port."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import two_processes
from free_port import free_port

LISTENING = """
import json, os, psutil, torch, accelkit

def tell(rt):
    rt.device
    total = rt.reduce(torch.ones(1, device=rt.device), reduction="sum").item()
    starter = psutil.Process(os.getppid())
    family = [starter, *starter.children(recursive=True)]
    found = [c.laddr.ip for one in family for c in one.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    rt.wait_for_everyone()
    return {"addresses": found, "processes": rt.num_processes, "total": total}

if __name__ == "__main__":
    print(json.dumps(%s))
"""


@pytest.mark.parametrize(("kind", "accelerator"), [("accelkit launch", "fake_xpu"), ("Runtime.launch", "cpu")])
def test_a_job_of_one_machine_listens_on_loopback_only(tmp_path, kind, accelerator):
    found = two_processes.answer(kind, accelerator, LISTENING, tmp_path)
    assert (found["processes"], found["total"]) == (2, 2.0)
    assert found["addresses"], "processes of a job meet at a port"
    assert set(found["addresses"]) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


MEETING = """
import json, os, psutil, torch, accelkit
rt = accelkit.Runtime("cpu")
rt.device
port = int(os.environ["MASTER_PORT"])
found = [c.laddr.ip for c in psutil.Process(os.getppid()).net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.laddr.port == port]
rt.wait_for_everyone()
print(json.dumps({"rank": rt.process_index, "addresses": found}))
"""


def test_the_processes_of_several_machines_meet_on_the_interface_that_was_named(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(MEETING)
    meeting = ["--num-nodes", "2", "--main-address", "127.0.0.1", "--main-port", str(free_port())]
    command = [sys.executable, "-m", "accelkit", "launch", "--accelerator", "cpu", "--devices", "1", *meeting]
    options = {"cwd": tmp_path, "stdout": subprocess.PIPE, "text": True}
    nodes = [subprocess.Popen([*command, "--node-rank", str(rank), str(program)], **options) for rank in range(2)]
    lines = [line for node in nodes for line in node.communicate(timeout=200)[0].splitlines()]
    assert [node.returncode for node in nodes] == [0, 0]
    said = [json.loads(line[line.index("{") :]) for line in lines if "{" in line]
    assert {one["rank"]: one["addresses"] for one in said} == {0: ["127.0.0.1"], 1: []}, lines
