"""Whole runs: real worker processes on the CPU and on broken accelerators."""

import collections
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner
from executed import results_of

from accelkit.cli import main
from accelkit.discovery.metadata import installed_version
from accelkit.selection import resolve
from accelkit_conformance import checks, commands, mutation_scores, profiles
from accelkit_conformance.mutants import MOST_OF_ONE_MECHANISM, all_mutants, find
from accelkit_conformance.results import Result
from accelkit_conformance.runner import Executor, Runner
from accelkit_conformance.worker_pool import Order

TORCH = installed_version("torch")
IN_CONTRACT = len(profiles.suite("contract", TORCH).tests)

FORKED = pytest.mark.usefixtures("forked_workers")


def command(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "accelkit", "conformance", *arguments], capture_output=True, text=True, check=False, **options
    )


# -- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mutant", "kind"), [("segfaults", "crash"), ("exits", "crash"), ("hangs", "timeout")])
def test_a_device_that_takes_the_process_with_it_costs_one_test(tmp_path, mutant, kind):
    seconds = 20 if mutant == "hangs" else 100  # a worker's first test on a busy machine takes longer than one would think
    order = Order(find(mutant).record(resolve("fake_xpu")), seconds=seconds)
    tests = ["operators/forward[add,float32]", "operators/forward[topk,float32]", "operators/forward[mm,float32]"]
    found = results_of(Executor(order, tmp_path), *tests)
    assert [result.kind for result in found.values()] == ["pass", kind, "pass"]
    said = {"segfaults": "SIGSEGV", "exits": "exited with status 0", "hangs": "no answer within 20 s"}[mutant]
    assert said in found[tests[1]].reason


def test_a_crash_of_one_rank_is_the_crew_s_and_the_next_crew_works(tmp_path):
    executor = Executor(Order(resolve("cpu")), tmp_path)
    first = executor.run("collectives/barrier[2]")
    assert first.kind == "pass"
    os.killpg(executor._group._processes[1].pid, signal.SIGKILL)
    assert "rank 1 crashed with SIGKILL" in executor.run("collectives/broadcast[2]").reason
    assert results_of(executor, "collectives/broadcast[2]")["collectives/broadcast[2]"].kind == "pass"


@FORKED
def test_capabilities_are_held_to_both_ways(tmp_path):
    for mutant, test, kind in [
        ("claims_graphs", "capabilities/graphs", "fail"),
        ("hides_streams", "capabilities/streams", "over-unsupported"),
        ("hides_streams", "streams/current_stream_is_kept", "unsupported"),
    ]:
        order = Order(find(mutant).record(resolve("fake_xpu")))
        assert results_of(Executor(order, tmp_path), test)[test].kind == kind


@FORKED
def test_what_fails_at_every_try_has_failed_the_last_time_in_a_new_process(tmp_path):
    test = "operators/forward[add,float32]"
    executor = Executor(Order(find("ignores_alpha").record(resolve("fake_xpu"))), tmp_path, reruns=2)
    result = results_of(executor, test)[test]
    assert (result.kind, result.attempts, executor.num_workers) == ("fail", 3, 2)


@FORKED
def test_what_passes_at_the_second_try_is_flaky(tmp_path):
    """The mutant adds in another order from run to run, so that one of a few runs is right."""
    executor = Executor(Order(find("flickers").record(resolve("fake_xpu"))), tmp_path, reruns=3)
    result = results_of(executor, "device/results_stay_on_the_device")["device/results_stay_on_the_device"]
    assert (result.kind, result.attempts) == ("flaky", 2)
    assert "when it was run again: passed" in result.reason


@FORKED
def test_workers_are_recycled(tmp_path):
    runner = Runner(Order(resolve("cpu"), most_tests=2), tmp_path, parallel=1, reruns=0)
    tests = [test for test in profiles.suite("smoke", TORCH).tests if test.startswith("errors/")]
    results = [event for event in runner.run(tests) if isinstance(event, Result)]
    assert {result.kind for result in results} == {"pass"}
    assert runner.num_workers == len(tests) // 2


