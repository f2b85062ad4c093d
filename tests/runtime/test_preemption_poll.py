"""Notices of preemption from the cluster environment: who is asked, how often, and what happens if it fails."""

from __future__ import annotations

import threading
import time
import warnings
from pathlib import Path

import pytest
import torch

import accelkit

PLUGIN = "vendor-acme-plugin==1.2"


class Noticed(accelkit.ClusterEnvironment):
    """A cluster environment whose notice is a file."""

    name, plugin = "acme", PLUGIN
    preemption_poll_seconds = 0.1  # six intervals are the time limit of a call, also on a busy machine

    def __init__(self, notice: Path) -> None:
        super().__init__({})
        self.notice = notice
        self.calls = 0

    def is_preempted(self) -> bool:
        self.calls += 1
        return self.notice.exists()


class Failing(Noticed):
    """Its service fails three times."""

    preemption_poll_seconds = 0.05

    def is_preempted(self) -> bool:
        if super().is_preempted() or self.calls > 3:
            return True
        raise ConnectionRefusedError("no metadata service")


class Hanging(Noticed):
    """Does not answer before it is released."""

    def __init__(self, notice: Path) -> None:
        super().__init__(notice)
        self.released = threading.Event()

    def is_preempted(self) -> bool:
        self.calls += 1
        self.released.wait()
        return True


class NotABool(Noticed):
    """Returns the body of a response, which is true whatever it says."""

    def is_preempted(self):
        self.calls += 1
        return "FALSE"


def pollers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "accelkit-preemption"]


def until(condition, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def warning_of(rt: accelkit.Runtime) -> str:
    """The text of the one warning that ``is_preempted`` gives sooner or later."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        until(lambda: rt.is_preempted() or caught)
        for _ in range(5):
            rt.is_preempted()
    (warning,) = caught
    assert issubclass(warning.category, RuntimeWarning)
    assert Path(warning.filename).name == Path(__file__).name, "the warning points to accelkit instead of the program"
    return str(warning.message)


def test_a_notice_saves_and_stops(tmp_path):
    cluster = Noticed(tmp_path / "notice")
    with accelkit.Runtime("cpu", cluster=cluster) as rt:
        model = rt.prepare(torch.nn.Linear(2, 1))
        rt.resume(tmp_path / "ckpt")
        until(lambda: cluster.calls > 2)
        rt.save_and_stop_if_preempted(tmp_path / "ckpt")
        cluster.notice.touch()
        until(rt.is_preempted)
        with pytest.raises(SystemExit) as caught:
            rt.save_and_stop_if_preempted(tmp_path / "ckpt")
        assert caught.value.code == 143
        assert (tmp_path / "ckpt" / "step-0").is_dir()
        assert model.weight.shape == (1, 2)


def test_it_is_asked_until_it_says_yes(tmp_path):
    cluster = Noticed(tmp_path / "notice")
    cluster.notice.touch()
    with accelkit.Runtime("cpu", cluster=cluster) as rt:
        until(rt.is_preempted)
        until(lambda: not pollers())
        cluster.notice.unlink()
        assert rt.is_preempted()
        assert cluster.calls == 1


def test_nothing_is_asked_before_the_program_watches_and_after_teardown(tmp_path):
    cluster = Noticed(tmp_path / "notice")
    rt = accelkit.Runtime("cpu", cluster=cluster)
    rt.prepare(torch.nn.Linear(2, 1))
    assert pollers() == []
    rt.watch_preemption()
    rt.watch_preemption()
    assert len(pollers()) == 1
    cluster.notice.touch()
    until(rt.is_preempted)
    rt.teardown()
    assert pollers() == []
    cluster.notice.unlink()
    assert not rt.is_preempted(), "the notice of before teardown was not forgotten"
    until(lambda: cluster.calls > 1)
    rt.teardown()
    calls = cluster.calls
    time.sleep(0.5)
    assert (cluster.calls, pollers()) == (calls, [])


def test_a_cluster_environment_without_notices_costs_no_thread():
    class Silent(accelkit.ClusterEnvironment):
        preemption_poll_seconds = 0.01

    for cluster in (None, Silent()):
        with accelkit.Runtime("cpu", cluster=cluster) as rt:
            before = threading.active_count()
            assert not rt.is_preempted()
            assert threading.active_count() == before


def test_one_that_raises_is_named_once_and_asked_less_often(tmp_path, error_text):
    cluster = Failing(tmp_path / "notice")
    started = time.monotonic()
    with accelkit.Runtime("cpu", cluster=cluster) as rt:
        text = warning_of(rt)
        assert PLUGIN in text
        assert "ConnectionRefusedError: no metadata service" in text
        assert text == error_text
        until(rt.is_preempted)
    assert cluster.calls == 4
    assert time.monotonic() - started >= 3 * 6 * cluster.preemption_poll_seconds


def test_one_that_hangs_is_named_once_and_holds_nothing_up(tmp_path, error_text):
    cluster = Hanging(tmp_path / "notice")
    rt = accelkit.Runtime("cpu", cluster=cluster)
    try:
        text = warning_of(rt)
        assert PLUGIN in text
        assert text == error_text
        assert not rt.is_preempted()
        assert cluster.calls == 1
        began = time.monotonic()
        rt.teardown()
        assert time.monotonic() - began < 10
        assert len(pollers()) == 1
    finally:
        cluster.released.set()
    until(lambda: not pollers())
    assert cluster.calls == 1


def test_a_late_answer_counts(tmp_path):
    cluster = Hanging(tmp_path / "notice")
    with accelkit.Runtime("cpu", cluster=cluster) as rt:
        warning_of(rt)
        cluster.released.set()
        until(rt.is_preempted)


def test_what_is_not_a_bool_is_no_notice(tmp_path, error_text):
    with accelkit.Runtime("cpu", cluster=NotABool(tmp_path / "notice")) as rt:
        text = warning_of(rt)
        assert PLUGIN in text
        assert "'FALSE' (str)" in text
        assert text == error_text
        assert not rt.is_preempted()


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf"), "5", None])
def test_an_interval_that_is_none_is_refused(tmp_path, error_text, seconds):
    cluster = Noticed(tmp_path / "notice")
    cluster.preemption_poll_seconds = seconds
    with accelkit.Runtime("cpu", cluster=cluster) as rt:
        with pytest.raises(accelkit.BrokenPluginError) as caught:
            rt.watch_preemption()
        assert PLUGIN in caught.value.plugin
        assert repr(seconds) in caught.value.why
        assert caught.value == error_text
    assert pollers() == []
