"""A real SLURM: what its processes are told, in steps of every shape, and a job that is put back into the queue."""

from __future__ import annotations

import sys

import pytest
from cluster_parts import TELL

import accelkit
from accelkit.cluster.detection import make_environment

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

PROGRAM = (sys.executable, str(TELL))


def places(ranks):
    return [(one["host"], one["node_rank"], one["local_rank"], one["local_world_size"]) for one in ranks]


@pytest.fixture
def srun(slurm, told):
    def run(*options, command=("srun",), **variables):
        return told(slurm.run(*command, *options, *PROGRAM, **variables).stdout)

    return run


def test_two_nodes_with_two_tasks_each(srun):
    ranks = srun("-N2", "--ntasks-per-node=2")
    assert {one["environment"] for one in ranks} == {"slurm"}
    assert [one["global_rank"] for one in ranks] == [0, 1, 2, 3]
    assert {(one["world_size"], one["num_nodes"]) for one in ranks} == {(4, 2)}
    assert [place[1:] for place in places(ranks)] == [(0, 0, 2), (0, 1, 2), (1, 0, 2), (1, 1, 2)]
    assert len({(one["main_address"], one["main_port"]) for one in ranks}) == 1
    assert ranks[0]["main_address"] == ranks[0]["host"], "the processes meet at rank 0"
    assert 10000 <= ranks[0]["main_port"] < 30000
    assert not any(one["errors"] or one["warnings"] or one["torch"] for one in ranks)


def test_uneven_cyclic_and_one_node_of_two(srun, slurm, told):
    ranks = srun("-N2", "-n3", "-m", "cyclic")
    first, second = ranks[0]["host"], ranks[1]["host"]
    assert places(ranks) == [(first, 0, 0, 2), (second, 1, 0, 1), (first, 0, 1, 2)]
    step = srun("-N1", "-n2", command=("salloc", "-N2", "-n4", "srun"))
    assert [(one["world_size"], one["num_nodes"], one["local_world_size"]) for one in step] == [(2, 1, 2)] * 2


def test_a_batch_script_is_no_step_and_its_steps_have_ports_of_their_own(slurm, told):
    tell = " ".join(PROGRAM)
    job = slurm.submit("-N2", "-n2", script=f"{tell}; srun {tell} & srun --overlap {tell}; wait")
    assert slurm.wait(job) == "COMPLETED", slurm.output(job)
    ranks = told(slurm.output(job))
    (shell,) = [one for one in ranks if one["environment"] == "local"]
    assert (shell["world_size"], shell["candidates"]["slurm"][0]) == (1, "declined")
    assert f"the sbatch script or the salloc shell of job {job}" in shell["candidates"]["slurm"][1]
    steps = [one for one in ranks if one["environment"] == "slurm"]
    assert len(steps) == 4
    assert len({one["main_port"] for one in steps}) == 2, "two steps of a job, on the same node, at the same time"


def test_a_shell_of_salloc_and_an_interactive_one_are_no_steps(srun, slurm):
    (shell,) = srun("-N2", "-n4", command=("salloc",))
    assert shell["candidates"]["slurm"][0] == "declined"
    words = " ".join(("srun", "--pty", *PROGRAM))
    assert "interactive shell of job" in slurm.run("script", "-qec", words, "/dev/null").stdout


def test_one_visible_device_for_each_task(slurm):
    result = slurm.run("srun", "-N2", "-n4", "--gpus-per-task=1", "bash", "-c", "echo $SLURM_LOCALID $CUDA_VISIBLE_DEVICES")
    assert sorted(result.stdout.split("\n"))[1:] == ["0 0", "0 0", "1 1", "1 1"]


def test_launchers_inside_a_job_win(srun, openmpi, mpich):
    for mpirun, flags in ((openmpi, ["-n", "4"]), (mpich, ["-n", "4"])):
        ranks = srun(*flags, command=("salloc", "-N2", "--ntasks-per-node=2", *mpirun))
        assert [(one["environment"], one["global_rank"], one["local_rank"], one["world_size"]) for one in ranks] == [
            ("mpi", 0, 0, 4),
            ("mpi", 1, 1, 4),
            ("mpi", 2, 0, 4),
            ("mpi", 3, 1, 4),
        ]
        assert ranks[0]["candidates"]["slurm"][0] == "claimed", "mpirun starts its daemons with srun"


def test_torchs_variables_that_were_set_by_hand_for_the_tasks(srun, slurm, told):
    """In a script on every task, or before srun, where all tasks are told the same rank: srun knows the processes, and their nodes."""
    meeting_place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "4"}
    each = f"export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID; {' '.join(PROGRAM)}"
    in_script = told(slurm.run("srun", "-N2", "--ntasks-per-node=2", "bash", "-c", each, **meeting_place).stdout)
    before = srun("-N2", "--ntasks-per-node=2", RANK="0", LOCAL_RANK="0", **meeting_place)
    for ranks in (in_script, before):
        assert [(one["environment"], one["global_rank"], *place[1:]) for one, place in zip(ranks, places(ranks), strict=True)] == [
            ("slurm", 0, 0, 0, 2),
            ("slurm", 1, 0, 1, 2),
            ("slurm", 2, 1, 0, 2),
            ("slurm", 3, 1, 1, 2),
        ]
        assert {one["main_port"] for one in ranks} == {29500}
    assert "were set by hand for that many processes" in before[0]["candidates"]["slurm"][1]


