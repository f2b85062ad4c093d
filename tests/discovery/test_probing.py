"""Asking in child processes: a crash, a hang or a lie costs a row, not the host."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import time

import pytest

import accelkit
from accelkit.discovery import catalog, probing, verdict_cache
from accelkit.discovery.verdict import Verdict

CLASS = """
from accelkit import Accelerator, Availability

class Some(Accelerator):
    "Some device."
    device_type = "cpu"

    @classmethod
    def probe(cls):
        {probe}
"""


def install(site, probe="return Availability.usable('it is here')", before=""):
    site.install("vendor-some", before + CLASS.format(probe=probe), accelerators={"some": "Some"})
    return catalog.find("accelerator", "some")


def test_an_answer_comes_back_whole(plugin_site):
    verdict = probing.ask(install(plugin_site))
    assert (verdict.status, verdict.reason, verdict.description) == ("usable", "it is here", "Some device.")
    verdict = probing.ask(install_again(plugin_site, "return Availability.absent('no card', 'buy one')"))
    assert (verdict.status, verdict.reason, verdict.hint) == ("absent", "no card", "buy one")


def install_again(site, probe):
    (site.folder / "vendor_some.py").write_text(CLASS.format(probe=probe))
    return catalog.find("accelerator", "some")


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ("import ctypes; ctypes.string_at(0)\n", "it crashed with SIGSEGV while it was being imported"),
        ("import os; os._exit(7)\n", "it ended the process with exit code 7 while it was being imported"),
        ("import os; os.abort()\n", "it crashed with SIGABRT while it was being imported"),
        ("raise SystemExit\n", "SystemExit"),
        ("import accelkit; accelkit.select()\n", "an accelerator was selected while a plugin was being probed"),
        ("print('x' * 1_000_000, flush=True); raise OSError('after much ado')\n", "after much ado"),
    ],
)
def test_a_crash_is_a_verdict(plugin_site, before, reason, capfd):
    verdict = probing.ask(install(plugin_site, before=before))
    assert verdict.status == "broken"
    assert reason in verdict.reason
    assert verdict.hint
    assert capfd.readouterr() == ("", "")


def test_a_segfault_leaves_the_plugins_traceback(plugin_site):
    verdict = probing.ask(install(plugin_site, before="import ctypes; ctypes.string_at(0)\n"))
    assert "vendor_some.py" in verdict.traceback


def test_a_hang_ends_at_the_time_limit_and_harms_no_other(plugin_site, monkeypatch, error_text):
    monkeypatch.setenv("ACCELKIT_PROBE_TIMEOUT", "1.5")
    hanging = install(plugin_site, probe="import time; time.sleep(600)")
    plugin_site.install("vendor-fine", CLASS.format(probe="return Availability.usable()"), accelerators={"fine": "Some"})
    start = time.monotonic()
    verdicts = probing.ask_all([catalog.find("accelerator", "some"), catalog.find("accelerator", "fine")])
    assert time.monotonic() - start < 10
    assert "1.5 s" in verdicts[hanging].reason
    assert "probe" in verdicts[hanging].reason
    assert verdicts[hanging].reason == error_text
    assert "ACCELKIT_PROBE_TIMEOUT" in verdicts[hanging].hint
    assert [verdict.status for verdict in verdicts.values()] == ["broken", "usable"]


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ("import os; os.environ['OMP_NUM_THREADS'] = '64'\n", "it changed os.environ (OMP_NUM_THREADS)"),
        (
            "import threading, time; threading.Thread(target=time.sleep, args=(60,), name='spy', daemon=True).start()\n",
            "thread running (spy)",
        ),
        ("import torch; torch.add = lambda *a: 1\n", "it replaced torch.add"),
        ("import torch; torch.Tensor.cuda = lambda self: self\n", "it replaced torch.Tensor.cuda"),  # inherited by Tensor
        ("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n", "it changed signal handlers (SIGTERM)"),
        ("import os; os.chdir('/')\n", "it changed the working directory"),
    ],
)
@pytest.mark.usefixtures("forked_interpreters")
def test_a_trial_sees_what_an_import_changes(plugin_site, before, reason):
    verdict = probing.ask(install(plugin_site, before=before), is_trial=True)
    assert verdict.status == "broken"
    assert reason in verdict.reason


def test_a_trial_accepts_what_is_innocent(plugin_site):
    innocent = "import torch, torch._dynamo, torch.fx.experimental.proxy_tensor, logging\ntorch.acme = 1\n"
    verdict = probing.ask(install(plugin_site, before=innocent), is_trial=True)
    assert (verdict.status, verdict.reason) == ("usable", "it is here")
    assert (verdict.device_type, verdict.device_count is not None) == ("cpu", True)


@pytest.mark.usefixtures("forked_interpreters")
def test_a_trial_finds_a_lie(plugin_site, error_text):
    source = CLASS.format(probe="return Availability.usable()").replace('"cpu"', '"nosuchdevice"')
    plugin_site.install("vendor-liar", source, accelerators={"liar": "Some"})
    verdict = probing.ask(catalog.find("accelerator", "liar"), is_trial=True)
    assert verdict.status == "broken"
    assert "RuntimeError" in verdict.reason
    assert "nosuchdevice" in verdict.reason
    assert verdict.reason == error_text


@pytest.mark.usefixtures("forked_interpreters")
def test_a_check_that_returns_no_availability_is_a_mistake_of_the_plugin(plugin_site):
    source = CLASS.format(probe="return Availability.usable()") + "\n    def check(self):\n        return True\n"
    plugin_site.install("vendor-some", source, accelerators={"some": "Some"})
    verdict = probing.ask(catalog.find("accelerator", "some"), is_trial=True)
    assert verdict.status == "broken"
    assert verdict.reason == "check() of some returned True: it must return an Availability"


@pytest.mark.parametrize(
    ("fails", "helps"),
    [
        ("ConnectionRefusedError(111, 'Connection refused')", "server"),
        ("NotImplementedError('\"add\" not implemented for Float')", "the default check()"),
        (
            "RuntimeError('Expected one of cpu, cuda device type at start of device string: acme')",
            "does not register a device of that name",
        ),
        ("OSError('firmware')", "versions of the driver"),
    ],
    ids=["server", "dtype", "device", "else"],
)
@pytest.mark.usefixtures("forked_interpreters")
def test_the_hint_follows_from_what_went_wrong(plugin_site, fails, helps, error_text):
    source = CLASS.format(probe="return Availability.usable()") + f"\n    def device(self, index):\n        raise {fails}\n"
    plugin_site.install("vendor-some", source, accelerators={"some": "Some"})
    verdict = probing.ask(catalog.find("accelerator", "some"), is_trial=True)
    assert helps in verdict.hint
    assert verdict.hint == error_text


def test_verdicts_are_remembered_per_installation(plugin_site, monkeypatch):
    record = install(plugin_site)
    assert verdict_cache.recalled([record]).get(record) is None
    verdict = probing.ask(record)
    verdict_cache.remember(record, verdict)
    recalled = verdict_cache.recalled([record]).get(record)
    assert recalled.cached_at > 0
    assert dataclasses.replace(recalled, cached_at=0.0) == verdict
    with monkeypatch.context() as patch:
        patch.setattr("sys.executable", "python3")
        assert verdict_cache.recalled([record]).get(record) is not None, "bin/python and bin/python3 are one environment"
        patch.setenv("ACME_VISIBLE_DEVICES", "-1")
        assert verdict_cache.recalled([record]).get(record) is None, "other devices are visible"
    (plugin_site.folder / "vendor_some-1.0.dist-info" / "RECORD").unlink()
    accelkit.refresh()
    assert verdict_cache.recalled([catalog.find("accelerator", "some")]) == {}


@pytest.mark.usefixtures("forked_interpreters")
def test_a_plugin_that_was_only_probed_is_still_tried(plugin_site):
    source = CLASS.format(probe="return Availability.usable()").replace('"cpu"', '"nosuchdevice"')
    plugin_site.install("vendor-liar", source, accelerators={"liar": "Some"})
    record = catalog.find("accelerator", "liar")
    verdict_cache.remember(record, probing.ask(record), is_of_probe=True)
    assert verdict_cache.recalled([record]).get(record).status == "usable"
    assert verdict_cache.tried([record])[record].status == "broken"
    assert verdict_cache.recalled([record]).get(record).status == "broken"


def test_a_verdict_on_a_built_in_plugin_expires_if_a_package_is_installed(tmp_path, monkeypatch):
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.syspath_prepend(str(packages))
    record = catalog.find("precision", "fp8")
    verdict_cache.remember(record, Verdict("absent", "the package torchao is not installed"))
    assert verdict_cache.recalled([record])[record].status == "absent"
    os.utime(packages, ns=(1, 1))
    assert verdict_cache.recalled([record]) == {}


STRATEGIES = """
from accelkit import Availability, Strategy

