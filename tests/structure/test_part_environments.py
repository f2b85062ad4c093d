"""The separate environments of parts: when they are built and removed, and too little disk space. A real Makefile records what is run."""

import itertools

import part_environments
import pytest
import run_parts
import suite_parts
from suite_parts import Part

PARTS = suite_parts.read()

MAKEFILE = """
setup-%: ; @mkdir -p env-$*; echo set up $* beside $$(ls -d env-*) >> log
%: ; @echo ran $* beside $$(ls -d env-* 2>/dev/null) >> log
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A repository with nothing but a Makefile."""
    (tmp_path / "Makefile").write_text(MAKEFILE)
    monkeypatch.setattr(part_environments, "ROOT", tmp_path)
    monkeypatch.setattr(run_parts, "ROOT", tmp_path)
    monkeypatch.setattr(run_parts, "RESULTS", tmp_path / "results")
    return tmp_path


def large(name: str, *, environment: str = "", disk: int = 1) -> Part:
    return Part(name, "", "", 100, environment=environment or f"env-{name}", disk=disk)


def test_a_large_environment_is_removed_before_the_next_one_is_built(folder):
    parts = [large("a"), Part("plain", "", "", 100), large("b"), large("c", environment="env-b")]
    assert run_parts.run_all(parts, remove_environments=True) == 0
    log = (folder / "log").read_text().splitlines()
    assert not [line for line in log if "env-a" in line and "env-b" in line]
    assert "ran a beside env-a" in log
    assert "ran b beside env-b env-plain" in log
    assert "ran c beside env-b env-c env-plain" in log
    assert not (folder / "env-a").exists()
    assert not (folder / "env-b").exists()


def test_environments_are_kept_unless_their_removal_is_asked_for(folder):
    assert run_parts.run_all([large("a"), large("b")]) == 0
    assert (folder / "env-a").exists()
    assert (folder / "env-b").exists()


def test_a_part_whose_environment_does_not_fit_on_the_disk_is_not_run(folder, capsys):
    assert run_parts.run_all([large("a", disk=10**9), large("b")]) == 0
    log = (folder / "log").read_text()
    assert "ran b" in log
    assert "a beside" not in log.replace("b beside", "")
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("a "))
    assert "NOT RUN: needs 1000000000 GB of free disk, and " in row


@pytest.mark.timeout(60)
def test_the_next_large_environment_does_not_wait_for_one_that_did_not_fit(folder):
    parts = [large("a", disk=10**9), large("b", environment="env-a", disk=10**9), large("c")]
    assert run_parts.run_all(parts, remove_environments=True) == 0
    assert [line.split()[:2] for line in (folder / "log").read_text().splitlines() if line.startswith("ran")] == [["ran", "c"]]


def test_an_environment_that_exists_needs_no_disk_space(folder, capsys):
    (folder / "env-a").mkdir()
    (folder / "env-a" / ".ready").touch()
    assert run_parts.run_all([large("a", disk=10**9)]) == 0
    assert "NOT RUN" not in capsys.readouterr().out


def test_parts_that_share_a_large_environment_follow_each_other():
    """The next large environment is built only when the one before has been removed, which would otherwise never happen."""
    environments = [name for name, _ in itertools.groupby(part.environment for part in PARTS.values() if part.disk)]
    assert len(environments) == len(set(environments))