@pytest.mark.parametrize("kind", ["pmi2", "pmix"])
def test_srun_that_speaks_pmi(srun, slurm, kind):
    if kind not in slurm.run("srun", "--mpi=list").stdout + slurm.run("srun", "--mpi=list").stderr:
        pytest.skip(f"this SLURM has no {kind}: apt-get install -y slurm-client libpmix2")
    ranks = srun(f"--mpi={kind}", "-N2", "-n2")
    assert [(one["environment"], one["global_rank"], one["node_rank"]) for one in ranks] == [("slurm", 0, 0), ("slurm", 1, 1)]


def test_two_jobs_on_one_node_have_different_ports(slurm, told):
    script = f"srun {' '.join(PROGRAM)}; sleep 2"
    jobs = [slurm.submit("-w", "n0", "-n1", script=script) for _ in range(2)]
    for job in jobs:
        slurm.wait(job)
    ports = {told(slurm.output(job))[0]["main_port"] for job in jobs}
    assert len(ports) == 2


def test_a_heterogeneous_step_is_one_job(slurm, told):
    job = slurm.submit("-N1", "-n1", ":", "-N1", "-n2", script=f"#SBATCH hetjob\nsrun --het-group=0,1 {' '.join(PROGRAM)}")
    assert slurm.wait(job) == "COMPLETED", slurm.output(job)
    ranks = told(slurm.output(job))
    assert [place[1:] for place in places(ranks)] == [(0, 0, 1), (1, 0, 2), (1, 1, 2)]
    assert {(one["job_id"], one["num_nodes"]) for one in ranks} == {(job, 2)}


REQUEUE = """
import os, sys
from accelkit.cluster.detection import select_cluster
environment = select_cluster().environment
print("run", environment.restart_count, "of", environment.job_id, flush=True)
if environment.restart_count == 0 and sys.argv[1:] == [os.environ.get("SLURM_ARRAY_TASK_ID", "")]:
    print("requeued", environment.requeue(), flush=True)
"""


@pytest.fixture
def requeue(tmp_path):
    path = tmp_path / "requeue.py"
    path.write_text(REQUEUE)
    return f"srun -n1 {sys.executable} {path}"


def test_one_task_of_an_array_is_put_back_and_the_other_is_not(slurm, requeue):
    array = slurm.submit("--array=1-2", "--requeue", script=f"{requeue} 1; sleep 1")
    slurm.wait(f"{array}_2", "COMPLETED")
    slurm.wait_until(lambda: slurm.restarts(f"{array}_1") == 1, "the first task to be put back")
    assert slurm.restarts(f"{array}_2") == 0
    slurm.run("scancel", array, check=False)


def test_a_heterogeneous_job_is_put_back_as_a_whole(slurm, requeue):
    job = slurm.submit("-n1", ":", "-n1", script=f"#SBATCH hetjob\nsrun --het-group=1 {requeue.removeprefix('srun -n1 ')} ''; sleep 20")
    slurm.wait_until(lambda: slurm.restarts(job) == 1, "the job to be put back")
    assert slurm.restarts(str(int(job) + 1)) == 1
    slurm.run("scancel", job, check=False)


def test_what_cannot_be_put_back_says_what_scontrol_says(slurm, requeue):
    result = slurm.run(*requeue.split(), "", check=False)
    assert result.returncode != 0
    for part in ("SLURM did not requeue job", "scontrol requeue", "Only batch jobs are accepted", "sbatch --requeue"):
        assert part in result.stderr


def test_why_under_srun(slurm):
    lines = slurm.run("srun", "-N2", "-n2", sys.executable, "-m", "accelkit", "why", "--cluster").stdout.splitlines()
    assert sorted(line.split()[1] for line in lines if line.startswith("global_rank ")) == ["0", "1"]
    assert sum(line.startswith("cluster environment slurm from accelkit==") for line in lines) == 2


def test_flags_to_change():
    environment = make_environment(
        "slurm",
        {
            "SLURM_JOB_ID": "1",
            "SLURM_STEP_ID": "0",
            "SLURM_NTASKS": "4",
            "SLURM_NNODES": "2",
            "SLURM_NODEID": "0",
            "SLURM_TASKS_PER_NODE": "2(x2)",
        },
    )
    environment.validate_settings(2, 2)
    with pytest.raises(accelkit.ContradictionError, match=r"--ntasks-per-node=4"):
        environment.validate_settings(4, 2)
    with pytest.raises(accelkit.ContradictionError, match=r"--nodes=4"):
        environment.validate_settings(2, 4)
