"""Signals of preemption: who may listen, and what happens to handlers that the program had before."""

from __future__ import annotations

import os
import signal
import threading

import pytest

import accelkit


@pytest.fixture
def runtime():
    rt = accelkit.Runtime("cpu")
    yield rt
    rt.teardown()


def test_a_handler_that_was_there_before_is_called_too(runtime):
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        runtime.watch_preemption()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert runtime.is_preempted()
        assert seen == [signal.SIGUSR1]
    finally:
        runtime.teardown()
        signal.signal(signal.SIGUSR1, before)


def test_only_the_main_thread_can_watch(runtime, error_text):
    caught = []

    def watch() -> None:
        with pytest.raises(accelkit.UsageError) as error:
            runtime.watch_preemption()
        caught.append(error.value)

    thread = threading.Thread(target=watch)
    thread.start()
    thread.join()
    (error,) = caught
    assert "main thread" in error.why
    assert error == error_text


class Noting:
    @accelkit.hookimpl(wrapper=True)
    def requeue(self):
        return (yield)


def test_a_job_without_a_queue_says_so_at_its_start(runtime, error_text):
    with pytest.raises(accelkit.UnsupportedError) as caught:
        accelkit.Runtime("cpu", requeue=True).watch_preemption()
    assert "requeue=True" in caught.value.what
    assert caught.value == error_text
    with pytest.raises(accelkit.UnsupportedError, match="no hook plugin does"):
        accelkit.Runtime("cpu", requeue=True, hooks=[Noting()]).watch_preemption()
