"""Answers that cannot be used are refused, each with its own message, by accelkit new and by cookiecutter alike, and nothing is written."""

from __future__ import annotations

import ast
import json
import os
import runpy
import subprocess
import sys
import tempfile

import pytest
from baking import ROOT
from command_runner import command_runner

import accelkit
from accelkit.cli import main
from accelkit.cli import new as new_command
from accelkit.cli.new import find_template
from accelkit.discovery import device_table

TEMPLATE = ROOT / "templates" / "accelerator_plugin"
HOOK = TEMPLATE / "hooks" / "pre_gen_project.py"
BAD = [
    ("vendor", "", "it must consist of letters, digits, spaces and . , & ' ( ) + -"),
    ("vendor", 'Ac"me', "it must consist of letters, digits, spaces and . , & ' ( ) + -"),
    ("vendor", "Acme\nInc", "it must consist of letters, digits, spaces and . , & ' ( ) + -"),
    ("vendor", "A" * 41, "it must have at most 40 characters"),
    ("distribution", "acme plugin", "it must consist of letters and digits, with - _ . between them, as in accelkit-acme"),
    ("distribution", "../acme", "it must consist of letters and digits, with - _ . between them, as in accelkit-acme"),
    ("distribution", "JSON", "its package would have the name json, which is taken; use accelkit-json, for example"),
    ("distribution", "accelkit", "its package would have the name accelkit, which is taken; use accelkit-accelkit, for example"),
    ("accelerator", "Acme", "it must start with a lower-case letter and consist of lower-case letters, digits and _, as in acme"),
    ("accelerator", "7up", "it must start with a lower-case letter and consist of lower-case letters, digits and _, as in acme"),
    ("accelerator", "cuda", "the name cuda is reserved for accelkit"),
    ("accelerator", "slurm", "the name slurm is reserved for accelkit"),
    ("torch_device", "acme", "it must have the form PACKAGE:TYPE, as in torch:cpu, torch_acme:acme or torch_xla:xla"),
    ("torch_device", "torch acme:acme", "it must have the form PACKAGE:TYPE, as in torch:cpu, torch_acme:acme or torch_xla:xla"),
    ("torch_device", "torch:xla", "torch itself does not have the device type xla; specify the package that adds it, as in torch_xla:xla"),
    (
        "torch_device",
        "accelkit_acme.device:acme",
        "this is the package of the plugin, which does not exist yet; specify the package that adds",
    ),
    ("components", "", "unknown component ''; use accelerator, backend, precision, cluster, strategy, hooks, separated by commas"),
    (
        "components",
        "accelerator,hook",
        "unknown component 'hook'; use accelerator, backend, precision, cluster, strategy, hooks, separated by commas",
    ),
    ("components", "cluster,cluster", "a component is given twice"),
    ("components", "backend", "the component backend needs the component accelerator, which selects the device"),
    ("author", "me\\", "it must consist of letters, digits, spaces and . , & ' ( ) + -"),
    ("email", "acme.example", "it must be an e-mail address, as in opensource@acme.example"),
    ("licence", "GPL", "it must be one of Apache-2.0, BSD-3-Clause, MIT, LicenseRef-Proprietary (SPDX identifiers)"),
    ("oldest_accelkit", "newest", "it must be a version, as in 0.1"),
    ("oldest_accelkit", "99", "it is newer than the installed accelkit 0.1.0, so the package could not be tested"),
]


def new(folder, *arguments):
    return command_runner().invoke(main, ["new", "--output-dir", str(folder), *arguments])


def cookiecutter(folder, *arguments, python=(sys.executable,)):
    command = [*python, "-m", "cookiecutter", "--no-input", "--output-dir", folder, TEMPLATE, *arguments]
    environ = os.environ | {"COOKIECUTTER_CONFIG": str(folder / "none.yaml"), "HOME": str(folder.parent)}
    (folder / "none.yaml").write_text("{}")
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("name", "value", "message"), BAD)
def test_accelkit_new_refuses(tmp_path, name, value, message):
    answer = new(tmp_path, "--no-input", "distribution=accelkit-acme", f"{name}={value}")
    assert answer.exit_code == 2, answer.output
    assert f"{name}={value!r:.80}: {message}" in answer.stderr
    assert "invalid; nothing was written" in answer.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "value", "message"), BAD[1::4])
