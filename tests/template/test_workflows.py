"""What the baked package tells others to run: CI, release, pre-commit, and the commands in its pages."""

from __future__ import annotations

import re
import shlex
import sys
import tarfile
import tomllib

import pytest
import yaml
from baking import run
from click.testing import CliRunner

from accelkit.cli import main

COMPONENTS = {
    "accelerator": "acme",
    "precision": "acme-bf16",
    "cluster": "acme_cluster",
    "strategy": "acme_parallel",
    "hooks": "acme_hooks",
}


def new(folder, components):
    answer = CliRunner().invoke(
        main, ["new", "--no-input", "--output-dir", str(folder), "oldest_accelkit=0.1.0", f"components={components}"]
    )
    assert answer.exit_code == 0, answer.output
    return folder / "accelkit-acme"


@pytest.fixture
def package(tmp_path):
    return new(tmp_path, "accelerator")


def workflow(package, name):
    return yaml.safe_load((package / ".github" / "workflows" / name).read_text())


def commands(job):
    return "\n".join(step.get("run", "") for step in job.get("steps", ()))


def test_ci_runs_everything_on_the_oldest_and_the_newest(package):
    ci = workflow(package, "ci.yml")
    jobs = ci["jobs"]
    assert set(jobs) == {"lint", "types", "test", "main", "conformance-accelerator", "hardware"}
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
    for name in ("conformance-accelerator", "hardware"):
        upload = jobs[name]["steps"][-1]
        assert upload["uses"].startswith("actions/upload-artifact@")
        assert (upload["if"], upload["with"]["path"]) == ("always()", "reports")
    assert jobs["hardware"]["if"].startswith("vars.HARDWARE_RUNNER != '' && (")
    assert "head.repo.full_name == github.repository" in jobs["hardware"]["if"], "a fork's pull request would run code there"
    assert jobs["hardware"]["runs-on"] == "${{ vars.HARDWARE_RUNNER }}"
    assert "--profile full --certify" in commands(jobs["hardware"])


def test_each_component_has_a_job_of_its_own(tmp_path):
    jobs = workflow(new(tmp_path / "all", ",".join(COMPONENTS)), "ci.yml")["jobs"]
    for component, name in COMPONENTS.items():
        job = jobs[f"conformance-{component}"]
        assert f"accelkit conformance run {name} --kind {component} --json reports/{name}.json" in commands(job)
        assert ("|| [ $? -eq 4 ]" in commands(job)) == (component == "accelerator"), "only an accelerator may be absent"
        assert job["steps"][-1]["with"] == {"name": f"conformance-{component}", "path": "reports"}
    others = {"lint", "types", "test", "main"}
    for component in COMPONENTS:
        mine = set(workflow(new(tmp_path / component, component), "ci.yml")["jobs"]) - others
        assert mine == {f"conformance-{component}"} | ({"hardware"} if component == "accelerator" else set())


def test_the_backend_has_wheels_for_several_torches(tmp_path):
    job = workflow(new(tmp_path, "accelerator,backend"), "ci.yml")["jobs"]["wheel"]
    assert job["strategy"]["matrix"] == {"torch": ["2.13", "2.15"]}
    assert "HATCH_BUILD_HOOK_ENABLE_CUSTOM=true python -m build --wheel --no-isolation" in commands(job)
    (tested,) = [step for step in job["steps"] if step.get("env", {}).get("CXX") == "none"]
    assert tested["run"] == "accelkit probe acme && pytest", "the tests skip a device that cannot be loaded"
    (labelled,) = [step["run"] for step in job["steps"] if step.get("run", "").startswith("sed")]
    pyproject = tmp_path / "accelkit-acme" / "pyproject.toml"
    run("sh", "-c", labelled.replace("${{ matrix.torch }}", "2.13"), cwd=pyproject.parent)
    assert tomllib.loads(pyproject.read_text())["project"]["version"] == "0.1.0+torch2.13"


def test_no_two_components_have_the_same_name(tmp_path):
    project = tomllib.loads((new(tmp_path, ",".join(COMPONENTS)) / "pyproject.toml").read_text())["project"]
    groups = {group: list(entries) for group, entries in project["entry-points"].items() if group != "accelkit.conformance"}
    assert sorted(groups) == ["accelkit.accelerators", "accelkit.clusters", "accelkit.hooks", "accelkit.precisions", "accelkit.strategies"]
    assert sorted(name for names in groups.values() for name in names) == sorted(COMPONENTS.values())


def test_reports_are_not_part_of_the_sdist(package, tmp_path):
    """Reports lie where README.md and CI write them."""
    (package / "reports").mkdir()
    written = ["report.json", "report.html", "report.tar", "reports/acme.json"]
    for name in written:
        (package / name).write_text("{}")
    (package / "src" / "accelkit_acme" / "report.py").touch()
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", tmp_path / "dist", package)
    with tarfile.open(tmp_path / "dist" / "accelkit_acme-0.1.0.tar.gz") as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"pyproject.toml", "tests/test_contract.py", "src/accelkit_acme/report.py"} <= names
    assert names.isdisjoint(written)


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
