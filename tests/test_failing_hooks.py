"""An error of a hook at the start of a Runtime, or when a job is requeued, names the plugin whose implementation raised it."""

from __future__ import annotations

import signal

import pytest
from torch import nn

import accelkit
from accelkit import HookError, hookimpl


class FailingSetup:
    @hookimpl
    def setup_device(self, device):
        raise ValueError("42 is not 43")


class FailingPrecision:
    @hookimpl
    def make_precision(self, name):
        raise ValueError("42 is not 43")


@pytest.mark.parametrize("hooks", [FailingSetup(), FailingPrecision()])
def test_a_hook_plugin_that_fails_at_the_start_is_named_and_accelkit_is_not(hooks, error_text):
    rt = accelkit.Runtime(accelerator="cpu", hooks=[hooks])
    with pytest.raises(HookError, match="42 is not 43") as caught:
        _ = rt.device
    assert caught.value.plugin == f"(code)=={__name__}"
    assert caught.value == error_text


class Passing:
    @hookimpl(wrapper=True)
    def setup_device(self, device):
        return (yield)

    @hookimpl(wrapper=True)
    def requeue(self):
        return (yield)


class FailingAccelerator(accelkit.Accelerator):
    device_type = "cpu"

    @classmethod
    def probe(cls):
        return accelkit.Availability.usable()

    def auto_device_count(self):
        return 1

    def setup_device(self, device):
        raise ValueError("42 is not 43")


def test_an_accelerator_that_fails_is_named_and_a_wrapper_is_not():
    accelerator = FailingAccelerator()
    accelerator.plugin = "acme==1"
    rt = accelkit.Runtime(accelerator=accelerator, hooks=[Passing()])
    with pytest.raises(accelkit.BrokenPluginError, match="setting up cpu") as caught:
        _ = rt.device
    assert caught.value.plugin == "acme==1"


class FailingRequeue:
    @hookimpl
    def requeue(self):
        raise FileNotFoundError("scontrol")


class ClaimingRequeue:
    @hookimpl
    def requeue(self):
        return "not now"


@pytest.mark.parametrize(
    ("hooks", "said"),
    [([FailingRequeue(), Passing()], "the hook requeue failed"), ([ClaimingRequeue()], "'not now'")],
)
def test_a_job_that_cannot_be_requeued_says_whose_hook_failed(tmp_path, hooks, said, error_text):
    with accelkit.Runtime(accelerator="cpu", hooks=hooks, requeue=True) as rt:
        rt.prepare(nn.Linear(1, 1))
        rt.save_and_stop_if_preempted(tmp_path)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(HookError, match=said) as caught:
            rt.save_and_stop_if_preempted(tmp_path)
    assert caught.value.plugin == f"(code)=={__name__}"
    assert caught.value == error_text
