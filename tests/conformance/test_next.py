"""``accelkit conformance next``: the stages of a device, up to the first that fails."""

from __future__ import annotations

import json

import pytest
from command_runner import command_runner

from accelkit.cli import main
from accelkit_conformance import profiles, stages


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
    assert printed["ahead"][0] == "computes gradients"


def test_a_device_that_is_not_here_is_an_error(monkeypatch):
    monkeypatch.setenv("FAKE_XPU_VISIBLE_DEVICES", "")
    result = command_runner().invoke(main, ["conformance", "next", "fake_xpu"])
    assert result.exit_code == 4
    assert "no stage can be run" in str(result.exception) + result.output