class Lacking(Strategy):
    "A strategy that needs a package."

    @classmethod
    def probe(cls):
        return Availability.absent("the package acme is not installed", "pip install acme")
"""


def test_a_strategy_says_what_it_lacks(plugin_site):
    plugin_site.install("vendor-lacking", STRATEGIES, entry_points="[accelkit.strategies]\nlacking = vendor_lacking:Lacking")
    verdict = probing.ask(catalog.find("strategy", "lacking"), is_trial=True)
    assert (verdict.status, verdict.reason, verdict.hint) == ("absent", "the package acme is not installed", "pip install acme")
    with pytest.raises(accelkit.UnavailableError, match="the package acme is not installed"):
        accelkit.Runtime("cpu", strategy="lacking")


@pytest.mark.parametrize(("seconds", "is_recalled"), [(60, True), (2 * 3600, False), (-60, False)])
def test_verdicts_on_built_in_plugins_expire(monkeypatch, tmp_path, seconds, is_recalled):
    """Drivers come and go without a new version of accelkit. A clock that was set back does not keep a verdict."""
    monkeypatch.setenv("ACCELKIT_CACHE_DIR", str(tmp_path / "cache"))
    record = catalog.find("accelerator", "cpu")
    verdict_cache.remember(record, Verdict("usable"))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + seconds)
    assert (verdict_cache.recalled([record]).get(record) is not None) == is_recalled


def test_a_cache_that_cannot_be_written_is_as_good_as_none(plugin_site, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ACCELKIT_CACHE_DIR", str(tmp_path / "file"))
    record = install(plugin_site)
    verdict_cache.remember(record, Verdict("usable"))
    assert verdict_cache.recalled([record]).get(record) is None


@pytest.mark.parametrize("value", ["soon", "0", "-1", "inf", "nan"])
def test_a_time_limit_that_is_none_is_an_error(plugin_site, monkeypatch, value, error_text):
    monkeypatch.setenv("ACCELKIT_PROBE_TIMEOUT", value)
    with pytest.raises(accelkit.UsageError) as caught:
        probing.ask(install(plugin_site))
    assert "ACCELKIT_PROBE_TIMEOUT" in caught.value.what
    assert caught.value == error_text


SLOW_TORCH = """
import importlib, sys, time
time.sleep(4)
sys.path.remove({folder!r})
del sys.modules["torch"]
importlib.import_module("torch")
"""


def put_before_torch(folder, monkeypatch, source):
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(source.format(folder=str(folder)))
    monkeypatch.syspath_prepend(folder)


def test_the_import_of_torch_does_not_count_towards_the_plugin(plugin_site, monkeypatch, tmp_path):
    monkeypatch.setenv("ACCELKIT_LOAD_TIMEOUT", "3")
    record = install(plugin_site)
    put_before_torch(tmp_path, monkeypatch, SLOW_TORCH)
    verdict = probing.ask(record, is_trial=True)
    assert verdict.seconds > 4, verdict
    assert verdict.status == "usable", verdict


def test_an_import_of_torch_that_hangs_is_not_blamed_on_the_plugin(plugin_site, monkeypatch, tmp_path, error_text):
    monkeypatch.setenv("ACCELKIT_START_TIMEOUT", "5")
    record = install(plugin_site)
    put_before_torch(tmp_path, monkeypatch, "import time; time.sleep(600)")
    verdict = probing.ask(record, is_trial=True)
    assert "5 s" in verdict.reason
    assert "vendor-some" not in verdict.hint
    assert f"{verdict.reason}: {verdict.hint}" == error_text


BUILDS = """
    def build(self):
        {build}

    def load(self):
        {load}