def test_cookiecutter_refuses_in_the_same_words(tmp_path, name, value, message):
    answer = cookiecutter(tmp_path, "distribution=accelkit-acme", f"{name}={value}")
    assert answer.returncode != 0
    assert f"{name}={value!r:.80}: {message}" in answer.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["none.yaml"]


def test_both_make_the_same_package(tmp_path):
    made = {}
    for name, bake in (
        ("new", lambda folder: new(folder, "--no-input").exit_code),
        ("cookiecutter", lambda folder: cookiecutter(folder).returncode),
    ):
        (tmp_path / name).mkdir()
        assert bake(tmp_path / name) == 0
        package = tmp_path / name / "accelkit-acme"
        made[name] = {path.relative_to(package): path.read_bytes() for path in package.rglob("*") if path.is_file()}
    assert made["new"] == made["cookiecutter"]


def test_all_that_is_wrong_is_said_at_once(tmp_path):
    answer = new(tmp_path, "--no-input", "licence=GPL", "email=me", "accelerator=cpu")
    assert "3 answers are invalid" in answer.stderr
    assert all(f"\n    {name}=" in answer.stderr or f": {name}=" in answer.stderr for name in ("licence", "email", "accelerator"))


def test_a_folder_that_is_there_is_left_alone(tmp_path):
    (tmp_path / "accelkit-acme").mkdir()
    answer = new(tmp_path, "--no-input")
    assert answer.exit_code == 2
    assert f"{tmp_path / 'accelkit-acme'} exists already; nothing was written" in answer.stderr
    assert cookiecutter(tmp_path).returncode != 0
    assert list((tmp_path / "accelkit-acme").iterdir()) == []


def test_an_output_folder_that_is_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("mine")
    answer = new(tmp_path / "file", "--no-input")
    assert answer.exit_code == 2
    assert f"the package cannot be written into {tmp_path / 'file'}\n  why: " in answer.stderr
    assert "what to do: use another --output-dir" in answer.stderr
    assert (tmp_path / "file").read_text() == "mine"


def test_no_temporary_file_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    assert new(tmp_path / "out", "--no-input").exit_code == 0
    assert list((tmp_path / "temporary").iterdir()) == []
    assert tempfile.tempdir == str(tmp_path / "temporary")


def test_an_answer_to_no_question_is_refused(tmp_path):
    answer = new(tmp_path, "--no-input", "licens=MIT")
    assert answer.exit_code == 2
    assert "'licens=MIT' is not an answer to a question\n  why: did you mean licence?" in answer.stderr
    assert "KEY must be one of vendor, distribution, accelerator, torch_device, components" in new(tmp_path, "--no-input", "MIT").stderr
    assert "is not an answer to a question" in new(tmp_path, "--no-input", "__package=json").stderr


def test_it_asks_nine_questions_and_takes_answers(tmp_path):
    answers = "Globex Inc.\n\n\ntorch_globex:globex\naccelerator, precision\nJane Doe\njane@globex.example\nMIT\n0.1\n"
    answer = command_runner().invoke(main, ["new", "--output-dir", str(tmp_path)], input=answers)
    assert answer.exit_code == 0, answer.output
    assert "[9/9]" in answer.stdout
    package = tmp_path / "accelkit-globex-inc"
    assert answer.stdout.endswith(f"{package}\n")
    assert "Next: cd " in answer.stderr
    assert 'authors = [{ name = "Jane Doe", email = "jane@globex.example" }]' in (package / "pyproject.toml").read_text()
    source = package / "src" / "accelkit_globex_inc"
    assert {path.name for path in source.glob("*.py")} == {"__init__.py", "accelerator.py", "precision.py"}
    accelerator = (source / "accelerator.py").read_text()
    assert "class GlobexIncAccelerator(Accelerator)" in accelerator
    assert 'torch_package = "torch_globex"' in accelerator
    assert (package / "LICENSE").read_text().startswith("MIT License")


