"""The record of this version: it is the code, and it is final once the version is released."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version

import accelkit
from accelkit.specs.api_snapshot import snapshot

ROOT = Path(__file__).parents[2]
OWN = snapshot.FOLDER / f"{Version(accelkit.__version__).base_version}.json"


def test_the_record_of_this_version_is_the_code():
    recorded = json.loads(OWN.read_text("utf-8"))
    assert recorded == snapshot.record(released=recorded["released"]), (
        f"a specification changed: write it to CHANGELOG.md, then run python -m {snapshot.__name__}"
    )


def test_released_versions_are_those_of_the_changelog():
    headings = re.findall(r"^## (\d\S*) \((.*)\)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    said = {version: "" if date == "unreleased" else date for version, date in headings}
    recorded = {path.stem: json.loads(path.read_text("utf-8"))["released"] for path in snapshot.FOLDER.glob("*.json")}
    assert recorded == said
    assert list(said.values()).count("") <= 1


def test_it_has_what_plugins_build_on_and_nothing_private():
    found = snapshot.record()["specifications"]
    assert {name: one["role"] for name, one in found.items() if one["role"] != "hooks"} == {
        "Accelerator": "accelerator",
        "Precision": "precision",
        "ClusterEnvironment": "cluster",
        "Strategy": "strategy",
        "EngineStrategy": "strategy",
        "Availability": "made",
        "Capabilities": "made",
        "ClusterDetection": "made",
        "EngineSettings": "given",
        "RuntimeState": "given",
    }
    accelerator = found["Accelerator"]["members"]
    assert accelerator["device_type"] == {"form": "attribute", "type": "ClassVar[str]", "default": "''"}
    assert accelerator["probe"] == {"form": "classmethod", "parameters": [], "returns": "Availability"}
    assert accelerator["setup_device"] == {
        "form": "method",
        "parameters": [{"name": "device", "type": "torch.device"}],
        "returns": "None",
        "is_hook": True,
    }
    assert found["ClusterEnvironment"]["members"]["number"]["parameters"][:2] == [
        {"name": "names", "kind": "var_positional", "type": "str"},
        {"name": "least", "kind": "keyword_only", "type": "int", "default": "0"},
    ], "what a specification inherits is recorded too"
    assert found["PrecisionHooks"]["members"]["make_precision"]["is_first_result"]
    assert found["EngineSettings"]["members"]["num_processes"] == {"form": "field", "type": "int"}
    assert not any(name.startswith("_") for one in found.values() for name in one["members"] if name != "__init__")


def test_the_default_of_a_field_is_what_its_factory_makes():
    @dataclasses.dataclass
    class Options:
        device_ids: list[int]
        rank: int = 0
        names: list[str] = dataclasses.field(default_factory=lambda: ["a"])

    assert snapshot.record({Options: "made"})["specifications"]["Options"]["members"] == {
        "device_ids": {"form": "field", "type": "list[int]"},
        "rank": {"form": "field", "type": "int", "default": "0"},
        "names": {"form": "field", "type": "list[str]", "default": "['a']"},
    }


def test_a_released_record_is_never_written_again(tmp_path, error_text):
    path = tmp_path / "0.1.0.json"
    snapshot.write(path)
    snapshot.write(path, released="2027-01-31")
    final = path.read_text()
    snapshot.write(path)
    assert path.read_text() == final
    assert json.loads(final)["released"] == "2027-01-31"
    path.write_text(final.replace("setup_device", "set_up_device"))
    with pytest.raises(accelkit.UsageError) as raised:
        snapshot.write(path)
    assert "0.1.0" in raised.value.what
    assert "2027" in raised.value.what
    assert "01" in raised.value.what
    assert "31" in raised.value.what
    assert raised.value == error_text
    assert "raise the version first" in raised.value.hint


@pytest.mark.parametrize("version", ["0.1.0", "0.1", "0.1.0rc1", "0.1.0.dev3"])
def test_a_version_is_found_however_it_is_spelled(version):
    assert snapshot.read(version) == json.loads(OWN.read_text("utf-8"))


@pytest.mark.parametrize(
    ("old", "why"),
    [
        ("9.9", "accelkit has no record of this version"),
        ("latest", "accelkit has no record of this version"),
        ("missing.json", "FileNotFoundError"),
        ("other.json", "its schema is 'accelkit.list/1', not 'accelkit.spec/1'"),
        ("list.json", "TypeError"),
        ("broken.json", "JSONDecodeError"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path, monkeypatch, old, why):
    monkeypatch.chdir(tmp_path)
    for name, text in {"other.json": '{"schema": "accelkit.list/1"}', "list.json": "[]", "broken.json": "{"}.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(accelkit.UsageError) as raised:
        snapshot.read(old)
    assert why in raised.value.why
    assert f"give {accelkit.__version__}" in raised.value.hint


def test_the_module_writes_it_and_imports_no_torch(tmp_path):
    path = tmp_path / "new.json"
    code = f"import runpy, sys; runpy.run_module({snapshot.__name__!r}, run_name='__main__'); sys.exit('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", code, path], check=True, capture_output=True, text=True)
    assert (ran.stdout, snapshot.read(str(path))) == ("new.json\n", snapshot.record())
