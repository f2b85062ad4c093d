"""What commands print with --json follows the JSON Schema that ships with them, and has no field that the schema does not name."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import jsonschema
import pytest
from command_runner import command_runner

import accelkit_conformance.commands
from accelkit import cli
from accelkit.cli import main

pytestmark = pytest.mark.usefixtures("forked_interpreters")

SDK = Path(cli.__file__).with_name("schema.json")
CONFORMANCE = Path(accelkit_conformance.commands.__file__).with_name("schema.json")
REPORT = ["conformance", "run", "cpu", "--select", "device", "--json"]


def closed(schema):
    """The schema, with no properties but those it names: what a command prints must be in it, though later versions may add."""
    if isinstance(schema, dict):
        made = {key: closed(value) for key, value in schema.items()}
        if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
            made["additionalProperties"] = False
        return made
    return [closed(one) for one in schema] if isinstance(schema, list) else schema


def check(printed, path, name):
    """``printed`` follows the schema ``name`` of a file, closed; and the file as it is shipped."""
    schema = json.loads(path.read_text("utf-8"))
    answer = json.loads(printed)
    jsonschema.validate(answer, schema)
    jsonschema.validate(answer, closed(copy.deepcopy(schema)) | {"oneOf": [{"$ref": f"#/$defs/{name}"}]})


def run(*arguments, code=0):
    result = command_runner().invoke(main, [str(one) for one in arguments])
    assert result.exit_code == code, result.output
    return result.stdout


@pytest.mark.parametrize("path", [SDK, CONFORMANCE])
def test_each_file_is_a_schema_and_every_part_is_used(path):
    schema = json.loads(path.read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    used = path.read_text("utf-8")
    for name in schema["$defs"]:
        assert f'"#/$defs/{name}"' in used, f"{name} is not used"


@pytest.mark.parametrize(
    ("arguments", "name", "code"),
    [
        (["list"], "list", 0),
        (["info", "cpu"], "info", 0),
        (["info", "32-true", "--kind", "precision"], "info", 0),
        (["info", "npu"], "info", 0),
        (["why"], "why", 0),
        (["why", "fake_xpu"], "why", 0),
        (["why", "--cluster"], "why.cluster", 0),
        (["env"], "env", 0),
        (["probe", "cpu"], "probe", 0),
        (["monitor", "cpu", "--count", "1"], "monitor", 0),
        (["doctor", "cpu"], "doctor", 0),
        (["doctor", "npu"], "doctor", 1),
        (["info", "--spec-diff", "0.1.0"], "spec_diff", 0),
        (["info", "--spec-diff", Path(__file__).parents[1] / "specs" / "foundation.json"], "spec_diff", 1),
        (["info", "fake_xpu", "--spec-diff", "0.1.0"], "spec_diff", 0),
        (["info", "no_such_plugin"], "error", 2),
    ],
)
def test_commands(arguments, name, code):
    check(run(*arguments, "--json", code=code), SDK, name)


def test_bench(tmp_path):
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(run("bench", "fake_xpu", "--quick", "--select", "launch.*", "--json", "-"), "utf-8")
    check(old.read_text("utf-8"), SDK, "bench")
    new.write_text(json.dumps(json.loads(old.read_text("utf-8")) | {"results": [], "threads": 99}), "utf-8")
    check(run("bench", "compare", old, new, "--json", code=1), SDK, "bench.compare")
    check(run("bench", "compare", new, old, "--json"), SDK, "bench.compare")


def test_a_cluster_environment_that_cannot_be_read(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("RANK", "nonsense")
    printed = run("why", "--cluster", "--json", code=2)
    check(printed, SDK, "why.cluster")
    assert json.loads(printed)["errors"]


def test_conformance_commands(tmp_path):
    report, bundle = tmp_path / "reports" / "cpu.json", tmp_path / "cpu.tar"
    run(*REPORT, report, "--bundle", bundle)
    check(run("conformance", "list", "--profile", "smoke", "--json"), CONFORMANCE, "list")
    check(run("conformance", "verify", bundle, "--json"), CONFORMANCE, "verify")
    check(run("conformance", "compare", report, bundle, "--json"), CONFORMANCE, "compare")
    check(run("conformance", "matrix", report.parent, "--json"), CONFORMANCE, "matrix")
    worse = json.loads(report.read_text("utf-8"))
    worse["results"][0] |= {"kind": "fail", "reason": "changed for this test"}
    worse["results"].pop()
    (tmp_path / "worse.json").write_text(json.dumps(worse))
    check(run("conformance", "compare", report, tmp_path / "worse.json", "--json", code=1), CONFORMANCE, "compare")
    bundle.write_bytes(b"")
    check(run("conformance", "verify", bundle, "--json", code=1), CONFORMANCE, "verify")


def test_another_type_or_a_missing_field_or_one_that_is_not_named_is_found():
    answer = json.loads(run("env", "--json"))
    for changed in (answer | {"cache": 1}, {key: value for key, value in answer.items() if key != "cache"}, answer | {"more": 1}):
        with pytest.raises(jsonschema.ValidationError):
            check(json.dumps(changed), SDK, "env")


def test_every_schema_is_on_the_page_of_the_command_line():
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
    ids = [part["properties"]["schema"]["const"] for path in (SDK, CONFORMANCE) for part in json.loads(path.read_text())["$defs"].values()
           if "schema" in part.get("properties", {})]  # fmt: skip
    for name in [*ids, "accelkit.conformance/1"]:
        assert f"| `{name}` |" in page, f"docs/cli.md does not name {name}"
    assert sorted(set(re.findall(r"^\| `(accelkit\.[\w.]+/1)` \|", page, re.MULTILINE))) == sorted([*ids, "accelkit.conformance/1"])