def test_it_does_not_ask_for_answers_that_are_given(tmp_path):
    given = ["vendor=Globex Inc.", "torch_device=torch:cpu", "components=accelerator", "licence=MIT", "oldest_accelkit=0.1"]
    arguments = ["new", "--output-dir", str(tmp_path), *given, "author=Jane Doe"]
    answer = command_runner().invoke(main, arguments, input="\nglobex\njane@globex.example\n")
    assert answer.exit_code == 0, answer.output
    assert "[3/3] The e-mail address of the author (opensource@globex-inc.example)" in answer.stdout
    assert "licence" not in answer.stdout
    package = tmp_path / "accelkit-globex-inc"
    assert 'authors = [{ name = "Jane Doe", email = "jane@globex.example" }]' in (package / "pyproject.toml").read_text()
    assert "class GlobexAccelerator(Accelerator)" in (package / "src" / "accelkit_globex_inc" / "accelerator.py").read_text()


@pytest.mark.parametrize("licence", ["Apache-2.0", "BSD-3-Clause", "MIT", "LicenseRef-Proprietary"])
def test_the_licence_is_the_one_that_was_asked_for(tmp_path, licence):
    assert new(tmp_path, "--no-input", f"licence={licence}", "author=Jane Doe").exit_code == 0
    text = (tmp_path / "accelkit-acme" / "LICENSE").read_text()
    assert {"Apache-2.0": "Apache License", "BSD-3-Clause": "BSD 3-Clause", "MIT": "MIT License"}.get(
        licence, "All rights reserved"
    ) in text
    assert licence == "Apache-2.0" or "Jane Doe" in text


def test_the_longest_answers_make_clean_sources(tmp_path):
    longest = runpy.run_path(str(HOOK))["LONGEST"]
    name = "x" * longest["accelerator"]
    answers = {
        "vendor": "V" * longest["vendor"],
        "distribution": "d" * longest["distribution"],
        "accelerator": name,
        "torch_device": f"{'p' * (longest['torch_device'] - 21)}:{'t' * 20}",
    }
    for components in ("accelerator,precision,cluster,strategy,hooks", "cluster", "hooks"):
        for vendor in (answers, {"vendor": "Z", "distribution": "z0", "accelerator": "z"}):
            folder = tmp_path / f"{len(components)}{len(vendor['vendor'])}"
            answer = new(folder, "--no-input", f"components={components}", *(f"{key}={value}" for key, value in vendor.items()))
            assert answer.exit_code == 0, answer.output
            for command in (["check"], ["format", "--check"]):
                made = subprocess.run(
                    [sys.executable, "-m", "ruff", *command, "--no-cache", folder], capture_output=True, text=True, check=False
                )
                assert made.returncode == 0, made.stdout


def test_names_of_accelkits_own_are_all_reserved():
    own = {record.name for record in accelkit.plugins() if record.is_builtin and not record.is_fallback}
    assert set(runpy.run_path(str(HOOK))["RESERVED"]) == own | device_table.reserved_names()


def test_without_accelkit_and_without_cookiecutter(tmp_path):
    """The rules need nothing but Python; accelkit new without cookiecutter says what to install."""
    modules = {
        alias.name.partition(".")[0]
        for node in ast.walk(ast.parse(HOOK.read_text()))
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert modules <= set(sys.stdlib_module_names)
    code = "import sys; sys.modules['cookiecutter'] = None; from accelkit.cli import main; main(['new', '--no-input'])"
    answer = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.returncode == 4
    assert "accelkit new needs the package cookiecutter" in answer.stderr
    assert "what to do: pip install 'accelkit[template]'" in answer.stderr


def test_the_template_is_of_this_version():
    assert json.loads((find_template() / "cookiecutter.json").read_text())["_accelkit_version"] == accelkit.__version__


def test_a_template_that_is_not_there_is_an_installation_to_repair(tmp_path, monkeypatch):
    places = (tmp_path / "installed", tmp_path / "source")
    monkeypatch.setattr(new_command, "_PLACES", places)
    answer = new(tmp_path, "--no-input")
    assert answer.exit_code == 2
    assert f"the template for plugins was not found\n  why: it is in neither {places[0]} nor {places[1]}" in answer.stderr
    assert "what to do: pip install --force-reinstall --no-deps accelkit" in answer.stderr
