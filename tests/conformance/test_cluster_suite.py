"""The suite for cluster environments: a built-in one is certified, and mistakes of vendors fail with a message that names them."""

from __future__ import annotations

import importlib
import json
import sys
import textwrap

import pytest

from accelkit import PluginRecord
from accelkit_conformance import checks
from accelkit_conformance.mutants import find
from accelkit_conformance.results import NotSupported
from accelkit_conformance.run import Options, Run, find_subject
from accelkit_conformance.selftest import examine, suite_of
from accelkit_conformance.subject import Subject

HEAD = """
import os
from accelkit import ClusterEnvironment, Detection

class Acme(ClusterEnvironment):
    \"\"\"A scheduler with one process on each machine.\"\"\"
    creates_processes_externally = True
    local_rank, local_world_size = 0, 1
    def detect_cluster(self, environ):
        return Detection("acme", 50, "ACME_RANK") if environ.get("ACME_RANK") else None
    @property
    def num_nodes(self):
        return self.world_size
    @property
    def node_rank(self):
        return self.global_rank
    @property
    def main_port(self):
        return self.port("ACME_PORT")
"""
RANK = "@property\ndef global_rank(self):\n    return self.number('ACME_RANK', below=('ACME_WORLD',))\n"
SIZE = "@property\ndef world_size(self):\n    return self.number('ACME_WORLD', least=1)\n"
JOB = {
    "source": "the documentation of acme's scheduler",
    "kind": "documentation",
    "environment": "acme",
    "shapes": [[1, 1], [2, 1], [3, 1]],
    "job": {"ACME_RANK": "{global_rank}", "ACME_WORLD": "{world_size}", "ACME_PORT": "{port}"},
}
CHECKS = [one for one in checks.all_checks() if one.kind == "cluster" and one.area in ("cluster_ranks", "cluster_detection")]


@pytest.fixture
def acme(tmp_path, monkeypatch):
    """Returns a function that writes the package of an environment, with or without a description of its jobs, and returns the failures."""
    monkeypatch.syspath_prepend(tmp_path)

    def failures(rank=RANK, size=SIZE, job=JOB):
        package = tmp_path / "acme_cluster"
        (package / "recorded").mkdir(parents=True)
        (package / "__init__.py").write_text(HEAD + textwrap.indent(rank + size, "    "))
        if job is not None:
            (package / "recorded" / "job.json").write_text(json.dumps(job))
        cls = importlib.import_module("acme_cluster").Acme
        subject = Subject(PluginRecord("cluster", "acme", "vendor-acme", "1", "acme_cluster:Acme"), cls)
        found = {}
        for one in CHECKS:
            try:
                one.function(subject)
            except AssertionError as error:
                found[one.name] = str(error)
            except NotSupported:
                found[one.name] = "not supported"
        return found

    yield failures
    sys.modules.pop("acme_cluster", None)


def test_a_builtin_environment_is_certified(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = Run(find_subject("slurm", "cluster"), {"status": "usable", "reason": "", "hint": ""}, Options(profile="full", parallel=1))
    report = run.execute(lambda event: None)
    assert report["certification"] == {"is_certified": True, "objections": []}
    assert {result["kind"] for result in report["results"]} == {"pass"}


@pytest.mark.parametrize("name", ["port_of_every_job", "claims_job_script"])
def test_a_mutant_is_killed(name, tmp_path):
    mutant = find(name)
    assert examine(find_subject(mutant.base, "cluster"), mutant, tmp_path, suite_of(mutant, is_own_area_only=True)).is_killed


def test_a_vendor_s_environment_passes(acme):
    assert acme() == {}


@pytest.mark.parametrize("job", [JOB, None], ids=["described", "not described"])
def test_ranks_that_are_strings_are_named(acme, job):
    found = acme(rank="@property\ndef global_rank(self):\n    return self.environ.get('ACME_RANK', '0')\n", job=job)
    assert "global_rank is '0' (str) instead of int" in found["values_have_the_right_types"]
    assert "self.number" in found["values_have_the_right_types"]


@pytest.mark.parametrize("job", [JOB, None], ids=["described", "not described"])
def test_methods_where_properties_belong_are_named(acme, job):
    found = acme(size="def world_size(self):\n    return self.number('ACME_WORLD', least=1)\n", job=job)
    assert "world_size is a method instead of a property: add @property" in found["values_have_the_right_types"]


def test_the_environment_of_the_process_is_not_read(acme):
    found = acme(rank="@property\ndef global_rank(self):\n    return int(os.environ['ACME_RANK'])\n")
    assert "reading global_rank raised KeyError: 'ACME_RANK'; read variables with self.number" in found["values_have_the_right_types"]


def test_recordings_that_are_missing_are_asked_for(acme):
    found = acme(job=None)
    assert "neither all processes of a job of 'acme' nor a description" in found["jobs_are_recorded"]
    assert {text for name, text in found.items() if name != "jobs_are_recorded"} == {"not supported"}
