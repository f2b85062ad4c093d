"""Hooks: what is registered is checked, and every hook is really called."""

from __future__ import annotations

import signal

import pytest
from torch import nn

import accelkit
from accelkit import HookError, hookimpl
from accelkit.plugin_manager import validate_hooks
from accelkit.specs.static_checks.hook_methods import specified_arguments


class Everything:
    """Implements every hook, and remembers the calls."""

    def __init__(self):
        self.calls = []

    @hookimpl
    def setup_device(self, device):
        self.calls.append("setup_device")

    @hookimpl
    def teardown(self):
        self.calls.append("teardown")

    @hookimpl
    def get_device_stats(self, device):
        self.calls.append("get_device_stats")
        return {}

    @hookimpl
    def doctor_checks(self):
        return {}

    @hookimpl
    def make_precision(self, name):
        self.calls.append(f"make_precision {name}")

    @hookimpl
    def detect_cluster(self, environ):
        self.calls.append("detect_cluster")

    @hookimpl
    def runtime_created(self, state):
        self.calls.append(f"runtime_created {state.accelerator}")

    @hookimpl
    def process_group_initialized(self, state):
        self.calls.append(f"process_group_initialized {state.num_processes}")

    @hookimpl
    def job_preempted(self, path):
        self.calls.append(f"job_preempted {path.name}")

    @hookimpl
    def requeue(self):
        self.calls.append("requeue")
        return True

    @hookimpl
    def checkpoint_saved(self, path):
        self.calls.append(f"saved {path.name}")

    @hookimpl
    def checkpoint_loaded(self, path):
        self.calls.append(f"loaded {path.name}")


def test_every_hook_is_called_in_the_life_of_a_runtime(tmp_path):
    hooks = Everything()
    before = signal.getsignal(signal.SIGTERM)
    with accelkit.Runtime(accelerator="cpu", strategy="ddp", hooks=[hooks], requeue=True) as rt:
        rt.prepare(nn.Linear(1, 1))
        rt.device_stats()
        rt.save_state(tmp_path)
        rt.load_state(tmp_path)
        rt.save_and_stop_if_preempted(tmp_path)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit) as ended:
            rt.save_and_stop_if_preempted(tmp_path)
    assert ended.value.code == 0
    assert signal.getsignal(signal.SIGTERM) == before, "teardown gives the signals back"
    assert hooks.calls == [
        "detect_cluster",
        "runtime_created cpu",
        "setup_device",
        "make_precision 32-true",
        "process_group_initialized 1",
        "get_device_stats",
        "saved step-0",
        "loaded step-0",
        "saved step-1",
        "job_preempted step-1",
        "requeue",
        "teardown",
    ]
    implemented = {name for name in vars(Everything) if hasattr(getattr(Everything, name), "accelkit_impl")}
    assert implemented == set(specified_arguments()), "a hook that was added must be tested here"


def test_an_overridden_method_stays_an_implementation_without_a_marker():
    calls = []

    class Vendor(accelkit.Accelerator):
        device_type = "cpu"

        def setup_device(self, device):
            calls.append(device)

        @property
        def dangerous(self):
            raise RuntimeError("a property was read while hooks were looked for")

    assert accelkit.Runtime(accelerator=Vendor()).device.type == "cpu"
    assert len(calls) == 1


def test_a_wrapper_may_replace_the_precision():
    class Mine(accelkit.Precision):
        pass

    class Wrap:
        @hookimpl(wrapper=True)
        def make_precision(self, name):
            yield
            return Mine()

    assert isinstance(accelkit.Runtime(accelerator="cpu", hooks=[Wrap()]).precision, Mine)


class Misspelt:
    @hookimpl
    def checkpoint_savd(self, path):
        pass


class WrongArgument:
    @hookimpl
    def checkpoint_saved(self, pth):
        pass


@pytest.mark.parametrize(
    ("plugin", "text", "hint"),
    [
        (Misspelt(), "Misspelt.checkpoint_savd", "'checkpoint_saved'"),
        (WrongArgument(), "'pth'", "'path'"),
        (Everything, "Everything", "Everything()"),
    ],
)
def test_what_does_not_match_is_an_error_with_a_suggestion(plugin, text, hint, error_text):
    with pytest.raises(accelkit.HookError) as caught:
        validate_hooks(plugin, "vendor==1.0")
    assert text in str(caught.value)
    assert hint in str(caught.value)
    assert caught.value.plugin == "vendor==1.0"
    assert caught.value == error_text
    with pytest.raises(accelkit.HookError):
        accelkit.Runtime(accelerator="cpu", hooks=[plugin])


class Failing:
    """Each hook is the name of what it does wrong."""

    @hookimpl
    def checkpoint_saved(self, path):
        raise ValueError("disk")

    @hookimpl
    def get_device_stats(self, device):
        return 3


class NoGenerator:
    @hookimpl(wrapper=True)
    def runtime_created(self, state):
        return None


def test_a_hook_that_raises_is_named_and_says_what_was_done(tmp_path, error_text):
    rt = accelkit.Runtime(accelerator="cpu", hooks=[Failing()])
    rt.prepare(nn.Linear(1, 1))
    with pytest.raises(HookError, match="checkpoint_saved failed") as caught:
        rt.save_state(tmp_path)
    assert "step-0 is complete" in caught.value.hint
    assert caught.value.plugin == f"(code)=={__name__}"
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value == error_text
    rt.load_state(tmp_path)
    rt.save_state(tmp_path, is_async=True)
    with pytest.raises(HookError, match="step-1 is complete"):
        rt.wait_for_saves()


def test_statistics_that_are_none_are_named(error_text):
    rt = accelkit.Runtime(accelerator="cpu", hooks=[Failing()])
    with pytest.raises(HookError, match="get_device_stats") as caught:
        rt.device_stats()
    assert caught.value.plugin == f"(code)=={__name__}"
    assert caught.value == error_text


def test_a_wrapper_that_does_not_yield_is_named(error_text):
    with pytest.raises(HookError, match="NoGenerator") as caught:
        accelkit.Runtime(accelerator="cpu", hooks=[NoGenerator()])
    assert caught.value.plugin == f"(code)=={__name__}"
    assert caught.value == error_text


class WrongClaim:
    @hookimpl
    def detect_cluster(self, environ):
        return True


class WrongPrecision:
    @hookimpl(wrapper=True)
    def make_precision(self, name):
        yield


def test_a_claim_that_is_no_detection_is_named(error_text):
    with pytest.raises(HookError, match="detect_cluster") as caught:
        accelkit.Runtime(accelerator="cpu", hooks=[WrongClaim()])
    assert caught.value.plugin == f"(code)=={__name__}"
    assert "True" in caught.value.why
    assert caught.value == error_text


def test_a_wrapper_that_returns_no_precision_is_named_and_accelkit_is_not(error_text):
    rt = accelkit.Runtime(accelerator="cpu", hooks=[WrongPrecision()])
    with pytest.raises(HookError, match="make_precision") as caught:
        _ = rt.device
    assert caught.value.plugin == f"(code)=={__name__}"
    assert caught.value == error_text


@pytest.mark.parametrize("hooks", ["step_log", Failing(), 3])
def test_hooks_that_are_no_list_are_a_usage_error(hooks):
    with pytest.raises(accelkit.UsageError, match="hooks=") as caught:
        accelkit.Runtime(accelerator="cpu", hooks=hooks)
    assert "hooks=[" in caught.value.hint
