"""What the baked package tells others to run: CI, release, pre-commit, and the commands in its pages."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml
from click.testing import CliRunner

from accelkit.cli import main


@pytest.fixture
def package(tmp_path):
    answer = CliRunner().invoke(main, ["new", "--no-input", "--output-dir", str(tmp_path), "oldest_accelkit=0.1.0"])
    assert answer.exit_code == 0, answer.output
    return tmp_path / "accelkit-acme"


def workflow(package, name):
    return yaml.safe_load((package / ".github" / "workflows" / name).read_text())


def commands(job):
    return "\n".join(step.get("run", "") for step in job.get("steps", ()))


def test_ci_runs_everything_on_the_oldest_and_the_newest(package):
    ci = workflow(package, "ci.yml")
    jobs = ci["jobs"]
    assert set(jobs) == {"lint", "types", "test", "main", "conformance", "hardware"}
    assert "ruff check" in commands(jobs["lint"])
    assert "ruff format --check" in commands(jobs["lint"])
    assert "mypy" in commands(jobs["types"])
    matrix = jobs["test"]["strategy"]["matrix"]
    assert matrix == {"python": ["3.11", "3.12", "3.13"], "accelkit": ["==0.1.0.*", ">=0.1.0"]}
    assert 'pip install "accelkit[conformance]${{ matrix.accelkit }}" pytest dist/*.whl' in commands(jobs["test"])
    assert ci[True]["schedule"] == [{"cron": "23 4 * * 1"}]  # YAML 1.1 reads on: as True
    assert "git+https://github.com/accelkit/accelkit" in commands(jobs["main"])
    assert jobs["main"]["if"].startswith("github.event_name == 'schedule'")
    assert ci["permissions"] == {"contents": "read"}


def test_reports_are_kept_and_hardware_is_opt_in(package):
    jobs = workflow(package, "ci.yml")["jobs"]
    for name in ("conformance", "hardware"):
        upload = jobs[name]["steps"][-1]
        assert upload["uses"].startswith("actions/upload-artifact@")
        assert (upload["if"], upload["with"]["path"]) == ("always()", "reports")
    assert jobs["hardware"]["if"].startswith("vars.HARDWARE_RUNNER != '' && (")
    assert "head.repo.full_name == github.repository" in jobs["hardware"]["if"], "a fork's pull request would run code there"
    assert jobs["hardware"]["runs-on"] == "${{ vars.HARDWARE_RUNNER }}"
    assert "--profile full --certify" in commands(jobs["hardware"])


def test_a_release_is_tested_and_published_without_a_secret(package):
    release = workflow(package, "release.yml")
    jobs = release["jobs"]
    assert release[True] == {"push": {"tags": ["v*"]}}
    assert (jobs["build"]["needs"], jobs["publish"]["needs"]) == ("test", "build")
    assert jobs["test"]["uses"] == "./.github/workflows/ci.yml"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    (publish,) = [step for step in jobs["publish"]["steps"] if step["uses"].startswith("pypa/gh-action-pypi-publish@")]
    assert publish["with"] == {"attestations": True}
    assert "secrets." not in (package / ".github" / "workflows" / "release.yml").read_text()


def test_pre_commit_runs_what_ci_runs(package):
    (repository,) = yaml.safe_load((package / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    assert [hook["entry"] for hook in repository["hooks"]] == ["ruff check --fix", "ruff format", "mypy"]


def test_every_command_of_accelkit_that_it_names_is_there(package):
    found = set()
    for path in [package / name for name in ("README.md", "CONTRIBUTING.md", ".github/workflows/ci.yml", "tests/conftest.py")]:
        text = path.read_text().replace("{NAME}", "acme")
        for line in re.findall(r"(?<!<!-- )\baccelkit ((?:list|doctor|conformance|probe) [^|\n`#\"]*)", text):
            words = shlex.split(line)
            command, context = main, main.make_context("accelkit", ["list"], resilient_parsing=True)
            while hasattr(command, "get_command"):
                command, words = command.get_command(context, words[0]), words[1:]
                assert command is not None, f"{path.name}: accelkit {line}"
            options = {option for parameter in command.params for option in parameter.opts}
            assert {word for word in words if word.startswith("-")} <= options, f"{path.name}: accelkit {line}"
            found.add(command.name)
    assert {"run", "table", "doctor"} <= found
