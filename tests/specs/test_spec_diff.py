"""``accelkit info [NAME] --spec-diff OLD``, as a vendor runs it."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import accelkit
from accelkit.specs.api_snapshot.diff import compare
from accelkit.specs.api_snapshot.snapshot import read, record

FOUNDATION = Path(__file__).with_name("foundation.json")

OLD_STRATEGY = """
print("noise")
from accelkit import Strategy

class Some(Strategy):
    "Written for the foundation."

    def num_processes(self, devices, num_nodes):
        return len(devices) * num_nodes

    def wrap_module(self, module):
        return module

    def root_device(self, accelerator, devices: "Sequence[int]", local_rank):
        return super().root_device(accelerator, devices, local_rank)
"""
NEW_STRATEGY = """
from accelkit import Strategy

class Some(Strategy):
    "The same, brought up to date."

    def num_processes(self, num_devices: "int", num_nodes: "int") -> "int":
        return num_devices * num_nodes

    def wrap_module(self, module, device):
        return module
"""
ACCELERATOR = """
from accelkit import Accelerator, Availability, ClusterDetection

class Some(Accelerator):
    device_type = "some"

    @classmethod
    def probe(cls):
        raise RuntimeError("no device here")

    def stop(self):
        return self.firmware_version

    def detect(self):
        return ClusterDetection("some", 1, "x")
"""

ADAPTED = """
from accelkit import Accelerator, Availability

class Some(Accelerator):
    device_type = "some"

    @classmethod
    def probe(cls):
        return Availability.usable()

    @property
    def autocast_device_type(self):
        return "some"

    def memory_stats(self, device) -> "dict[str, float]":
        return {}
"""

ENGINE_STRATEGY = """
from accelkit import EngineStrategy

class Some(EngineStrategy):
    def step(self, optimizer):
        pass
"""

HOOKS = """
from accelkit import hookimpl

class Log:
    @hookimpl
    def process_group_initialized(self, rank):
        pass

    def runtime_created(self, rank):
        "Not marked: it is no hook."
"""
ODD = """
from accelkit import Strategy

class Odd:
    def __repr__(self):
        raise ValueError("odd")

class Some(Strategy):
    odd = Odd()
