"""Bytes that reach a job's ports are unpickled only if a process of the job signed them."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest
import two_processes
from free_port import free_port

from accelkit import CollectiveError, job_secret
from accelkit.launching.job import torchrun_variables

INTRUDER = """
# Takes the place of rank 1 without knowing the secret, believes what arrives, and sends an object that opens a file where it is unpickled.
import sys, accelkit
from accelkit import job_secret

class Planted:
    def __reduce__(self):
        return (open, (sys.argv[1], "w"))

job_secret.checked = lambda received, rank: received[job_secret.SIGNATURE_BYTES:]
rt = accelkit.Runtime("cpu")
rt.device
rt.gather_for_metrics([Planted()])
"""

JOB = """
import sys, accelkit
rt = accelkit.Runtime("cpu")
rt.device
print("joined", rt.gather_for_metrics(["mine"]))
"""


@pytest.fixture
def job_of_two():
    """What a launcher gives rank 0 of a job whose rank 1 is late."""
    place = torchrun_variables(
        rank=0,
        world_size=2,
        local_rank=0,
        local_world_size=2,
        group_rank=0,
        group_world_size=1,
        main_address="127.0.0.1",
        main_port=free_port(),
        run_id="job",
        restart_count=0,
        max_restarts=0,
        uses_agent_store=False,
    )
    return os.environ | place | {"ACCELKIT_TIMEOUT": "100"}


@pytest.mark.parametrize("secret", [{}, {job_secret.VARIABLE: job_secret.new()}], ids=["no secret", "secret"])
def test_who_takes_the_place_of_a_late_rank_runs_no_code_in_a_job_with_a_secret(tmp_path, job_of_two, secret):
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "intruder.py").write_text(INTRUDER)
    planted = tmp_path / "planted"
    late = job_of_two | {"RANK": "1", "LOCAL_RANK": "1"}
    intruder = subprocess.Popen([sys.executable, tmp_path / "intruder.py", planted], env=late, stderr=subprocess.PIPE)
    command = [sys.executable, tmp_path / "job.py"]
    job = subprocess.run(command, env=job_of_two | secret, capture_output=True, text=True, check=False, timeout=200)
    intruder.communicate(timeout=200)
    if not secret:  # what the page on security says of such jobs is so
        assert planted.exists()
        return
    assert job.returncode != 0
    assert "joined" not in job.stdout
    assert "rank 1" in job.stderr, job.stderr
    assert job_secret.VARIABLE in job.stderr, job.stderr
    assert not planted.exists()


OBJECTS = """
import json, os, sys, torch, accelkit
from accelkit.runtime.collectives import object_collectives as objects
from accelkit.runtime.collectives.communicator import Communicator

def tell(rt):
    communicator = Communicator(None, rt.device)
    rank = rt.process_index
    sent = rt.broadcast({"from": rank, "text": "x" * 5000})
    received = {"gathered": rt.gather_for_metrics([{"rank": rank}]), "sent": sent, "main": objects.broadcast(communicator, rank)}
    if rank == 0:
        objects.send(["to", 1], 1)
    else:
        received["received"] = objects.receive(0)
    everyone = rt.gather_for_metrics([received], use_gather_object=True)
    secrets = rt.gather_for_metrics([os.environ["ACCELKIT_JOB_SECRET"]])
    return {"received": everyone, "lengths": [len(one) for one in secrets], "number": len(set(secrets))}

if __name__ == "__main__":
    print(json.dumps(%s))
"""


@pytest.mark.parametrize(("kind", "accelerator"), [("accelkit launch", "fake_xpu"), ("Runtime.launch", "cpu")])
def test_the_processes_of_a_job_have_a_secret_and_exchange_objects(tmp_path, kind, accelerator):
    environ = {name: value for name, value in os.environ.items() if name != job_secret.VARIABLE}
    found = two_processes.answer(kind, accelerator, OBJECTS, tmp_path, environ)
    assert (found["lengths"], found["number"]) == ([64, 64], 1)
    same = {"gathered": [{"rank": 0}, {"rank": 1}], "sent": {"from": 0, "text": "x" * 5000}, "main": 0}
    assert found["received"] == [same, same | {"received": ["to", 1]}]


@pytest.mark.parametrize("environ", [{}, {job_secret.VARIABLE: "s3cret"}])
def test_what_was_signed_is_returned_and_every_changed_byte_is_found(monkeypatch, environ):
    monkeypatch.delenv(job_secret.VARIABLE, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    sent = job_secret.signed(pickle.dumps([1, 2]), 3)
    assert pickle.loads(job_secret.checked(sent, 3)) == [1, 2]
    with pytest.raises(CollectiveError, match="rank 2"):
        job_secret.checked(sent, 2)
    for place in range(len(sent)):
        changed = bytearray(sent)
        changed[place] ^= 1
        with pytest.raises(CollectiveError, match="rank 3"):
            job_secret.checked(bytes(changed), 3)
    with pytest.raises(CollectiveError):
        job_secret.checked(b"", 3)


def test_the_secret_is_not_shown_to_others():
    environ = os.environ | {job_secret.VARIABLE: "s3cret", "ACCELKIT_STRATEGY": "ddp"}
    for options in ([], ["--json"]):
        shown = subprocess.run([sys.executable, "-m", "accelkit", "env", *options], env=environ, capture_output=True, text=True, check=True)
        assert "ddp" in shown.stdout
        assert "s3cret" not in shown.stdout + shown.stderr
    assert job_secret.settings(environ)[job_secret.VARIABLE] == "(set)"
