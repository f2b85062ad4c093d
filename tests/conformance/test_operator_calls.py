"""``accelkit conformance coverage``: which operators a device leaves to the CPU."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jsonschema
import pytest
from command_runner import command_runner

import accelkit_conformance.commands
from accelkit.cli import main
from accelkit.selection import resolve
from accelkit_conformance import operator_calls
from accelkit_conformance.operator_calls import Operator
from accelkit_conformance.oracle import typical_models

pytestmark = pytest.mark.usefixtures("forked_workers")

SCHEMA = Path(accelkit_conformance.commands.__file__).with_name("schema.json")


def unusual(name):
    """The record of a device of ``unusual_devices``."""
    return dataclasses.replace(resolve("fake_xpu"), value=f"unusual_devices:{name}")


def test_every_model_can_be_asked_for():
    assert operator_calls.MODELS == tuple(typical_models.MODELS) == tuple(typical_models.OPTIMIZERS)


def test_an_operator_that_copies_to_the_host_and_back_runs_on_the_cpu():
    run, operators = operator_calls.measure(unusual("LeavesToTheCPU"), "transformer", 120.0)
    assert run.error == ""
    assert {one.name: one.calls for one in operators if one.is_on_cpu} == {"aten::gelu": {"transformer": 2}}
    on_device = {one.name for one in operators if not one.is_on_cpu}
    assert {"aten::gelu_backward", "aten::native_layer_norm", "aten::embedding_dense_backward"} <= on_device
    assert not {"aten::linear", "aten::view", "aten::empty.memory_format", "aten::copy_"} & on_device


def test_a_model_that_a_device_cannot_train_says_why():
    run, operators = operator_calls.measure(unusual("LacksAnOperator"), "transformer", 120.0)
    assert run.error == "NotImplementedError: aten::gelu is not implemented for this device"
    assert operators == []


def test_a_process_that_does_not_end_is_named():
    run, _ = operator_calls.measure(resolve("cpu"), "gnn", 0.01)
    assert "did not end within 0.01 s" in run.error


def test_operators_are_ranked_by_their_calls_in_all_models():
    found = operator_calls.ranked(
        [
            Operator("aten::add", False, {"cnn": 9}, 1.0),
            Operator("aten::exp", True, {"cnn": 1}, 1.0),
            Operator("aten::mm", False, {"cnn": 1}, 1.0),
            Operator("aten::mm", True, {"rnn": 2}, 2.0),
        ]
    )
    assert found == [
        Operator("aten::mm", True, {"cnn": 1, "rnn": 2}, 3.0),
        Operator("aten::exp", True, {"cnn": 1}, 1.0),
        Operator("aten::add", False, {"cnn": 9}, 1.0),
    ]


def test_the_command_prints_what_its_schema_says():
    result = command_runner().invoke(main, ["conformance", "coverage", "fake_xpu", "--model", "gnn", "--json"])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    jsonschema.validate(printed, json.loads(SCHEMA.read_text("utf-8")))
    assert [one["model"] for one in printed["models"]] == ["gnn"]
    assert not any(one["is_on_cpu"] for one in printed["operators"])  # the fake XPU's kernels read host memory
    assert "aten::index_add" in {one["name"].partition(".")[0] for one in printed["operators"]}


def test_the_command_fails_if_a_model_cannot_be_trained():
    result = command_runner().invoke(main, ["conformance", "coverage", "cpu", "--model", "gnn", "--timeout", "0.01"])
    assert result.exit_code == 1
    assert "gnn could not be trained: a new process did not end within 0.01 s" in result.stdout


@pytest.mark.timeout(300)
def test_fallbacks_are_printed_with_their_calls(monkeypatch):
    monkeypatch.setattr("accelkit_conformance.commands.coverage.find_subject", lambda name, kind: unusual("LeavesToTheCPU"))
    result = command_runner().invoke(main, ["conformance", "coverage", "fake_xpu", "--model", "transformer"])
    assert result.exit_code == 0, result.output
    assert [line.split()[:2] for line in result.stdout.splitlines()[:2]] == [["on", "the"], ["gelu", "2"]]
    assert "1 of " in result.stdout
    assert "Next: write a kernel for aten::gelu" in result.stdout
