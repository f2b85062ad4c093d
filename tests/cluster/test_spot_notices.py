"""The cluster environments of docs/guides/preemption.md, with a metadata service of the cloud's protocol on a local port."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import threading
import time
import urllib.error
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from cluster_parts import ROOT
from free_port import free_port
from preloaded import Process

CLOUDS = {"aws": "AWSSpotEnvironment", "gcp": "GCPSpotEnvironment"}
ACTION = '{"action": "terminate", "time": "2027-01-31T08:22:00Z"}'
PROGRAM = """
import time
from pathlib import Path

import torch

import accelkit
from {module} import {name}

class Often({name}):
    preemption_poll_seconds = 0.5

rt = accelkit.Runtime("cpu", cluster=Often())
rt.resume("ckpt")
rt.prepare(torch.nn.Linear(2, 1))
for step in range(3000):
    try:
        rt.save_and_stop_if_preempted("ckpt")
    except SystemExit:
        Path(f"stopped-{{rt.process_index}}").write_text(str(step))
        raise
    if step == 3:
        Path(f"ready-{{rt.process_index}}").touch()
    time.sleep(0.02)
"""


class MetadataService(ThreadingHTTPServer):
    """The services of both clouds. It refuses a request that lacks what the cloud asks for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.is_preempted = False
        self.tokens: set[str] = set()

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which the clouds' own libraries find another service."""
        place = f"127.0.0.1:{self.server_address[1]}"
        return {"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{place}/", "GCE_METADATA_HOST": place}


class Handler(BaseHTTPRequestHandler):
    server: MetadataService

    def do_PUT(self) -> None:
        seconds = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if self.path != "/latest/api/token" or not seconds.isdigit() or not 1 <= int(seconds) <= 21600:
            return self.answer(400)
        token = f"token {len(self.server.tokens)}=="
        self.server.tokens.add(token)
        return self.answer(200, token)

    def do_GET(self) -> None:
        if self.path == "/latest/meta-data/spot/instance-action":
            if self.headers.get("X-aws-ec2-metadata-token") not in self.server.tokens:
                return self.answer(401)
            return self.answer(200, ACTION) if self.server.is_preempted else self.answer(404)
        if self.path == "/computeMetadata/v1/instance/preempted":
            if self.headers.get("Metadata-Flavor") != "Google":
                return self.answer(403)
            return self.answer(200, "TRUE" if self.server.is_preempted else "FALSE")
        return self.answer(404)

    def answer(self, status: int, text: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""


@contextlib.contextmanager
def serving():
    with MetadataService() as service:
        thread = threading.Thread(target=service.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield service
        finally:
            service.shutdown()
            thread.join()


def source(cloud: str) -> str:
    """The block of the page that is the file of this cloud."""
    page = (ROOT / "docs" / "guides" / "preemption.md").read_text("utf-8")
    (found,) = re.findall(rf"```python\n(# {cloud}_spot.py\n.*?)```", page, re.DOTALL)
    return found


def start(folder, rank, port, service, log):
    """A process of a job of two machines with one process each."""
    place = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": rank, "GROUP_WORLD_SIZE": 2}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test", "OMP_NUM_THREADS": 1}
    environ = os.environ | {name: str(value) for name, value in place.items()} | service.variables
    return Process([str(folder / "train.py")], environ, log, log, cwd=folder, number=rank)


def until(condition, seconds: float = 100) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@pytest.fixture(params=CLOUDS)
def module(request, tmp_path):
    path = tmp_path / f"{request.param}_spot.py"
    path.write_text(source(request.param))
    return path


def environment_class(module):
    spec = importlib.util.spec_from_file_location(module.stem, module)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return getattr(loaded, CLOUDS[module.stem.removesuffix("_spot")])


def test_notice_of_a_metadata_service(module, monkeypatch):
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")
    with serving() as service:
        cluster = environment_class(module)(service.variables)
        assert cluster.is_preempted() is False
        service.is_preempted = True
        assert cluster.is_preempted() is True
    with pytest.raises(urllib.error.URLError):
        cluster.is_preempted()


def test_job_whose_second_process_is_notified(module, tmp_path):
    """Each process has a machine of its own, and thus a service of its own. Both save the same step and end."""
    name = CLOUDS[module.stem.removesuffix("_spot")]
    (tmp_path / "train.py").write_text(PROGRAM.format(module=module.stem, name=name))
    with serving() as first, serving() as second, (tmp_path / "log").open("w") as log:
        port = free_port()
        jobs = [start(tmp_path, rank, port, service, log) for rank, service in enumerate((first, second))]
        try:
            until(lambda: all((tmp_path / f"ready-{rank}").exists() or job.poll() is not None for rank, job in enumerate(jobs)))
            second.is_preempted = True
            codes = [job.wait(60) for job in jobs]
        finally:
            for job in jobs:
                if job.poll() is None:
                    os.killpg(job.pid, signal.SIGKILL)
    assert codes == [143, 143], (tmp_path / "log").read_text()
    stopped = [(tmp_path / f"stopped-{rank}").read_text() for rank in range(2)]
    assert stopped[0] == stopped[1]
    assert int(stopped[0]) > 3
    assert (tmp_path / "ckpt" / "step-0").is_dir()
