"""Which cluster environment is chosen, and why: precedence, claims of hook plugins, errors, and what the command line shows."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import accelkit
from accelkit import ClusterDetection, hookimpl
from accelkit.cluster.detection import check_environment, make_environment, select_cluster
from accelkit.specs.process_placement import Place

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "7", "RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "29500",
}  # fmt: skip
FIVE = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
STEP = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4", "SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NODEID": "0",
    "SLURM_NNODES": "2", "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_NODELIST": "n[0-1]",
}  # fmt: skip
OPEN_MPI = {f"OMPI_COMM_WORLD_{name}": value for name, value in {"RANK": "1", "SIZE": "4", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}.items()}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
JSRUN = {
    "LSB_JOBID": "7",
    "JSM_NAMESPACE_RANK": "1",
    "JSM_NAMESPACE_SIZE": "4",
    "JSM_NAMESPACE_LOCAL_RANK": "1",
    "JSM_NAMESPACE_LOCAL_SIZE": "2",
}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
RAY = {
    "RAY_RAYLET_PID": "1",
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "1",
}


@pytest.mark.parametrize(
    ("environs", "name"),
    [
        ([], "local"),
        ([STEP], "slurm"),
        ([STEP, TORCHRUN], "torchelastic"),
        ([STEP, OPEN_MPI], "mpi"),
        ([STEP, MPICH], "mpi"),
        ([STEP, {"PMI_RANK": "1", "PMI_SIZE": "4"}], "slurm"),
        ([STEP, RAY], "ray"),
        ([STEP, {"RAY_RAYLET_PID": "1"}], "ray"),
        ([RAY, TORCHRUN], "torchelastic"),
        ([JSRUN, OPEN_MPI], "lsf"),
        ([POD], "kubeflow"),
        ([POD, OPEN_MPI], "mpi"),
        ([POD, TORCHRUN], "torchelastic"),
        ([STEP, FIVE], "slurm"),
        ([STEP, FIVE, {"RANK": "0", "LOCAL_RANK": "0"}], "slurm"),  # exported before srun
        ([STEP, FIVE, {"NODE_RANK": "0"}], "slurm"),
        ([STEP, FIVE, {"LOCAL_WORLD_SIZE": "2"}], "slurm"),
        ([STEP, FIVE, {"LOCAL_WORLD_SIZE": "2", "RANK": "3"}], "torchelastic"),
        ([STEP, FIVE, {"WORLD_SIZE": "8"}], "torchelastic"),  # more processes than srun started
        ([STEP, FIVE, TORCHRUN], "torchelastic"),
        ([OPEN_MPI, FIVE], "mpi"),
        ([STEP, OPEN_MPI, FIVE], "mpi"),
        ([STEP, {"PMI_RANK": "1", "PMI_SIZE": "4"}, FIVE], "slurm"),
        ([OPEN_MPI, FIVE, {"WORLD_SIZE": "2"}], "torchelastic"),
        ([JSRUN, OPEN_MPI, FIVE], "lsf"),
        ([RAY, FIVE], "ray"),
        ([FIVE], "torchelastic"),
        ([{"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "4294967290", "SLURM_NTASKS": "1"}], "local"),
    ],
)
def test_the_innermost_launcher_wins(environs, name):
    environ = {key: value for one in environs for key, value in one.items()}
    decision = select_cluster(environ=environ).decision
    assert decision.chosen == name
    assert decision.candidates[0].status == "chosen"
    assert {one.name for one in decision.candidates} == {"torchelastic", "slurm", "lsf", "kubeflow", "mpi", "ray", "xla", "local"}
    assert all(one.reason for one in decision.candidates)
    assert f"cluster environment {name} from accelkit==" in str(decision)


def test_argument_before_variable_before_detection(monkeypatch):
    assert select_cluster("local", environ=TORCHRUN | {"ACCELKIT_CLUSTER": "slurm"}).environment.name == "local"
    selection = select_cluster(environ=TORCHRUN | {"ACCELKIT_CLUSTER": "slurm"})
    assert (selection.environment.name, selection.decision.source) == ("slurm", "ACCELKIT_CLUSTER")
    assert select_cluster("auto", environ=TORCHRUN | {"ACCELKIT_CLUSTER": "slurm"}).environment.name == "torchelastic"

    class Mine(accelkit.ClusterEnvironment):
        """An instance."""

    selection = select_cluster(Mine(), environ=TORCHRUN)
    assert (selection.environment.name, selection.decision.plugin) == ("Mine", f"(code)=={__name__}")
    assert selection.decision.candidates[0].reason.startswith("it was given, so")
    assert select_cluster(environ=TORCHRUN | {"ACCELKIT_CLUSTER": " slurm "}).decision.requested == "slurm"
    assert select_cluster(environ=TORCHRUN | {"ACCELKIT_CLUSTER": "  "}).decision.source == "default"


@pytest.mark.parametrize(("given", "error"), [("slurmm", accelkit.UnknownNameError), (3, accelkit.UsageError), (" ", accelkit.UsageError)])
def test_what_is_no_cluster_environment(given, error):
    with pytest.raises(error) as caught:
        select_cluster(given, environ={})
    assert caught.value.hint


def test_a_hook_plugin_may_claim_the_process_for_a_third_party(monkeypatch):
    seen = []

    class Scheduler(accelkit.ClusterEnvironment):
        """Another scheduler."""

        job_id = "mine"

    class Detector:
        @hookimpl
        def detect_cluster(self, environ):
            with pytest.raises(TypeError):
                environ["LEFT"] = "behind"
            seen.append(environ["MINE"])
            return ClusterDetection("my-scheduler", 500, "MINE is set")

    accelkit.register("my-scheduler", Scheduler)
    monkeypatch.setenv("MINE", "1")
    assert accelkit.Runtime(accelerator="cpu", hooks=[Detector()]).cluster.job_id == "mine"
    assert seen == ["1"]
    claims = [ClusterDetection("my-scheduler", 500, "MINE is set"), None]
    assert select_cluster(environ={}, further_claims=claims).decision.candidates[0].reason == "MINE is set"


def test_a_claim_that_loses_is_listed_with_the_plugin_that_provides_the_environment(plugin_site):
    entry_points = "[accelkit.clusters]\nacme = acme_launcher:Environment\n"
    plugin_site.install("acme-launcher", "raise SystemExit('it must not be imported')", entry_points=entry_points)
    claims = [ClusterDetection(name, 1, "MINE is set") for name in ("acme", "not-installed")]
    candidates = {one.name: one for one in select_cluster(environ=TORCHRUN, further_claims=claims).decision.candidates}
    assert (candidates["acme"].status, candidates["acme"].plugin) == ("claimed", "acme-launcher==1.0")
    assert candidates["not-installed"].plugin == ""


def test_an_environment_without_detection_of_its_own_claims_no_process():
    class Mine(accelkit.ClusterEnvironment):
        """It can be selected by name only."""

    class Detector:
        @hookimpl
        def detect_cluster(self, environ):
            return Mine(environ).detect_cluster(environ)

    assert accelkit.Runtime(accelerator="cpu", hooks=[Detector()]).cluster.name == "local"


def test_an_installed_environment_that_was_not_selected_is_listed_and_its_variables_cause_a_warning(plugin_site):
    source = "raise SystemExit('it must not be imported')"
    plugin_site.install("acme-launcher", source, entry_points="[accelkit.clusters]\nacme = acme_launcher:Environment\n")
    with pytest.warns(RuntimeWarning, match=r"ACME_RANK and ACME_WORLD are set.*Select it with ACCELKIT_CLUSTER=acme"):
        decision = select_cluster(environ={"ACME_RANK": "1", "ACME_WORLD": "2"}).decision
    assert decision.chosen == "local"
    (acme,) = [one for one in decision.candidates if one.name == "acme"]
    assert (acme.plugin, acme.status, acme.reason) == ("acme-launcher==1.0", "not selected", "select it with ACCELKIT_CLUSTER=acme")
    assert select_cluster(environ={"ACME_HOME": "/opt"}).decision.chosen == "local"  # without a warning
    assert select_cluster(environ=TORCHRUN | {"ACME_RANK": "1"}).decision.chosen == "torchelastic"


def test_a_runtime_stops_at_variables_that_make_no_sense(monkeypatch, error_text):
    for name, value in (TORCHRUN | {"RANK": "4"}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(accelkit.ContradictionError) as caught:
        accelkit.Runtime(accelerator="cpu")
    assert "RANK=4" in caught.value.what
    assert "WORLD_SIZE=4" in caught.value.what
    assert caught.value == error_text


@pytest.mark.parametrize(
    ("name", "environ", "processes", "nodes"),
    [
        ("torchelastic", TORCHRUN, "--nproc-per-node=3", "--nnodes=3"),
        ("slurm", STEP, "--ntasks-per-node=3", "--nodes=3"),
        ("mpi", OPEN_MPI, "--map-by ppr:3:node", "with 3 machines"),
        ("mpi", MPICH, "mpirun -ppn 3", "with 3 machines"),
        ("ray", RAY, "with 3 workers on each machine", "on 3 machines"),
        ("kubeflow", POD, "nprocPerNode: 3", "3 pods"),
    ],
)
def test_what_was_launched_and_what_was_said(name, environ, processes, nodes):
    environment = make_environment(name, environ)
    if environment.needs_placement_exchange():
        environment.resolve_placement([Place(f"h{rank // 2}", f"h{rank // 2}", local_rank=rank % 2) for rank in range(4)])
    here = environment.local_world_size
    for said in ((None, None), (here, None), (None, environment.num_nodes), (here, environment.num_nodes)):
        environment.validate_settings(*said)
    with pytest.raises(accelkit.ContradictionError) as caught:
        environment.validate_settings(3, None)
    assert processes in caught.value.hint
    assert "devices=" in caught.value.hint
    with pytest.raises(accelkit.ContradictionError) as caught:
        environment.validate_settings(None, 3)
    assert nodes in caught.value.hint
    assert "num_nodes=" in caught.value.hint


def test_jsrun_says_which_flag(tmp_path, error_text):
    (tmp_path / "ranks").write_text("launch\nh1\nh1\nh2\nh2\n")
    environment = make_environment("lsf", JSRUN | {"LSB_DJOB_RANKFILE": str(tmp_path / "ranks"), "LSB_JOBINDEX": "3", "LSB_RESTART": "Y"})
    with pytest.raises(accelkit.ContradictionError, match="--rs_per_host 3"):
        environment.validate_settings(3, None)
    with pytest.raises(accelkit.ContradictionError) as caught:
        environment.validate_settings(None, 3)
    assert "num_nodes=3" in caught.value.what
    assert caught.value == error_text
    assert (environment.main_address, environment.job_id, environment.restart_count) == ("h1", "7[3]", 1)


def test_uneven_tasks_contradict_a_number_for_each_machine():
    uneven = STEP | {"SLURM_NTASKS": "3", "SLURM_TASKS_PER_NODE": "2,1"}
    for rank, node, local, said in (("0", "0", "0", 2), ("2", "1", "0", 2)):
        environment = make_environment("slurm", uneven | {"SLURM_PROCID": rank, "SLURM_NODEID": node, "SLURM_LOCALID": local})
        with pytest.raises(accelkit.ContradictionError, match="--ntasks-per-node=2"):
            environment.validate_settings(said, 2)


@pytest.mark.parametrize(
    ("name", "environ", "text"),
    [
        ("slurm", STEP | {"SLURM_NTASKS": "abc"}, "SLURM_NTASKS='abc'"),
        ("slurm", STEP | {"SLURM_PROCID": "4"}, "SLURM_PROCID=4"),
        ("slurm", STEP | {"SLURM_LOCALID": "2"}, "SLURM_LOCALID=2"),
        ("slurm", STEP | {"SLURM_PROCID": ""}, "SLURM_PROCID"),
        ("slurm", STEP | {"SLURM_TASKS_PER_NODE": "3(x2)"}, "SLURM_TASKS_PER_NODE=3(x2)"),
        ("slurm", STEP | {"SLURM_STEP_NUM_TASKS": "1"}, "SLURM_STEP_NUM_TASKS=1"),
        ("torchelastic", {"TORCHELASTIC_RUN_ID": "7", "RANK": "0"}, "WORLD_SIZE"),
        ("torchelastic", TORCHRUN | {"WORLD_SIZE": "0"}, "WORLD_SIZE=0"),
        ("mpi", {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("mpi", MPICH | {"MPI_LOCALNRANKS": "5"}, "MPI_LOCALNRANKS=5"),
        ("lsf", JSRUN | {"LSB_DJOB_RANKFILE": "/nowhere/ranks"}, "LSB_DJOB_RANKFILE='/nowhere/ranks'"),
        ("kubeflow", POD | {"PET_NPROC_PER_NODE": "4"}, "PET_NPROC_PER_NODE=4"),
        ("ray", {"RAY_RAYLET_PID": "1", "WORLD_SIZE": "2"}, "RANK"),
    ],
)
def test_variables_that_make_no_sense_are_named(name, environ, text, error_text):
    environment = select_cluster(environ=environ).environment
    assert environment.name == name
    with pytest.raises(accelkit.UsageError) as caught:
        check_environment(environment)
    assert text in str(caught.value)
    assert caught.value == error_text
    assert caught.value.plugin.startswith("accelkit==")
    assert caught.value.hint


def test_a_list_that_names_no_host_is_an_error(error_text):
    environment = make_environment("slurm", STEP | {"SLURM_NODELIST": "a;rm -rf"})
    with pytest.raises(accelkit.UsageError) as caught:
        _ = environment.main_address
    assert "SLURM_NODELIST='a;rm'" in caught.value.what
    assert caught.value == error_text
    with pytest.raises(accelkit.UsageError) as caught:
        _ = make_environment("slurm", STEP | {"SLURM_NODELIST": ",,"}).main_address
    assert "SLURM_NODELIST" in caught.value.what
    assert caught.value == error_text


def test_ports_of_jobs_that_may_share_a_node_differ():
    near = {accelkit.port_for_job(job, step) for job in range(100_000, 101_250) for step in (0,)}
    assert len(near) == 1250
    assert not {accelkit.port_for_job(7, step) for step in range(50)} & {accelkit.port_for_job(8, step) for step in range(50)}
    assert len({accelkit.port_for_job(7, step) for step in range(16)}) == 16
    assert all(10_000 <= accelkit.port_for_job(job) < 30_000 for job in (0, 1, 2**40, "prterun-host-1@1", ""))


def test_detection_imports_no_torch():
    code = (
        "import sys; from accelkit.cluster.detection import describe, select_cluster\n"
        "describe(select_cluster().environment); print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_why_explains(run_why):
    result = run_why(**STEP)
    assert result.returncode == 0, result.stderr
    rows = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert rows[0] == "cluster environment slurm from accelkit==0.1.0: detected"
    assert "slurm accelkit==0.1.0 chosen 50 SLURM_STEP_ID=0 of job 7: srun started this process" in rows
    assert "mpi accelkit==0.1.0 absent none of its variables is set" in rows
    assert {"main_address n0", "main_port 10112", "global_rank 1", "local_world_size 2", "job_id 7"} <= set(rows)
    answer = json.loads(run_why("--json", **STEP, ACCELKIT_CLUSTER="mpi", **OPEN_MPI, PMIX_NAMESPACE="9").stdout)
    assert (answer["schema"], answer["chosen"], answer["source"]) == ("accelkit.why.cluster/1", "mpi", "ACCELKIT_CLUSTER")
    assert (answer["settings"]["main_port"], answer["errors"]) == (10144, [])
    (warning,) = answer["warnings"]
    assert run_why(**STEP, ACCELKIT_CLUSTER="mpi", **OPEN_MPI, PMIX_NAMESPACE="9").stderr == f"warning: {warning}\n"


def test_why_shows_what_cannot_be_read_and_exits_2(run_why, error_text):
    result = run_why(**STEP | {"SLURM_PROCID": "9"})
    assert result.returncode == 2
    assert "global_rank" in result.stdout
    assert all(word in result.stderr for word in ("error: ", "SLURM_PROCID=9", "SLURM_NTASKS=4", "srun"))
    assert result.stderr == error_text
    assert json.loads(run_why("--json", **STEP | {"SLURM_PROCID": "9"}).stdout)["settings"]["global_rank"] is None


def test_why_of_a_name_that_nobody_offers(run_why, error_text):
    result = run_why("slurmm")
    assert result.returncode == 2
    assert "'slurmm'" in result.stderr
    assert "'slurm'" in result.stderr
    assert result.stderr == error_text


def test_why_survives_a_third_party_that_ends_the_process(run_why, plugin_site, error_text):
    source = "import accelkit, os\nclass Bad(accelkit.ClusterEnvironment):\n    'Bad.'\n"
    ends = "    @property\n    def world_size(self):\n        os._exit(3)\n"
    plugin_site.install("vendor-bad", source + ends, entry_points="[accelkit.clusters]\nbad = vendor_bad:Bad")
    result = run_why("bad")
    assert result.returncode == 3
    assert "ended with exit code 3" in result.stderr
    assert "ACCELKIT_CLUSTER=local" in result.stderr
    assert result.stderr == error_text


def test_why_ends_a_third_party_that_hangs(run_why, plugin_site, error_text):
    source = "import accelkit, time\nclass Slow(accelkit.ClusterEnvironment):\n    'Slow.'\n"
    hangs = "    @property\n    def world_size(self):\n        time.sleep(600)\n"
    plugin_site.install("vendor-slow", source + hangs, entry_points="[accelkit.clusters]\nslow = vendor_slow:Slow")
    result = run_why("slow", ACCELKIT_LOAD_TIMEOUT="2")
    assert result.returncode == 3
    assert "it exceeded the time limit of 2 s (ACCELKIT_LOAD_TIMEOUT)" in result.stderr
    assert result.stderr == error_text
