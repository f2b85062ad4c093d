"""cruft takes a package to a newer template, by the answers that accelkit new recorded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from baking import ROOT
from click.testing import CliRunner

from accelkit.cli import main

TEMPLATE = Path("templates", "accelerator_plugin")


@pytest.fixture
def git(tmp_path, monkeypatch):
    """git as a person with a name; accelkit's repository is a local one, with the template of this version under its tag."""
    repository = tmp_path / "repository"
    settings = {"user.name": "Jane", "user.email": "jane@acme.example", "init.defaultBranch": "main"}
    settings |= {f"url.{repository}.insteadOf": "https://github.com/accelkit/accelkit", "protocol.file.allow": "always"}
    monkeypatch.setenv("GIT_CONFIG_COUNT", str(len(settings)))
    for number, (key, value) in enumerate(settings.items()):
        monkeypatch.setenv(f"GIT_CONFIG_KEY_{number}", key)
        monkeypatch.setenv(f"GIT_CONFIG_VALUE_{number}", value)
    monkeypatch.setenv("HOME", str(tmp_path))

    def git(folder, *arguments):
        subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)

    shutil.copytree(ROOT / TEMPLATE, repository / TEMPLATE, ignore=shutil.ignore_patterns("__pycache__"))
    for command in (["init"], ["add", "-A"], ["commit", "-m", "0.1.0"], ["tag", "v0.1.0"]):
        git(repository, *command)
    return git


def test_an_update_brings_what_changed_and_keeps_what_the_vendor_wrote(tmp_path, git):
    answer = CliRunner().invoke(
        main, ["new", "--no-input", "--output-dir", str(tmp_path), "vendor=Globex", "components=accelerator,cluster"]
    )
    assert answer.exit_code == 0, answer.output
    package, repository = tmp_path / "accelkit-globex", tmp_path / "repository"
    recorded = json.loads((package / ".cruft.json").read_text())
    assert (recorded["commit"], recorded["directory"]) == ("v0.1.0", TEMPLATE.as_posix())
    (package / "src" / "accelkit_globex" / "accelerator.py").write_text("# Globex wrote this\n")
    for command in (["init"], ["add", "-A"], ["commit", "-m", "Globex's"]):
        git(package, *command)

    baked = repository / TEMPLATE / "{{cookiecutter.distribution}}"
    with (baked / "CONTRIBUTING.md").open("a") as page:
        page.write("\n## News for {{ cookiecutter.vendor }}\n")
    (baked / "src" / "{{cookiecutter.__package}}" / "strategy.py").write_text("# of a component that was not chosen\n")
    git(repository, "commit", "-am", "A newer template")

    cruft = [sys.executable, "-m", "cruft", "update", "--skip-apply-ask"]
    update = subprocess.run(cruft, cwd=package, env=os.environ, capture_output=True, text=True, check=False)
    assert update.returncode == 0, update.stdout + update.stderr
    assert (package / "CONTRIBUTING.md").read_text().endswith("\n## News for Globex\n")
    assert (package / "src" / "accelkit_globex" / "accelerator.py").read_text() == "# Globex wrote this\n"
    assert not (package / "src" / "accelkit_globex" / "strategy.py").exists()
    assert "error" not in update.stderr, "a part of the patch did not apply"
    status = subprocess.run(["git", "status", "--porcelain"], cwd=package, capture_output=True, text=True, check=True).stdout
    assert sorted(line.split() for line in status.splitlines()) == [["M", ".cruft.json"], ["M", "CONTRIBUTING.md"]]
    assert json.loads((package / ".cruft.json").read_text())["context"]["cookiecutter"]["vendor"] == "Globex"
