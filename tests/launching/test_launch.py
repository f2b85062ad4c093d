"""``accelkit launch``: what it starts, and what it refuses to start."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from command_runner import command_runner
from launch_command import GLOO

import accelkit
from accelkit.cli import main
from accelkit.launching.device_allocation import choose

CPU = ("--accelerator", "cpu")
TELL = """
import json, os, pickle, sys
def here(): pass
pickle.loads(pickle.dumps(here))
words = ("ACCELKIT_", "OMP_", "RANK", "WORLD", "RDZV")
shown = {name: value for name, value in os.environ.items() if any(word in name for word in words)}
shown |= {"argv": sys.argv, "path": sys.path[0], "name": __name__, "file": __file__, "package": __package__}
print(json.dumps(shown | {"main": sys.modules["__main__"].here is here}))
print("err", file=sys.stderr)
"""


@pytest.mark.smoke
def test_each_process_is_told_its_place_and_the_choice(launch, script, tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    path = script(TELL)
    given = ["--precision", "64-true", "--strategy", "ddp", "--timeout", "77"]
    own = ["--devices", "3", "-m", "--", "--json", "-h", "--accelerator=nope"]
    one = launch(*CPU, "--devices", 2, *given, "--log-dir", "logs", path, *own).wait()
    lines = one.out.splitlines()
    first = json.loads(next(line for line in lines if not line.startswith("[")))
    second = json.loads(next(line.removeprefix("[1]: ") for line in lines if line.startswith("[1]: ")))
    for rank, shown in enumerate((first, second)):
        assert (shown["RANK"], shown["LOCAL_RANK"], shown["WORLD_SIZE"], shown["LOCAL_WORLD_SIZE"]) == (str(rank), str(rank), "2", "2")
        assert (shown["ACCELKIT_ACCELERATOR"], shown["ACCELKIT_DEVICES"], shown["ACCELKIT_STRATEGY"]) == ("cpu", "2", "ddp")
        assert (shown["ACCELKIT_PRECISION"], shown["ACCELKIT_TIMEOUT"]) == ("64-true", "77")
        assert "ACCELKIT_NUM_NODES" not in shown, "nobody gave it"
        assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" not in shown, "the launcher's own business"
        assert shown["argv"] == [str(path), *own]
        assert (shown["path"], shown["name"], shown["file"], shown["main"]) == (str(tmp_path), "__main__", str(path), True)
        assert f"OMP_NUM_THREADS={shown['OMP_NUM_THREADS']} each" in one.err
        log = next((tmp_path / "logs").glob(f"*/restart-0/rank-{rank}/stdout.log"))
        assert json.loads(log.read_text())["RANK"] == str(rank)
        assert log.with_name("stderr.log").read_text() == "err\n"
    assert one.err.count("OMP_NUM_THREADS") == 1


def test_strategy_auto_is_the_default(launch, script):
    one = launch(*CPU, "--strategy", "auto", script(TELL)).wait()
    assert "ACCELKIT_STRATEGY" not in json.loads(one.out)


def test_a_module_is_run_as_python_runs_it(launch, script, tmp_path):
    script("", name="pack/__init__.py")
    script(TELL, name="pack/tell.py")
    one = launch(*CPU, "-m", "pack.tell", "-m", "x", OMP_NUM_THREADS="3").wait()
    shown = json.loads(one.out)
    assert shown["argv"] == [str(tmp_path / "pack/tell.py"), "-m", "x"]
    assert (shown["path"], shown["package"], shown["name"]) == (str(tmp_path), "pack", "__main__")
    assert shown["OMP_NUM_THREADS"] == "3", "the user's own is kept"
    assert "[0]" not in one.out, "one process has no prefix"
    assert "1 process\n" in one.err


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_a_folder_and_an_archive_are_run_as_python_runs_them(launch, script, tmp_path, kind):
    script("import json, sys, own; print(json.dumps([sys.argv, sys.path[0], own.NUMBER, __name__]))", name="program/__main__.py")
    script("NUMBER = 7", name="program/own.py")
    program = tmp_path / "program"
    if kind == "archive":
        program = shutil.make_archive(str(program), "zip", program)
    assert json.loads(launch(*CPU, program, "x").wait().out) == [[str(program), "x"], str(program), 7, "__main__"]


def test_the_user_s_numbering_of_devices_reaches_every_process(launch, script):
    path = script("""
    import accelkit
    runtime = accelkit.Runtime()
    print(runtime.process_index, runtime.num_processes, runtime.device, runtime.state.devices)
    runtime.teardown()
    """)
    kind = accelkit.select("fake_xpu").accelerator.device_type
    two = launch("--accelerator", "fake_xpu", "--devices", "1,0", path, FAKE_XPU_DEVICES="2").wait()
    assert f"0 2 {kind}:1 (1, 0)\n" in two.out
    assert f"[1]: 1 2 {kind}:0 (1, 0)\n" in two.out
    several = launch("--accelerator", "fake_xpu", "--devices", 3, path, FAKE_XPU_DEVICES="2").wait(2)
    assert "3 were requested, but there are 2" in several.err
    assert several.out == "", "nothing was started"


CHOSEN = """
import os
from accelkit.launching.device_allocation import choose
for devices, spelled in ((None, "4"), ("auto", "4"), (2, "2"), ("1,", "1,"), ([3, 0], "3,0"), ("0,1", "2")):
    assert choose("fake_xpu", devices).environ == {"ACCELKIT_ACCELERATOR": "fake_xpu", "ACCELKIT_DEVICES": spelled}, devices
