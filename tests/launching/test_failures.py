"""Jobs that fail: everything ends, the cause is told first, the logs are kept."""

from __future__ import annotations

import os
import re
import signal
import sys
import time

import pytest
from launch_command import FAMILY, GLOO

from accelkit.launching.failures import Ending, describe, first
from accelkit.launching.worker_main import write_error

TWO = ("--accelerator", "cpu", "--devices", 2)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(("raise ZeroDivisionError('mine')", 1, "ZeroDivisionError: mine", "train.py"), marks=pytest.mark.smoke),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "SIGKILL", "rank 1"),
        ("print('last words', file=sys.stderr); os._exit(7)", 7, "7", "last words"),
        ("import faulthandler; faulthandler._sigsegv()", 139, "SIGSEGV", "Segmentation fault"),
    ],
    ids=["exception", "killed", "exit", "segfault"],
)
def test_the_first_to_fail_is_told_first_and_not_those_that_lost_it(launch, script, case, error_text):
    cause, code, told, evidence = case
    path = script(FAMILY, GLOO, "family()\ntotal()", f"if rank == 1:\n    {cause}", "total()")
    one = launch(*TWO, path).wait(code)
    report = one.report()
    first_line = report.splitlines()[0].partition(": ")[2]
    assert first_line.startswith("rank 1 ")
    assert first_line.endswith(told)
    assert first_line == error_text
    assert evidence in report.partition("  rank 0:")[0]
    assert re.search(rf"rank 1: .*{told} \(first\)", report)
    assert "rank.py" not in report or code == 139, "the launcher's own frames are not the user's business"
    for rank in (0, 1):
        assert (one.logs() / "restart-0" / f"rank-{rank}" / "stderr.log").exists()


@pytest.mark.smoke
def test_a_rank_that_was_ended_while_it_exited_is_told_by_its_own_exit_code(tmp_path):
    record = {"error": "SystemExit: 3", "causes": [], "traceback": "SystemExit: 3", "time": 1.0, "exit_code": 3}
    slow = Ending(1, tmp_path, exit_code=-15, at=2.0, sent=signal.SIGTERM, record=record)
    quick = Ending(0, tmp_path, exit_code=3, at=1.5)
    assert first([quick, slow]) is slow
    report = describe([quick, slow], slow)
    assert "rank 1: exit code 3 (first)" in report
    assert "rank 0: exit code 3 (+0.500 s)" in report
    killed, forgot = Ending(2, tmp_path, exit_code=-9, at=1.0), Ending(3, tmp_path, exit_code=0, sent=signal.SIGTERM)
    assert [one.shell_code for one in (slow, quick, killed, forgot)] == [3, 3, 137, 1]


@pytest.mark.smoke
def test_a_signal_without_a_name_is_told_by_its_number(tmp_path):
    assert [str(Ending(0, tmp_path, exit_code=code)) for code in (-9, -40)] == ["killed by SIGKILL", "killed by signal 40"]


@pytest.mark.smoke
def test_of_ranks_that_waited_for_each_other_the_one_that_names_the_missing_rank_is_told_first(tmp_path):
    texts = ("RuntimeError: Timed out waiting 5000ms for recv operation", "CollectiveError: reduce (call 1) timed out waiting for rank 0")
    bare, named = (
        Ending(rank, tmp_path, exit_code=1, record={"error": text, "causes": [texts[0]], "traceback": text, "time": 1.0 + rank})
        for rank, text in enumerate(texts)
    )
    assert first([bare, named]) is named
    last = describe([bare, named], named).splitlines()[-1]
    assert last.endswith("the errors of the other ranks, including those on the other machines of the job")
    finished, stopped = Ending(2, tmp_path, exit_code=0), Ending(3, tmp_path, exit_code=-15, sent=signal.SIGTERM)
    assert "possibly waiting for rank 2, which had finished" in describe([named, finished], named)
    assert describe([named, finished, stopped], named).endswith("it was possibly waiting for rank 3")


@pytest.mark.smoke
def test_an_error_is_told_before_the_collective_that_other_ranks_could_not_finish_because_of_it(tmp_path):
    texts = ("ValueError: no such file", "CollectiveError: the block failed on rank 0: ValueError: no such file")
    cause, consequence = (
        Ending(rank, tmp_path, exit_code=1, record={"error": text, "causes": [], "traceback": text, "time": 1.0 + rank})
        for rank, text in enumerate(texts)
    )
    assert first([consequence, cause]) is cause