"""


def run(*arguments, **environ):
    command = [sys.executable, "-m", "accelkit", "info", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environ)


def ask(*arguments, code, **environ):
    result = run(*arguments, "--json", **environ)
    assert result.returncode == code, result.stdout + result.stderr
    return json.loads(result.stdout)


def pairs(report):
    return [(f"{one['specification']}.{one['member']}", one["what"]) for one in report["changes"]]


@pytest.fixture
def strategy(plugin_site):
    def install(source, **metadata):
        entry_points = "[accelkit.strategies]\nsome = vendor_some:Some"
        plugin_site.install("vendor-some", source, entry_points=entry_points, **metadata)

    return install


@pytest.fixture
def older(tmp_path):
    """A record of a version that was as this one but for an edit."""

    def write(edit):
        old = copy.deepcopy(record(version="0.0.9"))
        edit({name: one["members"] for name, one in old["specifications"].items()})
        path = tmp_path / "old.json"
        path.write_text(json.dumps(old))
        return path

    return write


def test_nothing_changed_since_this_version():
    report = ask("--spec-diff", accelkit.__version__, code=0)
    assert report == {
        "schema": "accelkit.spec_diff/1",
        "old": accelkit.__version__,
        "new": accelkit.__version__,
        "subject": None,
        "findings": 0,
        "changes": [],
    }
    assert run("--spec-diff", "0.1").stdout == ""


def test_what_changed_since_the_foundation():
    report = ask("--spec-diff", FOUNDATION, code=1)
    findings = [one for one in compare(read(str(FOUNDATION)), record()) if one.concerns != "nobody"]
    assert (report["old"], report["new"], report["findings"]) == ("0.0.1", accelkit.__version__, len(findings))
    assert len(findings) >= 7
    change = next(one for one in report["changes"] if one["member"] == "wrap_module")
    assert change == {
        "specification": "Strategy",
        "member": "wrap_module",
        "aspect": "parameters",
        "old": "wrap_module(module: torch.nn.Module) -> torch.nn.Module",
        "new": "wrap_module(module: torch.nn.Module, device: torch.device) -> torch.nn.Module",
        "what": "takes device too",
        "concerns": "who uses it",
        "what_to_do": "accept device too, and pass it where you call it",
        "parameter": "device",
    }
    result = run("--spec-diff", FOUNDATION)
    assert result.returncode == 1
    lines = [line.split("  ") for line in result.stdout.splitlines()]
    assert lines[0][0] == "MEMBER"
    row = next(line for line in result.stdout.splitlines() if line.startswith("Strategy.wrap_module"))
    assert [cell.strip() for cell in row.split("  ") if cell] == [
        "Strategy.wrap_module",
        "takes device too",
        "who uses it",
        "accept device too, and pass it where you call it",
    ]
    assert result.stderr.endswith(f"; plugins must adapt to {len(findings)} of them\n")


def test_only_what_concerns_a_plugin(strategy):
    strategy(OLD_STRATEGY)
    report = ask("some", "--spec-diff", FOUNDATION, code=1)
    assert report["subject"] == {"name": "some", "kind": "strategy", "plugin": "vendor-some==1.0"}
    assert pairs(report) == [
        ("Strategy.num_processes", "now calls devices num_devices"),
        ("Strategy.num_processes", "takes num_devices as int, no longer as list[int]"),
        ("Strategy.wrap_module", "takes device too"),
    ], "root_device takes the new type already"
    result = run("some", "--spec-diff", FOUNDATION)
    assert (result.returncode, "noise" in result.stdout + result.stderr) == (1, False)
    assert "AFFECTS" not in result.stdout
    assert result.stderr == f"some (vendor-some==1.0) must adapt to 3 changes from accelkit 0.0.1 to {accelkit.__version__}\n"


def test_a_plugin_that_is_up_to_date_has_nothing_to_change(strategy):
    strategy(NEW_STRATEGY)
    assert pairs(ask("some", "--spec-diff", FOUNDATION, code=0)) == []
    assert run("some", "--spec-diff", FOUNDATION).stderr.startswith("some (vendor-some==1.0) needs no changes")


def test_a_plugin_that_does_not_fit_is_read_all_the_same(strategy):
    strategy(OLD_STRATEGY, requires=["accelkit<0.1"])
    assert ask("some", "--spec-diff", FOUNDATION, code=1)["findings"] == 3


def test_plugins_of_other_kinds_are_left_alone():
    assert ask("cpu", "--spec-diff", FOUNDATION, code=0)["changes"] == []


def test_what_a_plugin_leaves_uses_or_must_define(plugin_site, older):
    """Its device is not here, and its probe raises: only its class is read."""
    plugin_site.install("vendor-some", ACCELERATOR, accelerators={"some": "Some"})

    def edit(members):
        accelerator = members["Accelerator"]
        accelerator["default_strategy"]["default"] = "'ddp'"  # left as it is
        accelerator["device_type"]["default"] = "'cpu'"  # defined
        accelerator["stop"] = accelerator["step_end"]  # defined, and gone
        accelerator["firmware_version"] = {"form": "attribute", "type": "str", "default": "''"}  # mentioned, and gone
        accelerator["firmware_date"] = {"form": "attribute", "type": "str", "default": "''"}  # neither, and gone
        del members["ClusterDetection"]["priority"]  # made
        members["Availability"]["status"]["type"] = "str"  # made by others: it is imported, and not used
        members["EngineSettings"]["streams"] = members["EngineSettings"]["device"]  # given, gone and not read

    assert pairs(ask("some", "--spec-diff", older(edit), code=1)) == [
        ("Accelerator.default_strategy", "is 'single_device' by default, no longer 'ddp'"),
        ("Accelerator.stop", "is gone"),
        ("Accelerator.firmware_version", "is gone"),
        ("ClusterDetection.priority", "is new, without a default"),
    ]


@pytest.mark.parametrize(
    ("source", "expected"), [(NEW_STRATEGY, []), (ENGINE_STRATEGY, [("EngineStrategy.backward", "is new, without a default")])]
)
def test_what_an_engine_strategy_requires_concerns_no_other_strategy(strategy, older, source, expected):
    """The plugin that lacks the method is read all the same."""
    strategy(source)
    path = older(lambda members: members["EngineStrategy"].pop("backward"))
    assert pairs(ask("some", "--spec-diff", path, code=1 if expected else 0)) == expected


@pytest.mark.parametrize("has_adapted", [True, False])
def test_a_member_that_has_the_new_form_or_returns_the_new_type_is_left_alone(plugin_site, older, has_adapted):
    source = ADAPTED if has_adapted else ADAPTED.replace("@property", "").replace("dict[str, float]", "dict[str, int]")
    plugin_site.install("vendor-some", source, accelerators={"some": "Some"})

    def edit(members):
        members["Accelerator"]["autocast_device_type"] = {"form": "attribute", "type": "str", "default": "''"}
        members["Accelerator"]["memory_stats"]["returns"] = "dict[str, int]"

    expected = [
        ("Accelerator.memory_stats", "returns dict[str, float], no longer dict[str, int]"),
        ("Accelerator.autocast_device_type", "was an attribute, and is a property"),
    ]
    assert pairs(ask("some", "--spec-diff", older(edit), code=0 if has_adapted else 1)) == ([] if has_adapted else expected)


@pytest.mark.parametrize(
    ("annotation", "has_adapted"), [('"ClassVar[str]"', True), ("ClassVar[str]", True), ("str", False), ("ClassVar[int]", False)]
)
def test_an_attribute_that_has_the_new_type_is_left_alone(plugin_site, older, annotation, has_adapted):
    """The annotation is a string or, without ``from __future__ import annotations``, the type itself."""
    source = "from typing import ClassVar\n" + ADAPTED.replace("device_type =", f"device_type: {annotation} =")
    plugin_site.install("vendor-some", source, accelerators={"some": "Some"})
    path = older(lambda members: members["Accelerator"]["device_type"].update(type="ClassVar[str | None]"))
    expected = [] if has_adapted else [("Accelerator.device_type", "is ClassVar[str], no longer ClassVar[str | None]")]
    assert pairs(ask("some", "--spec-diff", path, code=0 if has_adapted else 1)) == expected


def test_hooks_concern_those_who_implement_them(plugin_site, older):
    plugin_site.install("vendor-log", HOOKS, entry_points="[accelkit.hooks]\nlog = vendor_log:Log")

    def edit(members):
        for name in ("process_group_initialized", "runtime_created", "checkpoint_saved"):
            members["RuntimeHooks"][name]["parameters"].append({"name": "rank", "type": "int"})

    assert pairs(ask("log", "--spec-diff", older(edit), code=1)) == [("RuntimeHooks.process_group_initialized", "no longer has rank")]


@pytest.mark.parametrize(
    ("arguments", "environ", "code", "said"),
    [
        (["--spec-diff", "0.0.3"], {}, 2, "no specifications of accelkit '0.0.3' are recorded"),
        (["nobody", "--spec-diff", "0.1.0"], {}, 2, "nobody"),
        ([], {}, 2, "accelkit info needs the NAME of a plugin"),
        (["some", "--spec-diff", "0.1.0"], {"ACCELKIT_DISABLE_PLUGINS": "vendor-some"}, 3, "ACCELKIT_DISABLE_PLUGINS"),
    ],
)
def test_errors(strategy, arguments, environ, code, said):
    strategy(NEW_STRATEGY)
    result = run(*arguments, **environ)
    assert (result.returncode, result.stdout) == (code, "")
    assert said in result.stderr


def test_a_plugin_that_cannot_be_imported_is_broken(strategy):
    strategy("1 / 0")
    report = ask("some", "--spec-diff", FOUNDATION, code=3)
    assert (report["error"], report["what"]) == ("BrokenPluginError", "the methods of the strategy 'some' cannot be read")
    assert "ZeroDivisionError" in report["why"]


def test_an_attribute_that_cannot_be_shown_is_the_plugins_fault(strategy):
    strategy(ODD)
    assert "reading the methods of some failed: ValueError: odd" in ask("some", "--spec-diff", FOUNDATION, code=3)["why"]


def test_it_imports_no_torch():
    code = (
        "import sys\nfrom accelkit.cli import main\ntry:\n    main(['info', '--spec-diff', '0.1.0'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'torch', 'accelkit_builtin', 'numpy'}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
