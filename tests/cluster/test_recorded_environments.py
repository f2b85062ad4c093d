"""Every recorded environment: the right cluster environment is detected, and says what was launched."""

from __future__ import annotations

import json
import os
import warnings

import pytest

import accelkit
from accelkit.cluster.detection import SETTINGS, describe, select_cluster
from accelkit.specs.cluster import PLACEMENT
from accelkit_builtin.clusters.local import LocalEnvironment
from accelkit_conformance.oracle import cluster_recordings

FOLDER = cluster_recordings.folder_of(LocalEnvironment)
RECORDINGS = cluster_recordings.builtin_processes()


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.name)
def test_a_recorded_process_is_understood(recording, tmp_path):
    expected = dict(recording.expected)
    environ = recording.with_files(tmp_path)
    before, whole = dict(environ), dict(os.environ)
    selection = select_cluster(environ=environ)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        settings, errors = describe(selection.environment)
    assert selection.environment.name == expected.pop("environment")
    error = expected.pop("error", None)
    assert {name: settings[name] for name in expected} == expected
    if error is not None:
        assert any(error in one["what"] for one in errors), errors
        assert all(one["why"] and one["hint"] for one in errors)
    else:
        unknown = {name for name, value in expected.items() if value is None} - {"job_id"}
        asked = unknown if selection.environment.needs_placement_exchange() else set()
        assert asked <= set(PLACEMENT)
        assert {one["name"] for one in errors} == unknown - asked
    assert (environ, dict(os.environ)) == (before, whole), "reading changed something"
    assumed = expected.get("main_address") == "127.0.0.1" and expected.get("main_port") == 12910 and settings["world_size"] > 1
    assert len(caught) <= 2
    assert not assumed or [str(one.message)[:11] for one in caught] in (["MASTER_ADDR", "MASTER_PORT"], ["MASTER_PORT"])


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_every_recording_says_where_it_comes_from_and_is_consistent(path):
    fields = json.loads(path.read_text("utf-8"))
    assert fields["kind"] in ("run", "documentation")
    assert len(fields["source"]) > 20
    processes = [one for one in RECORDINGS if one.name.rpartition("-")[0] == path.stem]
    assert processes or "job" in fields
    for job in cluster_recordings.jobs(processes):
        assert [one.expected["global_rank"] for one in job] == list(range(len(job)))
        assert len({(one.expected["main_address"], one.expected["main_port"]) for one in job}) == 1, "all ranks meet at one place"


def test_the_processes_of_a_job_are_in_the_order_of_their_ranks():
    jobs = cluster_recordings.jobs([*reversed(RECORDINGS)])
    ranks = [[one.expected.get("global_rank") for one in job] for job in jobs]
    assert [0, 1] in ranks
    assert all(found == sorted(found) for found in ranks if None not in found)


def test_the_nested_cases_are_recorded():
    names = {recording.name.rpartition("-")[0] for recording in RECORDINGS}
    assert names >= {
        "slurm_torchrun", "slurm_openmpi", "slurm_mpich", "slurm_batch_script", "slurm_salloc_shell", "slurm_pty", "slurm_array",
        "slurm_heterogeneous", "slurm_gpus_per_task", "slurm_pmi2", "slurm_pmix", "slurm_step_of_one_node", "slurm_cyclic_3",
        "kubeflow_v1", "kubeflow_v2", "kubeflow_v2_torchrun", "lsf_jsrun", "openmpi", "mpich", "ray_actors", "torchrun_2x2",
        "slurm_interactive_step",
    }  # fmt: skip


def test_the_first_process_of_each_recorded_host_is_on_it(tmp_path, monkeypatch, error_text):
    """LSF gives no number of the machine: it is the host's place in the rank file."""
    recording = next(one for one in RECORDINGS if one.name == "lsf_jsrun-2")
    environment = select_cluster(environ=recording.with_files(tmp_path)).environment
    monkeypatch.setattr("socket.gethostname", lambda: "h41n02.cluster.example")
    assert environment.node_rank == 1
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    with pytest.raises(accelkit.UsageError) as caught:
        _ = environment.node_rank
    assert "elsewhere" in caught.value.what
    assert "LSB_DJOB_RANKFILE" in caught.value.why
    assert "jsrun" in caught.value.hint
    assert caught.value == error_text


def test_settings_are_the_properties_of_the_specification():
    properties = {name for name, value in vars(accelkit.ClusterEnvironment).items() if isinstance(value, property)}
    assert set(SETTINGS) == properties


@pytest.mark.parametrize(
    "content", ["[]", "[{}]", "3", "{", '{"processes": 3}', '{"processes": [[]]}', '{"job": {}}', '{"files": 3}', '{"job": []}']
)
def test_a_file_that_is_no_recording_is_named(tmp_path, content):
    (tmp_path / "odd.json").write_text(content)
    with pytest.raises(AssertionError, match=r"odd\.json cannot be read as a recording: "):
        cluster_recordings.read(tmp_path)
