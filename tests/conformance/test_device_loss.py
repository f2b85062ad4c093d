"""A device whose server ends during a run. The run stops, and continues once there is a server again."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from free_port import free_port

from accelkit.selection import resolve
from accelkit_conformance.device_loss import LossDetector
from accelkit_conformance.results import Result

pytestmark = pytest.mark.usefixtures("forked_workers")

DEVICE = """
import socket
from accelkit_conformance.mutants.broken import Broken

class OnServer(Broken):
    '''A device that asks a server on this machine to allow each of its kernels.'''

    def fault(self, name, call, args, kwargs, func):
        socket.create_connection(("127.0.0.1", {port}), timeout=30).close()
        return call()
"""

SERVER = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    print("ready", flush=True)
    for _ in range(int(sys.argv[2])):
        server.accept()[0].close()
"""

NAMES = (
    "abs",
    "acos",
    "acosh",
    "add",
    "addcdiv",
    "addcmul",
    "addmm",
    "all",
    "amax",
    "amin",
    "any",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
)
FAILED = Result("operators/forward[add,float32]", "fail")


@pytest.fixture
def serve():
    """Start a server that ends after it has allowed this many kernels."""
    servers = []

    def start(port, kernels):
        server = subprocess.Popen([sys.executable, "-c", SERVER, str(port), str(kernels)], stdout=subprocess.PIPE, text=True)
        servers.append(server)
        assert server.stdout.readline() == "ready\n"

    yield start
    for server in servers:
        server.kill()
        server.communicate()


def run(*arguments):
    select = [option for name in NAMES for option in ("--select", f"operators/forward[{name},float32]")]
    command = [
        sys.executable,
        "-m",
        "accelkit",
        "conformance",
        "run",
        "served",
        "--profile",
        "training",
        "-n",
        "1",
        "--reruns",
        "0",
        *select,
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_run_stops_if_the_server_of_the_device_ends_and_continues_with_another(plugin_site, serve, tmp_path):
    port = free_port()
    plugin_site.install("vendor-served", DEVICE.format(port=port), accelerators={"served": "OnServer"})
    serve(port, 120)
    path = tmp_path / "report.json"
    found = run("--json", str(path))
    assert found.returncode == 4, found.stderr
    report = json.loads(path.read_text())
    kinds = {one["id"]: one["kind"] for one in report["results"]}
    failed = [test for test, kind in kinds.items() if kind != "pass"]
    assert len(failed) == 1, kinds
    assert 1 < len(kinds) < len(NAMES)
    assert not report["run"]["is_complete"]
    for fact in (*failed, "the last test that passed is operators/forward", "Connection refused", "--resume"):
        assert fact in found.stderr

    without_server = run("--resume")
    assert without_server.returncode == 3, without_server.stderr
    assert "the run cannot be resumed" in without_server.stderr

    serve(port, 100_000)
    resumed = run("--resume", "--json", str(path))
    assert resumed.returncode == 1, resumed.stderr
    report = json.loads(path.read_text())
    assert report["run"]["is_complete"]
    assert [one["id"] for one in report["results"] if one["kind"] != "pass"] == failed
    assert run("--rerun-failed").returncode == 0


def test_a_device_that_still_works_is_tried_again_after_twice_as_many_failures(monkeypatch):
    tried = []
    detector = LossDetector([resolve("cpu")])
    find_loss = detector.find_loss
    monkeypatch.setattr(detector, "find_loss", lambda: tried.append(None) or find_loss())
    assert [detector.loss_after(FAILED) for _ in range(15)] == [None] * 15
    assert len(tried) == 1
    assert detector.loss_after(FAILED) is None
    assert len(tried) == 2
    detector.loss_after(Result(FAILED.id, "pass"))
    for _ in range(7):
        detector.loss_after(FAILED)
    assert len(tried) == 2, "a test that passes ends the row"
    detector.loss_after(FAILED)
    assert len(tried) == 3, "after a test that passes, the limit is the first one again"


def test_what_does_not_use_the_device_says_nothing_about_it(monkeypatch):
    detector = LossDetector([resolve("cpu")])
    monkeypatch.setattr(detector, "find_loss", lambda: "lost")
    for _ in range(7):
        assert detector.loss_after(FAILED) is None
    assert detector.loss_after(Result("contract/class_is_documented", "pass")) is None
    assert detector.loss_after(Result(FAILED.id, "unsupported", reason="dtype.float32: declared none")) is None
    assert detector.loss_after(Result(FAILED.id, "unsupported", error="ConnectionRefusedError")) == "lost"