os.environ["ACCELKIT_DEVICES"] = "2,"
assert choose("fake_xpu").device_indices == (2,)
assert choose("accelkit-fake-xpu:fake_xpu", 1).name == "accelkit-fake-xpu:fake_xpu"
assert choose("cpu", "3").device_indices == (0, 1, 2)
"""


def test_what_is_chosen_is_spelled_as_devices_reads_it():
    """In a process of its own: the fake XPU counts its devices once."""
    environ = os.environ | {"FAKE_XPU_DEVICES": "4"}
    done = subprocess.run([sys.executable, "-c", CHOSEN], capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    with pytest.raises(accelkit.UnavailableError):
        choose("gpu")


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--accelerator", "cpuu", "train.py"], "cpuu"),
        (["--devices", "0,0", "train.py"], "0,0"),
        (["--devices", "two", "train.py"], "two"),
        (["nothing.py"], "nothing.py"),
        (["-m", "no_such_package.main"], "no_such_package.main"),
        (["--num-nodes", "2", "train.py"], "--main-address"),
        (["--num-nodes", "2", "--node-rank", "2", "--main-address", "a", "train.py"], "--node-rank 2 is too large for --num-nodes 2"),
        (["--num-nodes", "0", "train.py"], "--num-nodes '0' is not a number of machines"),
        (["--num-nodes", "1:two", "train.py"], "--num-nodes '1:two' is not a number of machines"),
        (["--num-nodes", "4:2", "train.py"], "--num-nodes 4:2: the minimum number of machines exceeds the maximum"),
        (["--num-nodes", "1:2", "train.py"], "--num-nodes 1:2 needs --main-address"),
        (["--num-nodes", "1:2", "--node-rank", "0", "train.py"], "--node-rank 0 cannot be used with the range"),
        (["--num-nodes", "1:2", "--rdzv-backend", "etcd-v2", "train.py"], "--rdzv-backend etcd-v2 was given, and a range needs c10d"),
        (["--precision", "33-true", "train.py"], "33-true"),
        (["--strategy", "dpd", "train.py"], "dpd"),
        (["--timeout", "soon", "train.py"], "--timeout='soon'"),
        (["--monitor-interval", "0", "train.py"], "--monitor-interval"),
        (["--max-restarts", "-1", "train.py"], "--max-restarts"),
        (["python", "train.py"], "leave out python"),
        (["/usr/bin/python3.11", "train.py"], "leave out /usr/bin/python3.11"),
        ([], "argument"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(script, monkeypatch, arguments, text, error_text):
    monkeypatch.chdir(os.path.dirname(script("print('started')")))
    result = command_runner().invoke(main, ["launch", *CPU, *arguments])
    assert result.exit_code == 2
    assert text in result.stderr
    assert result.stdout == ""
    if not result.stderr.startswith("Usage: "):  # click's own words differ from version to version
        assert result.stderr == error_text


SLURM = {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"ACCELKIT_NUM_NODES": "2"}, "ACCELKIT_NUM_NODES=2 is set, and fixes it"),
        (SLURM, "this process belongs to a job of 'slurm', which fixes the number of machines to 2\n"),
        ({"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0"}, "this process belongs to a job of 'slurm', which fixes the number\n"),
    ],
    ids=["num_nodes", "slurm", "slurm_without_a_number"],
)
def test_a_range_is_refused_where_the_number_of_machines_is_fixed(script, monkeypatch, variables, text, error_text):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    result = command_runner().invoke(main, ["launch", *CPU, "--num-nodes", "1:4", str(script("print('started')"))])
    assert result.exit_code == 2
    assert text in result.stderr
    assert result.stderr == error_text


def test_what_torch_refuses_is_refused_as_well(launch, script, error_text):
    script("print('started')")
    for option, value in (("--rdzv-backend", "pigeon"), ("--log-dir", "train.py")):
        one = launch(*CPU, option, value, "train.py").wait(2)
        assert f"{option} {value}" in one.err
        assert one.err == error_text
        assert "Traceback" not in one.err
        assert one.out == ""


def test_two_jobs_on_one_machine_do_not_meet(launch, script):
    path = script(GLOO, "print('total', total() + int(sys.argv[1]))")
    jobs = [launch(*CPU, "--devices", 2, path, number * 100) for number in range(2)]
    for number, job in enumerate(jobs):
        job.wait()
        assert job.out.count(f"total {3.0 + number * 100}") == 2


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux can a process see what its threads are at")
def test_a_program_without_accelkit_is_not_aborted_after_its_work_either(launch, script):
    """One of gloo's threads is not done with a collective, and the end of the program does not wait (tests/distributed/exit_program.py)."""
    slow = """
import threading, zlib
has_begun = threading.Event()
def compress(_):
    has_begun.set()
    zlib.compress(os.urandom(1 << 24))
group = dist.group.WORLD
total()
dist.all_reduce(torch.ones(3), async_op=True).get_future().then(compress)
has_begun.wait()
"""
    launch(*CPU, "--devices", 2, script(GLOO, slow)).wait()
