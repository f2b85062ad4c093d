"""What a Runtime does with its trackers."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import signal
import warnings

import pytest
import torch
from run_records import from_csv, from_jsonl, from_tensorboard

import accelkit
from accelkit.tracking import CSV, JSONLines, TensorBoard, Tracker


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def runtime(*trackers):
    return accelkit.Runtime("cpu", trackers=trackers)


def test_values_are_plain_and_steps_are_counted():
    calls = []
    with runtime(lambda values, step: calls.append((step, values))) as rt:
        rt.log({"loss": torch.tensor([0.5]), "epoch": 1, "phase": "train"})
        rt.log({"loss": torch.ones((), dtype=torch.float64).numpy()})
        rt.log({"loss": True}, step=torch.tensor(7))
        rt.log({"loss": 2.0})
    assert calls == [(0, {"loss": 0.5, "epoch": 1, "phase": "train"}), (1, {"loss": 1.0}), (7, {"loss": True}), (8, {"loss": 2.0})]
    assert type(calls[0][1]["loss"]) is float


def test_a_new_name_adds_a_column(tmp_path):
    with runtime(CSV("a"), JSONLines("a")) as rt:
        rt.log({"loss": 1.0})
        rt.log({"text": 'two\nlines, "quoted"', "loss": 2.0})
        rt.log({"loss": 3.0})
    assert from_csv(tmp_path / "a") == from_jsonl(tmp_path / "a") == [(0, 1.0), (1, 2.0), (2, 3.0)]
    assert (tmp_path / "a/metrics.csv").read_text() == 'step,loss,text\n0,1.0,\n1,2.0,"two\nlines, ""quoted"""\n2,3.0,\n'


def test_a_new_run_in_the_same_folder_keeps_the_files_of_the_earlier_one(tmp_path):
    for value in (1.0, 2.0):
        with runtime(CSV("a"), TensorBoard("a")) as rt:
            rt.log({"loss": value})
            rt.log({"loss": value})
    assert from_csv(tmp_path / "a") == from_tensorboard(tmp_path / "a") == [(0, 2.0), (1, 2.0)]
    assert (tmp_path / "a/metrics.1.csv").read_text() == "step,loss\n0,1.0\n1,1.0\n"


def test_a_checkpoint_that_is_loaded_during_the_run_takes_the_curves_back(tmp_path):
    rt = runtime("csv", "jsonl", "tensorboard")
    rt.prepare(torch.nn.Linear(1, 1))
    for value in (0.0, 1.0):
        rt.log({"loss": value})
    rt.save_state("ckpt")
    rt.log({"loss": float("nan"), "other": 1.0})
    rt.load_state("ckpt")
    rt.log({"loss": 2.0})
    rt.teardown()
    (folder,) = (tmp_path / "runs").iterdir()
    assert from_csv(folder) == from_jsonl(folder) == from_tensorboard(folder) == [(0, 0.0), (1, 1.0), (2, 2.0)]


def test_a_checkpoint_of_a_run_in_another_folder_begins_a_new_run(tmp_path):
    with runtime(CSV("a")) as rt:
        rt.prepare(torch.nn.Linear(1, 1))
        rt.log({"loss": 1.0})
        rt.save_state("ckpt")
    with runtime(CSV("b")) as rt:
        rt.prepare(torch.nn.Linear(1, 1))
        rt.load_state("ckpt")
        rt.log({"loss": 2.0}, step=0)
    assert (from_csv(tmp_path / "a"), from_csv(tmp_path / "b")) == ([(0, 1.0)], [(0, 2.0)])


@pytest.mark.parametrize(("saved_with", "loaded_with"), [("jsonl", "jsonl"), ("tensorboard", "jsonl"), ("jsonl", "tensorboard")])
def test_a_resumed_run_keeps_its_folder_if_another_tracker_has_a_folder_of_its_own(tmp_path, saved_with, loaded_with):
    for names in ([saved_with], [saved_with, loaded_with], [loaded_with]):
        with runtime(CSV("logs"), *dict.fromkeys(names)) as rt:
            rt.prepare(torch.nn.Linear(1, 1))
            rt.resume("ckpt")
            rt.log({"loss": 1.0})
            rt.save_state("ckpt")
    (folder,) = (tmp_path / "runs").iterdir()
    read = {"jsonl": from_jsonl, "tensorboard": from_tensorboard}
    assert read[saved_with](folder)[:2] == [(0, 1.0), (1, 1.0)]
    assert read[loaded_with](folder)[-2:] == [(1, 1.0), (2, 1.0)]
    assert from_csv(tmp_path / "logs") == [(0, 1.0), (1, 1.0), (2, 1.0)]
    assert [path.name for path in (tmp_path / "logs").iterdir() if path.suffix in (".csv", ".jsonl")] == ["metrics.csv"]


