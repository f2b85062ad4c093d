"""``accelkit conformance next``: the stages of a device, up to the first that fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from command_runner import command_runner

from accelkit.cli import main
from accelkit_conformance import profiles, stages
from accelkit_conformance.results import Result

pytestmark = pytest.mark.usefixtures("forked_workers")


def test_each_stage_has_tests_and_the_stages_together_have_every_area():
    areas = set()
    for stage in stages.read():
        tests = profiles.suite(stage.profile, "2.13.0", "accelerator").tests
        chosen = profiles.select(tests, stage.tests)
        assert chosen
        areas |= {test.partition("/")[0] for test in chosen}
    assert areas == {test.partition("/")[0] for test in profiles.suite("distributed", "2.13.0", "accelerator").tests}


@pytest.mark.timeout(600)
def test_the_first_stage_that_fails_is_the_next_one(monkeypatch):
    monkeypatch.setenv("FAKE_XPU_FAULT", "nan@sigmoid")
    result = command_runner().invoke(main, ["conformance", "next", "fake_xpu", "--json"])
    assert result.exit_code == 1
    printed = json.loads(result.stdout)
    assert [stage["stage"] for stage in printed["stages"] if not stage["failed"]] == ["is a plugin", "copies"]
    (failing,) = [stage for stage in printed["stages"] if stage["failed"]]
    assert failing["stage"] == "computes"
    assert "operators/forward[sigmoid,float32]" in {test["id"] for test in failing["failed"]}
    assert "driver_launch" in failing["needs"]
    assert printed["ahead"][0] == "manages its memory"


def test_unsupported_tests_do_not_count_as_passed():
    kinds = ("pass", "expected-failure", "unsupported", "unsupported", "fail")
    outcome = stages.Outcome.of(stages.read()[0], [Result(f"contract/{kind}", kind) for kind in kinds])
    assert outcome.counts == "2 of 5, 2 unsupported"
    assert stages.Outcome.of(outcome.stage, [Result("contract/x", "pass")]).counts == "1 of 1"


def test_a_device_that_is_not_here_is_an_error(monkeypatch):
    monkeypatch.setenv("FAKE_XPU_VISIBLE_DEVICES", "")
    result = command_runner().invoke(main, ["conformance", "next", "fake_xpu"])
    assert result.exit_code == 4
    assert "no stage can be run" in str(result.exception) + result.output
    printed = json.loads(command_runner().invoke(main, ["conformance", "next", "fake_xpu", "--json"]).stdout)
    assert printed["schema"] == "accelkit.error/1"


ABSENT = """from accelkit import Accelerator, Availability


class Plugin(Accelerator):
    device_type = "watched"

    @classmethod
    def probe(cls):
        return Availability("absent", {reason!r})
"""


def test_a_watched_package_is_tested_again_when_a_file_changes(plugin_site):
    package = plugin_site.folder / "watched_device"
    package.mkdir()
    (package / "__init__.py").write_text(ABSENT.format(reason="the cable is loose"))
    plugin_site.install("vendor-watched", entry_points="[accelkit.accelerators]\nwatched = watched_device:Plugin")
    command = [sys.executable, "-m", "accelkit", "conformance", "next", "watched", "--watch"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        try:
            assert "the cable is loose" in _until(process.stderr, "waiting for a change")
            (package / "__init__.py").write_text(ABSENT.format(reason="the power is off"))
            assert "the power is off" in _until(process.stderr, "waiting for a change")
        finally:
            process.send_signal(signal.SIGINT)
    assert process.returncode != 0


def test_every_folder_of_a_namespace_package_is_watched(plugin_site, monkeypatch, tmp_path):
    (plugin_site.folder / "watched_devices" / "acme").mkdir(parents=True)
    file = plugin_site.folder / "watched_devices" / "acme" / "__init__.py"
    file.write_text(ABSENT.format(reason="the cable is loose"))
    (tmp_path / "other" / "watched_devices").mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "other"), os.environ.get("PYTHONPATH", "")]))
    plugin_site.install("vendor-watched", entry_points="[accelkit.accelerators]\nwatched = watched_devices.acme:Plugin")
    command = [sys.executable, "-m", "accelkit", "conformance", "next", "watched", "--watch"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        try:
            assert "the cable is loose" in _until(process.stderr, "waiting for a change")
            file.write_text(ABSENT.format(reason="the power is off"))
            assert "the power is off" in _until(process.stderr, "waiting for a change")
        finally:
            process.send_signal(signal.SIGINT)


def test_a_plugin_in_a_single_file_cannot_be_watched(plugin_site):
    plugin_site.install("vendor-single", accelerators={"single": "Plugin"})
    result = command_runner().invoke(main, ["conformance", "next", "single", "--watch"])
    assert result.exit_code == 2
    assert "vendor_single is not a package in a folder" in str(result.exception) + result.output


def _until(stream, text):
    """Read lines up to the one with this text, and return them."""
    heard = []
    for line in stream:
        heard.append(line)
        if text in line:
            return "".join(heard)
    raise AssertionError("".join(heard))