def test_a_hung_rank_ends_the_job_after_the_time_out(launch, script):
    hang = "if rank == 1:\n    signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    one = launch(*TWO, "--timeout", "3", "--grace-period", "1", script(FAMILY, GLOO, "family()\ntotal()", hang, "total()")).wait(1)
    assert "rank 0 failed first: " in one.report()
    assert "rank 1: was running, and was ended with SIGKILL" in one.report()
    assert "it was possibly waiting for rank 1" in one.report()


def test_a_rank_that_is_still_exiting_when_another_has_lost_it_is_told_as_finished(launch, script):
    exit_slowly = """
    if rank == 1:
        import psutil
        other = psutil.Process(pids[0])
        dist.destroy_process_group()
        while other.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        time.sleep(0.5)  # the launcher sees the end of rank 0 within this time
        sys.exit(0)
    """
    pids = "pids = [None, None]\ndist.all_gather_object(pids, os.getpid())"
    one = launch(*TWO, script(GLOO, pids, exit_slowly, "total()")).wait(1)
    assert "rank 1: finished" in one.report()
    assert "possibly waiting for rank 1, which had finished" in one.report()


def test_an_exit_code_of_the_program_s_own_is_the_job_s(launch, script):
    one = launch(*TWO, script("import os, sys, time\nif os.environ['RANK'] == '0': sys.exit(5)\ntime.sleep(600)")).wait(5)
    assert "rank 0 failed first: exit code 5" in one.report()
    assert "in <module>" in one.report(), "where it called sys.exit"
    assert "rank 1: was running, and was ended with SIGTERM" in one.report()


def test_a_program_that_is_no_python_is_told_as_python_does(launch, script):
    one = launch(*TWO, script("print('a'\n")).wait(1)
    assert "SyntaxError" in one.report()
    assert "train.py" in one.report()


def test_ctrl_c_ends_what_ignores_it(launch, script):
    path = script(
        FAMILY, "family()\nimport time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nnote('ready%s' % os.getpid())\ntime.sleep(600)"
    )
    one = launch(*TWO, "--grace-period", "120", path)
    one.until_noted(10)
    before = time.monotonic()
    os.kill(one.process.pid, signal.SIGINT)
    time.sleep(1)
    os.kill(one.process.pid, signal.SIGINT)  # the second one does not wait
    one.wait(130)
    assert time.monotonic() - before < 60, "it waited for the grace period"
    assert "received SIGINT, and ended the processes" in one.err


def test_sigterm_is_passed_on_with_the_time_to_save(launch, script):
    save = """
    import os, signal, sys, time
    def save(number, frame):
        time.sleep(1)
        note(f"saved{os.environ['RANK']}")
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    note(f"ready{os.environ['RANK']}")
    time.sleep(600)
    """
    one = launch(*TWO, script(FAMILY, save))
    one.until_noted(4)
    os.kill(one.process.pid, signal.SIGTERM)
    one.wait(143)
    assert {path.name for path in one.notes.iterdir()} >= {"saved0", "saved1"}


def test_no_process_outlives_a_launcher_that_was_killed(launch, script):
    one = launch(*TWO, script(FAMILY, "import time; time.sleep(600)"))
    one.until_noted(2)
    one.process.kill()
    deadline = time.monotonic() + 5
    while one.alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    one.wait(-9)


def test_a_temporary_folder_of_logs_goes_with_success_and_stays_with_failure(launch, script, tmp_path):
    path = script("import sys; print('x' * 100000); sys.exit(int(sys.argv[1]))")
    launch(*TWO, path, 0, TMPDIR=str(tmp_path)).wait(0)
    assert not list(tmp_path.glob("accelkit-launch-*"))
    one = launch(*TWO, path, 3, TMPDIR=str(tmp_path)).wait(3)
    assert one.logs().parent == tmp_path
    logs = [(one.logs() / "restart-0" / f"rank-{rank}" / "stdout.log").read_text() for rank in (0, 1)]
    assert "x" * 100000 + "\n" in logs, "the process that failed first is there; the other one may have been ended before it wrote"


def test_an_error_that_cannot_be_written_is_shown(tmp_path, capsys, monkeypatch):
    for name in ("last_type", "last_value", "last_traceback"):
        monkeypatch.setattr(sys, name, None, raising=False)
    write_error(str(tmp_path / "removed" / "error.json"), ValueError("mine"), None, 1)
    assert f"accelkit: the error could not be written to {tmp_path}/removed/error.json: " in capsys.readouterr().err
