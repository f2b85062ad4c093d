"""Plugins and commands that need a package which accelkit does not require."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest
from command_runner import command_runner

from accelkit.cli import main
from accelkit_builtin.optional_package import OptionalPackage

pytestmark = pytest.mark.usefixtures("forked_interpreters")

PACKAGES = {
    ("strategy", "deepspeed"): "deepspeed",
    ("precision", "fp8"): "torchao",
    ("precision", "bitsandbytes-4bit"): "bitsandbytes",
    ("precision", "bitsandbytes-8bit"): "bitsandbytes",
    ("precision", "transformer-engine"): "transformer_engine",
    ("precision", "transformer-engine-float16"): "transformer_engine",
}


def run_json(*arguments):
    command = [sys.executable, "-m", "accelkit", *arguments, "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)


@pytest.mark.parametrize("command", ["list", "doctor"])
def test_what_lacks_its_package_is_unavailable(command):
    rows = {(row["kind"], row["name"]): row for row in run_json(command)["plugins"]}
    for key, package in PACKAGES.items():
        if importlib.util.find_spec(package) is not None:
            assert rows[key]["status"] == "available"
            continue
        assert rows[key]["status"] == "unavailable"
        assert rows[key]["reason"] == f"the package {package.replace('_', '-')} is not installed"
        assert rows[key]["hint"].startswith("pip install")


def test_torch_without_a_device_type_is_described_as_it_is_listed():
    (listed,) = [row for row in run_json("list")["plugins"] if row["name"] == "torch"]
    described = run_json("info", "torch")
    assert (described["status"], described["reason"]) == (listed["status"], listed["reason"])


def test_a_package_that_is_missing_or_too_old():
    package = OptionalPackage("no_such_package.part", distribution="no-such-package", minimum="2.0", install="pip install no-such-package")
    answer = package.probe()
    assert (answer.status, answer.reason) == ("absent", "the package no-such-package is not installed")
    assert answer.hint == "pip install no-such-package"
    old = OptionalPackage("click", distribution="click", minimum="999", install="pip install click").probe()
    assert (old.status, old.hint) == ("absent", "pip install click --upgrade")
    assert "999 or newer is needed" in old.reason


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [
        ("cookiecutter", ["new", "--no-input"], "template"),
        ("prometheus_client", ["monitor", "cpu", "--count", "1", "--prometheus", "0"], "prometheus"),
        ("expecttest", ["conformance", "run", "cpu", "--profile", "smoke"], "conformance"),
    ],
)
def test_a_command_that_lacks_a_package_exits_with_4(monkeypatch, tmp_path, module, arguments, extra):
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    monkeypatch.chdir(tmp_path)
    result = command_runner().invoke(main, arguments)
    assert result.exit_code == 4, result.output
    assert f"pip install 'accelkit[{extra}]'" in result.stderr