def printed_results(result):
    """Run the program that reproduces a failure, and return the lines with the result on the CPU and the result on the device."""
    shown = subprocess.run([sys.executable, "-c", result.reproducer], capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    return [line for line in shown.stdout.splitlines() if line.startswith(("cpu", "device"))]


@pytest.mark.smoke
def test_a_failure_comes_with_a_program_that_shows_it(tmp_path):
    test = "operators/forward[add,float32]"
    result = results_of(Executor(Order(find("ignores_alpha").record(resolve("fake_xpu"))), tmp_path), test)[test]
    assert result.kind == "fail"
    assert "alpha" in result.reason
    assert len(printed_results(result)) == 2


@FORKED
def test_the_program_contains_a_sample_that_no_opinfo_generates(tmp_path):
    """The 256 pairs of special values are more than the elements that the program of a generated sample contains."""
    test = "operators/special_values[add,float32]"
    result = results_of(Executor(Order(find("swallows_nan").record(resolve("fake_xpu"))), tmp_path), test)[test]
    assert result.kind == "fail"
    cpu, device = printed_results(result)
    assert "nan" in cpu
    assert "nan" in device, "the device of this program is not the mutant"


@FORKED
def test_the_program_of_a_gradient_has_the_output_gradient_of_the_test(tmp_path):
    """The mutant's softmax has no gradient, which an output gradient of ones would not show."""
    test = "autograd/backward[softmax,float32]"
    result = results_of(Executor(Order(find("softmax_forgets_the_sum").record(resolve("fake_xpu"))), tmp_path), test)[test]
    assert result.kind == "fail"
    cpu, device = (line.partition("(")[2] for line in printed_results(result))
    assert "tensor([" in cpu, cpu
    assert "fake_xpu" in device, device
    largest = max(abs(float(number)) for number in re.findall(r"-?\d+\.\d*(?:e[-+]\d+)?", cpu))
    assert largest > 0.01, f"the gradient on the CPU is zero but for rounding: {cpu}"


# -- the command ------------------------------------------------------------------------------------------------------


@FORKED
def test_a_device_that_is_not_here_exits_4_and_the_contract_is_run(error_text):
    run = command("run", "cuda", "-n", "1", env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
    assert run.returncode == 4, run.stderr
    assert "contract" in run.stdout
    assert f"{IN_CONTRACT} of {IN_CONTRACT}" in run.stdout
    assert "'cuda'" in run.stderr
    assert "why:" in run.stderr
    assert run.stderr.splitlines()[0] == error_text


def test_a_kill_and_resume_give_the_report_that_there_would_have_been(tmp_path, error_text):
    arguments = ["run", "cpu", "--profile", "smoke", "--select", "layout", "-n", "1", "--json"]
    whole = command(*arguments, str(tmp_path / "whole.json"))
    assert whole.returncode == 0, whole.stderr
    process = subprocess.Popen(
        [sys.executable, "-m", "accelkit", "conformance", *arguments, str(tmp_path / "none.json")], stdout=subprocess.DEVNULL
    )
    (journal,) = _journals()
    deadline = time.monotonic() + 60
    while not 20 < len(journal.read_text().splitlines()) < 60 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    with journal.open("a") as file:
        file.write('{"id": "layout/guard_ba')  # as a power cut leaves it
    assert not (tmp_path / "none.json").exists()
    resumed = command(*arguments, str(tmp_path / "resumed.json"), "--resume")
    assert resumed.returncode == 0, resumed.stderr
    first, second = (json.loads((tmp_path / name).read_text()) for name in ("whole.json", "resumed.json"))
    assert [(one["id"], one["kind"]) for one in first["results"]] == [(one["id"], one["kind"]) for one in second["results"]]
    for part in ("summary", "suite", "certification", "subject", "versions"):
        assert first[part] == second[part]
    again = command(*arguments, str(tmp_path / "again.json"), "--resume")
    assert again.returncode == 2
    assert "--resume" in again.stderr
    assert again.stderr == error_text


def test_an_interrupted_run_writes_the_report_of_what_was_done(tmp_path):
    path = tmp_path / "part.json"
    command = [sys.executable, "-m", "accelkit", "conformance", "run", "cpu", "--profile", "smoke", "-n", "1", "--json", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not any(len(journal.read_text().splitlines()) > 20 for journal in _journals()) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    report = json.loads(path.read_text())
    assert report["run"]["is_complete"] is False
    assert 10 < len(report["results"]) < report["run"]["chosen"]
    assert report["certification"]["is_certified"] is False
    assert "to continue, with the same options: accelkit conformance run cpu --resume" in said


def _journals():
    return list(Path(os.environ["ACCELKIT_CACHE_DIR"]).rglob("journal.jsonl"))


@FORKED
def test_json_on_standard_output_is_the_report():
    run = command("run", "cpu", "--profile", "contract", "-n", "1", "--json", "-")
    report = json.loads(run.stdout)
    assert report["schema"] == "accelkit.conformance/1"
    assert report["summary"]["kinds"] == {"pass": IN_CONTRACT}
    assert report["subject"]["plugin"].startswith("accelkit==")


@pytest.mark.smoke
@FORKED
def test_usage_is_exit_code_2(error_text):
    for arguments, says in {
        ("run", "nonsense"): "nonsense",
        ("run", "cpu", "--select", "no_such_check"): "no_such_check",
        ("run", "cpu", "--rerun-failed"): "--rerun-failed",
        ("selftest", "--mutants", "nonsense"): "nonsense",
        ("selftest", "--mutants", "ones_are_zeros,keeps_the_seed"): "repeat the option",
        ("selftest", "--generated", "2", "--kind", "cluster"): "--kind cluster",
    }.items():
        run = command(*arguments)
        assert run.returncode == 2, run.stderr
        assert says in run.stderr
        assert run.stderr == error_text


@FORKED
def test_a_part_certifies_nothing(error_text):
    run = command("run", "cpu", "--profile", "contract", "-n", "1", "--select", "probe", "--certify")
    assert run.returncode == 1
    assert "not certified" in run.stderr
    assert run.stderr == error_text


@pytest.mark.parametrize(
    ("kind", "name", "areas"),
    [
        ("precision", "bf16-mixed", ["isolation", "precision_dtypes"]),
        ("cluster", "local", []),
        ("strategy", "single_device", ["isolation", "strategy_state"]),
    ],
)
@FORKED
def test_other_kinds_are_subjects_too(kind, name, areas):
    """A few areas; `make conformance-kinds` runs them all."""
    run = command("run", name, "--kind", kind, "-n", "1", *(f"--select={area}" for area in areas))
    assert run.returncode == 0, run.stderr
    assert "none failed" in run.stdout


NEEDS_PACKAGE = """
from accelkit import Precision, UnavailableError, UnsupportedError

class Quick(Precision):
    "A precision of a package."

    def setup(self, accelerator, device):
        if accelerator.name == "cpu" or "{devices}" == "none":
            raise {error}("quick cannot be used on " + device.type, plugin=self.plugin, why="{why}", hint="pip install quick")
        super().setup(accelerator, device)
"""


@pytest.mark.parametrize(
    ("error", "devices", "code", "says"),
    [
        ("UnavailableError", "none", 4, ["why: the package quick is not installed", "what to do: pip install quick"]),
        ("UnsupportedError", "none", 4, ["quick cannot be used on cpu", "quick cannot be used on fake_xpu", "--on"]),
        ("UnavailableError", "fake_xpu", 0, []),
    ],
)
@FORKED
def test_a_precision_that_no_accelerator_can_use_is_one_error(plugin_site, error, devices, code, says):
    source = NEEDS_PACKAGE.format(error=error, devices=devices, why="the package quick is not installed")
    plugin_site.install("vendor-quick", source, entry_points="[accelkit.precisions]\nquick = vendor_quick:Quick\n")
    run = command("run", "quick", "--kind", "precision", "-n", "1", "--profile", "full", "--select", "class_is_documented")
    assert run.returncode == code, run.stderr
    assert ("the precision 'quick' is not available on this machine\n  plugin: vendor-quick==1.0" in run.stderr) == (code == 4)
    for text in says:
        assert text in run.stderr


@FORKED
def test_pytest_runs_the_suite(tmp_path):
    (tmp_path / "test_vendor.py").write_text(
        'from accelkit_conformance.pytest_api import conformance\n\ntest_conformance = conformance("cpu", profile="contract")\n'
    )
    pytest_command = [sys.executable, "-c", "import sys, pytest; sys.exit(pytest.console_main())"]
    plain = ["-q", "-p", "no:cacheprovider", "-c", os.devnull]
    own = subprocess.run([*pytest_command, *plain, str(tmp_path)], capture_output=True, text=True, check=False)
    assert f"{IN_CONTRACT} passed" in own.stdout, own.stdout
    plugin = ["-p", "accelkit_conformance.pytest_plugin", "--pyargs", "accelkit_conformance", "--accelerator=cpu", "--profile=contract"]
    named = subprocess.run([*pytest_command, *plain, *plugin], capture_output=True, text=True, check=False)
    assert f"{IN_CONTRACT} passed" in named.stdout, named.stdout


# -- broken accelerators ----------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_there_are_enough_mutants_of_enough_kinds():
    mutants = all_mutants()
    assert len(mutants) >= 40
    assert len({one.name for one in mutants}) == len(mutants)
    mechanisms = [one.mechanism for one in mutants]
    assert max(map(mechanisms.count, mechanisms)) <= MOST_OF_ONE_MECHANISM
    assert all(one.description for one in mutants)
    written = collections.Counter(one.kind for one in mutants)
    assert all(written[kind] >= 15 for kind in checks.SUBJECT_KINDS)


@pytest.mark.smoke
def test_the_recorded_tests_of_the_mutants_are_tests_of_their_areas():
    killers = mutation_scores.read()["killers"]
    suites = {kind: set(profiles.suite("full", TORCH, kind).tests) for kind in checks.SUBJECT_KINDS}
    mutants = {one.name: one for one in all_mutants()}
    wrong = [
        name
        for name, test in killers.items()
        if name in mutants and (test not in suites[mutants[name].kind] or checks.area_of(test) != mutants[name].area)
    ]
    hint = "run accelkit conformance selftest --until-killed --own-area --mutants NAME --output FILE for each of these mutants, and then"
    assert not wrong, f"{hint} python -m accelkit_conformance.mutation_scores FILE: {', '.join(wrong)}"
    assert killers.keys() <= mutants.keys(), "remove the mutants that no longer exist from outcomes.json"


@FORKED
def test_a_few_mutants_are_killed_and_the_matrix_says_by_what():
    names = ("probe_says_true", "counts_nothing", "seeds_are_coarse")
    run = command("selftest", "--own-area", "--json", *(f"--mutants={name}" for name in names))
    matrix = json.loads(run.stdout)
    jsonschema.validate(matrix, json.loads(Path(commands.__file__).with_name("schema.json").read_text("utf-8")))
    assert [one["is_killed"] for one in matrix["mutants"]] == [True] * len(names)
    assert all(one["by_area"][one["area"]] > 0 for one in matrix["mutants"])


@FORKED
def test_until_killed_runs_no_test_after_the_first_that_detects_a_mutant():
    run = command(
        "selftest", "--until-killed", "--own-area", "--json", "--mutants=string_rank", "--mutants=local_rank_is_global", "-n", "1"
    )
    matrix = json.loads(run.stdout)
    for one in matrix["mutants"]:
        assert [checks.area_of(test) for test in one["killers"]] == [one["area"]], "more tests ran after the first that detected it"
        assert one["run"] == 1, "the test that detected the mutant in an earlier self-test did not run first"


@pytest.mark.smoke
def test_help_names_every_command():
    shown = CliRunner().invoke(main, ["conformance", "--help"]).output
    for name in ("run", "list", "verify", "compare", "matrix", "selftest"):
        assert name in shown
