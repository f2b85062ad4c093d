"""The HTCondor example of docs/vendors/cluster-environment.md, as its reader would do it: a wheel, installed and used by name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from cluster_parts import ROOT

import accelkit
from accelkit.cluster.detection import check_environment, make_environment, select_cluster

AD = 'ClusterId = 4711\nNumJobStarts = 2\nAllRemoteHosts = "slot1@h1.example,slot2@h1.example,slot1@h2.example"\n'
EXPECTED = [("h1.example", 0, 0, 2), ("h1.example", 0, 1, 2), ("h1.example", 1, 0, 1)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder into which pip installed the wheel."""
    page = (ROOT / "docs" / "vendors" / "cluster-environment.md").read_text("utf-8")
    (source,) = re.findall(r"```python\n(# htcondor/htcondor_environment.py\n.*?)```", page, re.DOTALL)
    (project,) = re.findall(r"```toml\n(# htcondor/pyproject.toml\n.*?)```", page, re.DOTALL)
    folder = tmp_path_factory.mktemp("htcondor")
    (folder / "htcondor_environment.py").write_text(source)
    (folder / "pyproject.toml").write_text(project)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    wheel = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder / "dist", folder]
    subprocess.run(wheel, check=True, capture_output=True)
    (built,) = (folder / "dist").glob("*.whl")
    subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", "--no-index", "--target", folder / "site", built], check=True, capture_output=True
    )
    return folder / "site"


@pytest.fixture
def job(tmp_path):
    (tmp_path / "job.ad").write_text(AD)
    return [{"_CONDOR_PROCNO": str(rank), "_CONDOR_NPROCS": "3", "_CONDOR_JOB_AD": str(tmp_path / "job.ad")} for rank in range(3)]


def test_every_process_is_told_its_place(installed, job):
    for rank, variables in enumerate(job):
        environ = os.environ | variables | {"PYTHONPATH": str(installed), "ACCELKIT_CLUSTER": "htcondor"}
        command = [sys.executable, "-m", "accelkit", "why", "--cluster", "--json"]
        result = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
        assert result.returncode == 0, result.stderr
        answer = json.loads(result.stdout)
        assert (answer["chosen"], answer["plugin"], answer["source"]) == ("htcondor", "accelkit-htcondor==1.0", "ACCELKIT_CLUSTER")
        told = answer["settings"]
        assert (told["main_address"], told["node_rank"], told["local_rank"], told["local_world_size"]) == EXPECTED[rank]
        assert (told["global_rank"], told["world_size"], told["num_nodes"], told["job_id"], told["restart_count"]) == (
            rank,
            3,
            2,
            "4711",
            1,
        )
        assert told["main_port"] == accelkit.port_for_job(4711)


def test_it_is_not_detected_and_its_errors_are_clear(installed, job, monkeypatch, error_text):
    monkeypatch.syspath_prepend(str(installed))
    accelkit.refresh()
    assert select_cluster(environ=job[0]).environment.name == "local"
    environment = make_environment("htcondor", job[0] | {"_CONDOR_PROCNO": "3"})
    with pytest.raises(accelkit.ContradictionError) as caught:
        check_environment(environment)
    assert "_CONDOR_PROCNO=3" in caught.value.what
    assert "_CONDOR_NPROCS=3" in caught.value.what
    assert caught.value == error_text
    environment = make_environment("htcondor", {"_CONDOR_NPROCS": "3", "_CONDOR_PROCNO": "0"})
    with pytest.raises(accelkit.UsageError) as caught:
        check_environment(environment)
    assert "_CONDOR_JOB_AD=None" in caught.value.what
    assert caught.value == error_text
    with pytest.raises(accelkit.UnsupportedError) as caught:
        environment.requeue()
    assert "'htcondor'" in caught.value.what
    assert caught.value == error_text
    environment = make_environment("htcondor", job[0])
    with pytest.raises(accelkit.ContradictionError) as caught:
        environment.validate_settings(None, 3)
    assert "machine_count" in caught.value.hint
    assert caught.value == error_text