@pytest.mark.parametrize(("saved_with", "loaded_with"), [(["jsonl"], []), ([], ["jsonl"])])
def test_a_checkpoint_is_loaded_with_other_trackers(tmp_path, saved_with, loaded_with):
    with runtime(*saved_with) as rt:
        rt.prepare(torch.nn.Linear(1, 1))
        rt.log({"loss": 1.0})
        rt.save_state("ckpt")
    with runtime(*loaded_with) as rt:
        rt.prepare(torch.nn.Linear(1, 1))
        assert rt.resume("ckpt")
        rt.log({"loss": 2.0})
    (folder,) = (tmp_path / "runs").iterdir()
    assert from_jsonl(folder) == [(0, 1.0 if saved_with else 2.0)]


def test_everything_is_written_when_a_preemption_is_known(tmp_path):
    rt = runtime(TensorBoard("a"))
    rt.log({"loss": 1.0})
    rt.watch_preemption()
    try:
        signal.raise_signal(signal.SIGUSR1)
        assert rt.is_preempted()
        assert from_tensorboard(tmp_path / "a") == [(0, 1.0)]
    finally:
        rt.teardown()


class Recorder(Tracker):
    """A tracker of a user, which fails in one method."""

    name = "recorder"

    def __init__(self, fails_in=""):
        self.calls = []
        self.fails_in = fails_in

    def _record(self, method, *arguments):
        self.calls.append((method, *arguments))
        if method == self.fails_in:
            raise OSError("no space left on device")

    def open(self, state):
        self._record("open")

    def log(self, values, step):
        self._record("log", step)

    def log_hyperparameters(self, values):
        self._record("log_hyperparameters", sorted(values))

    def flush(self):
        self._record("flush")

    def state(self):
        self._record("state")
        return {}

    def close(self, outcome):
        self._record("close", outcome)


@pytest.mark.parametrize("method", ["open", "log", "log_hyperparameters", "close"])
def test_a_tracker_that_fails_is_warned_of_once_and_not_called_again(method, error_text):
    failing, other = Recorder(method), Recorder()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with runtime(failing, other) as rt:
            rt.log({"loss": 1.0})
            rt.log({"loss": 2.0})
    assert len(caught) == 1
    assert caught[0].category is RuntimeWarning
    assert caught[0].message == error_text
    assert failing.calls[-1][0] == method
    assert [call[0] for call in failing.calls].count(method) == 1
    assert [call for call in other.calls if call[0] == "log"] == [("log", 0), ("log", 1)]


def test_a_tracker_that_begins_a_new_run_when_a_checkpoint_is_loaded_gets_the_hyperparameters_again():
    tracker = Recorder()
    with runtime(tracker) as rt:
        rt.prepare(torch.nn.Linear(1, 1))
        rt.log_hyperparameters({"lr": 0.1})
        rt.log({"loss": 1.0})
        rt.save_state("ckpt")
        tracker.calls.clear()
        rt.load_state("ckpt")
    assert tracker.calls[:3] == [("close", "interrupted"), ("open",), ("log_hyperparameters", ["accelkit", "lr"])]


def test_everything_is_written_before_a_checkpoint_gets_the_position():
    tracker = Recorder()
    with runtime(tracker) as rt:
        rt.prepare(torch.nn.Linear(1, 1))
        rt.log({"loss": 1.0})
        rt.save_state("ckpt")
        assert tracker.calls[-2:] == [("flush",), ("state",)]