"""


def with_build(site, build, load="pass"):
    source = CLASS.format(probe="return Availability.usable()") + BUILDS.format(build=build, load=load)
    site.install("vendor-some", source, accelerators={"some": "Some"})
    return catalog.find("accelerator", "some")


@pytest.mark.usefixtures("forked_interpreters")
def test_what_a_plugin_builds_has_a_clock_of_its_own_and_is_announced(plugin_site, monkeypatch, capfd, tmp_path, error_text):
    monkeypatch.setenv("ACCELKIT_LOAD_TIMEOUT", "4")
    built = tmp_path / "built"
    record = with_build(plugin_site, f"import time; time.sleep(5); open({str(built)!r}, 'w').close()", f"assert open({str(built)!r})")
    verdict = probing.ask(record, is_trial=True)
    assert verdict.status == "usable", verdict
    said = capfd.readouterr().err
    assert "vendor-some==1.0" in said
    assert said == error_text


@pytest.mark.usefixtures("forked_interpreters")
def test_a_build_that_hangs_or_fails_is_named(plugin_site, monkeypatch, error_text):
    monkeypatch.setenv("ACCELKIT_BUILD_TIMEOUT", "2")
    verdict = probing.ask(with_build(plugin_site, "import time; time.sleep(600)"), is_trial=True)
    assert all(part in verdict.reason for part in ("2 s", "build()"))
    assert verdict.reason == error_text
    assert "ACCELKIT_BUILD_TIMEOUT" in verdict.hint
    (plugin_site.folder / "vendor_some.py").write_text(
        CLASS.format(probe="return Availability.usable()") + BUILDS.format(build="raise OSError('no space left')", load="pass")
    )
    verdict = probing.ask(catalog.find("accelerator", "some"), is_trial=True)
    assert verdict.status == "broken"
    assert "some" in verdict.reason
    assert "no space left" in verdict.reason
    assert verdict.reason == error_text


@pytest.mark.usefixtures("forked_interpreters")
def test_after_the_build_the_trials_own_limit_counts_again(plugin_site, monkeypatch, error_text):
    monkeypatch.setenv("ACCELKIT_LOAD_TIMEOUT", "4")
    verdict = probing.ask(with_build(plugin_site, "import time; time.sleep(5)", "import time; time.sleep(600)"), is_trial=True)
    assert all(part in verdict.reason for part in ("4 s", "load()"))
    assert verdict.reason == error_text


CLEANS_UP = """import time
        try:
            time.sleep(600)
        finally:
            __import__('os').unlink({lock!r})"""


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="this system has no such signals")
def test_a_plugin_that_is_too_slow_can_clean_up(plugin_site, monkeypatch, tmp_path):
    monkeypatch.setenv("ACCELKIT_LOAD_TIMEOUT", "2")
    lock = tmp_path / "lock"
    lock.touch()
    verdict = probing.ask(with_build(plugin_site, "pass", CLEANS_UP.format(lock=str(lock))), is_trial=True)
    assert "vendor_some.py" in verdict.reason
    assert not lock.exists(), "the process was killed before it could release its lock"


def test_the_lock_of_a_compilation_that_was_killed_is_named(plugin_site, monkeypatch, tmp_path, error_text):
    monkeypatch.setenv("ACCELKIT_LOAD_TIMEOUT", "2")
    (tmp_path / "lock").touch()
    wait = f"from torch.utils.file_baton import FileBaton; FileBaton({str(tmp_path / 'lock')!r}).wait()"
    verdict = probing.ask(with_build(plugin_site, "pass", wait), is_trial=True)
    assert "file_baton.py" in verdict.reason
    assert "TORCH_EXTENSIONS_DIR" in verdict.hint
    assert f"{re.sub(r'(?<=py:)[0-9]+', 'N', verdict.reason)}: {verdict.hint}" == error_text


def test_on_a_terminal_a_build_spins():
    import os
    import pty
    import subprocess
    import sys

    ours, theirs = pty.openpty()
    code = (
        "import time; from accelkit.discovery.build_progress import BuildNotice\n"
        "with BuildNotice() as notice:\n"
        "    notice.update(['vendor-some==1.0']); time.sleep(0.5); notice.update([])"
    )
    subprocess.run([sys.executable, "-c", code], stderr=theirs, check=True, env=os.environ | {"TERM": "xterm", "COLUMNS": "120"})
    os.close(theirs)
    said = os.read(ours, 65536).decode()
    os.close(ours)
    assert "vendor-some==1.0: running the one-time build" in said
    assert any(frame in said for frame in "⠋⠙⠹⠸")
