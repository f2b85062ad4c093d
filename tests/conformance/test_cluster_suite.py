"""The suite for cluster environments: a built-in one is certified, and mistakes of vendors fail with a message that names them."""

from __future__ import annotations

import importlib
import json
import sys
import textwrap

import pytest

from accelkit import PluginRecord
from accelkit_conformance import checks
from accelkit_conformance.areas import cluster_jobs
from accelkit_conformance.mutants import find
from accelkit_conformance.results import NotSupported
from accelkit_conformance.run import Options, Run, find_subject
from accelkit_conformance.selftest import examine, suite_of
from accelkit_conformance.subject import Subject

pytestmark = pytest.mark.usefixtures("forked_workers")

HEAD = """
import os
from accelkit import ClusterEnvironment, ClusterDetection

class Acme(ClusterEnvironment):
    \"\"\"A scheduler with one process on each machine.\"\"\"
    creates_processes_externally = True
    local_rank, local_world_size = 0, 1
    def detect_cluster(self, environ):
        return ClusterDetection("acme", 50, "ACME_RANK") if environ.get("ACME_RANK") else None
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
NOT_OVERRIDDEN = {
    "is_preempted_returns_a_bool": "not supported: notices of preemption: declared none (is_preempted is not overridden)",
    "requeue_without_scheduler_is_an_error": "not supported: requeue: declared none (it is not overridden)",
}
AREAS = ("cluster_ranks", "cluster_detection", "cluster_jobs")
CHECKS = [one for one in checks.all_checks() if one.kind == "cluster"]


@pytest.fixture
def acme(tmp_path, monkeypatch):
    """Returns a function that writes the package of an environment, with or without a description of its jobs, and returns the failures."""
    monkeypatch.syspath_prepend(tmp_path)

    def failures(rank=RANK, size=SIZE, job=JOB, more="", only=None):
        package = tmp_path / "acme_cluster"
        (package / "sample_jobs").mkdir(parents=True)
        (package / "__init__.py").write_text(HEAD + textwrap.indent(rank + size + more, "    "))
        if job is not None:
            (package / "sample_jobs" / "job.json").write_text(json.dumps(job))
        cls = importlib.import_module("acme_cluster").Acme
        subject = Subject(PluginRecord("cluster", "acme", "vendor-acme", "1", "acme_cluster:Acme"), cls)
        found = {}
        for one in [one for one in CHECKS if (one.area in AREAS if only is None else one.name == only)]:
            try:
                one.function(subject)
            except AssertionError as error:
                found[one.name] = str(error)
            except NotSupported as error:
                found[one.name] = f"not supported: {error}"
        return found

    yield failures
    sys.modules.pop("acme_cluster", None)


def test_a_builtin_environment_is_certified(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = Run(find_subject("slurm", "cluster"), {"status": "usable", "reason": "", "hint": ""}, Options(profile="full", parallel=1))
    report = run.execute(lambda event: None)
    assert report["certification"] == {"is_certified": True, "objections": []}
    assert {result["id"]: result["reason"] for result in report["results"] if result["kind"] != "pass"} == {
        "cluster_jobs/is_preempted_returns_a_bool": "notices of preemption: declared none (is_preempted is not overridden)"
    }


@pytest.mark.parametrize("name", ["port_of_every_job", "claims_job_script", "waits_for_notice", "requeued_anyway"])
def test_a_mutant_is_killed(name, tmp_path):
    mutant = find(name)
    assert examine(find_subject(mutant.base, "cluster"), mutant, tmp_path, suite_of(mutant, is_own_area_only=True)).is_killed


def test_a_vendor_s_environment_passes(acme):
    assert acme() == NOT_OVERRIDDEN


@pytest.mark.parametrize(
    ("check", "change"), [("missing_variables_are_named", "without ACME_PORT"), ("unexpected_values_are_named", "with ACME_PORT=")]
)
def test_a_rank_that_is_guessed_only_if_a_variable_is_wrong_is_named(acme, check, change):
    local_rank = """
@property
def local_rank(self):
    from accelkit import UnknownPlacementError
    if self.environ.get("ACME_PORT", "").isdigit():
        raise UnknownPlacementError("local_rank is not known yet", hint="read it after the processes have joined")
    return 0
"""
    found = acme(more=local_rank, only=check)[check]
    assert change in found
    assert "local_rank is silently 0 although it cannot be read with the unchanged variables" in found


def test_a_process_that_does_not_find_the_others_is_named(acme, monkeypatch):
    monkeypatch.setattr(cluster_jobs, "_JOIN_SECONDS", 1.0)  # it waits in vain
    port = "@property\ndef main_port(self):\n    return self.port('ACME_PORT') + self.global_rank\n"
    found = acme(more=port, only="processes_find_each_other")
    assert "rank 0 of 2 did not join the others: UnavailableError: rank 0 of 2 could not join" in found["processes_find_each_other"]


def test_a_job_that_cannot_run_on_this_machine_is_not_supported(acme):
    found = acme(more="main_address = 'head.invalid'\n", only="processes_find_each_other")
    assert "meet at head.invalid, which is not an address of this machine" in found["processes_find_each_other"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return None", "is_preempted returned None (NoneType) instead of True or False"),
        ("raise LookupError('no service')", "is_preempted raised LookupError, in a thread as the Runtime calls it: no service"),
        ("import time; time.sleep(3)", "is_preempted did not return within 0.6 s"),
    ],
)
def test_notices_that_are_not_answered_are_named(acme, body, said):
    found = acme(more=f"preemption_poll_seconds = 0.1\ndef is_preempted(self):\n    {body}\n", only="is_preempted_returns_a_bool")
    assert said in found["is_preempted_returns_a_bool"]


@pytest.mark.parametrize("seconds", ["0", "True", "3601", "float('nan')"])
def test_an_interval_that_the_runtime_refuses_fails(acme, seconds):
    found = acme(
        more=f"preemption_poll_seconds = {seconds}\ndef is_preempted(self):\n    return False\n", only="is_preempted_returns_a_bool"
    )
    assert "instead of a number greater than 0 and at most 3600" in found["is_preempted_returns_a_bool"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("os.system('acme-requeue'); return True", "requeue raised FileNotFoundError"),
        ("subprocess.run('acme-requeue')", "requeue raised FileNotFoundError"),
        ("socket.create_connection(('127.0.0.1', 9))", "requeue raised ConnectionRefusedError"),
        ("os.kill(os.getppid(), 10)", "requeue raised PermissionError"),
        ("return 'requeued'", "requeue returned 'requeued' (str) instead of True, False or None"),
        ("raise SystemExit(3)", "requeue ends the process: it raised SystemExit(3)"),
        ("raise AccelkitError('no queue', hint='wait')", "the error of requeue does not name the plugin vendor-acme==1"),
        ("raise AccelkitError('no queue', plugin=self.plugin)", "the error of requeue does not say what to do"),
        (
            "with contextlib.suppress(OSError):\n        subprocess.run('q')\n    return True",
            "returned True, although it could not start q",
        ),
    ],
)
def test_requeue_without_a_scheduler_is_an_error(acme, body, said):
    imports = "import contextlib, socket, subprocess\nfrom accelkit import AccelkitError\n"
    requeue = f"def requeue(self):\n{textwrap.indent(imports, '    ')}    {body}\n"
    assert said in acme(more=requeue, only="requeue_without_scheduler_is_an_error")["requeue_without_scheduler_is_an_error"]


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
    assert "neither all processes of a job of 'acme' nor a description" in found["package_has_sample_jobs"]
    assert all("not supported: " in text for name, text in found.items() if name != "package_has_sample_jobs")