def test_the_outcome_of_the_run():
    tracker = Recorder()
    with contextlib.suppress(ZeroDivisionError), runtime(tracker) as rt:
        rt.log({"loss": 1.0})
        raise ZeroDivisionError
    assert tracker.calls[-1] == ("close", "failed")
    tracker = Recorder()
    rt = runtime(tracker)
    rt.prepare(torch.nn.Linear(1, 1))
    rt.log({"loss": 1.0})
    rt.watch_preemption()
    try:
        signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(SystemExit):
            rt.save_and_stop_if_preempted("ckpt")
    finally:
        rt.teardown()
    assert tracker.calls[-1] == ("close", "interrupted")


def test_hyperparameters_are_recorded_with_the_first_value_or_at_the_end(tmp_path):
    @dataclasses.dataclass
    class Settings:
        width: int = 4

    early, only = Recorder(), Recorder()
    with runtime(early, JSONLines("a")) as rt:
        rt.log_hyperparameters(Settings())
        assert early.calls == []
        rt.log({"loss": 1.0})
        rt.log_hyperparameters(argparse.Namespace(rate=0.1))
    assert [call for call in early.calls if call[0] == "log_hyperparameters"] == [
        ("log_hyperparameters", ["accelkit", "width"]),
        ("log_hyperparameters", ["rate"]),
    ]
    assert json.loads((tmp_path / "a/hyperparameters.json").read_text()).keys() == {"width", "rate", "accelkit"}
    with runtime(only) as rt:
        rt.log_hyperparameters({"rate": 0.1})
    assert [call[0] for call in only.calls] == ["open", "log_hyperparameters", "flush", "state", "close"]


def test_keys_of_hyperparameters_that_json_does_not_support_are_written_as_text(tmp_path):
    with runtime(JSONLines("a")) as rt:
        rt.log_hyperparameters({"layers": [{(3, 3): {torch.float32: 1}, 2: "two"}], "device": torch.device("cpu")})
        rt.log({"loss": 1.0})
    written = json.loads((tmp_path / "a/hyperparameters.json").read_text())
    assert written["layers"] == [{"(3, 3)": {"torch.float32": 1}, "2": "two"}]
    assert written["device"] == "cpu"
    assert (tmp_path / "a/metrics.jsonl").read_text().count("loss") == 1


def test_a_runtime_without_values_writes_nothing(tmp_path):
    with runtime("csv", "tensorboard") as rt:
        assert [type(tracker) for tracker in rt.trackers] == [CSV, TensorBoard]
    with runtime() as rt:
        rt.log({"loss": object()})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("csv", "trackers=['csv']"),
        (3, "trackers=[int(...)]"),
        (["tensorbord"], "'tensorboard'"),
        (["comet"], "csv"),
        ([CSV], "CSV(...)"),
        ([3], "expected a name, a function"),
    ],
)
def test_what_is_no_tracker(given, said, error_text):
    with pytest.raises(accelkit.UsageError) as caught:
        accelkit.Runtime("cpu", trackers=given)
    assert said in str(caught.value)
    assert caught.value == error_text


def test_a_tracker_without_its_package_says_how_to_install_it(error_text):
    class Elsewhere(Recorder):
        name, package, module = "elsewhere", "elsewhere-client", "no_such_module_elsewhere"

    with pytest.raises(accelkit.UnavailableError) as caught:
        runtime(Elsewhere())
    assert caught.value.hint == "pip install elsewhere-client"
    assert caught.value == error_text


@pytest.mark.parametrize(
    ("values", "step", "said"),
    [
        ([1.0], None, "list"),
        ({1: 2.0}, None, "named 1"),
        ({"step": 2}, None, "step=step"),
        ({"loss": torch.ones(2)}, None, "'loss'"),
        ({"loss": torch.ones((), dtype=torch.complex64)}, None, "complex"),
        ({"loss": None}, None, "NoneType"),
        ({"loss": 1.0}, -1, "-1"),
        ({"loss": 1.0}, 0.5, "0.5"),
    ],
)
def test_values_that_cannot_be_logged(values, step, said, error_text):
    tracker = Recorder()
    with pytest.raises(accelkit.UsageError) as caught:
        runtime(tracker).log(values, step)
    assert said in str(caught.value)
    assert caught.value == error_text
    assert tracker.calls == []


def test_hyperparameters_of_another_type(error_text):
    with pytest.raises(accelkit.UsageError) as caught:
        runtime("csv").log_hyperparameters([1])
    assert caught.value == error_text
