"""Mistakes of vendors: each is found by the static checks, or is an error that says what is wrong, why and what to do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from vendor_mistakes import GROUPS, MISTAKES

import accelkit
from accelkit.discovery import catalog, probing
from accelkit.specs.static_checks.rules import RULES

IMPORTS = (
    "from accelkit import Accelerator, Availability, Capabilities, ClusterEnvironment, EngineStrategy, Precision, Strategy, hookimpl\n"
)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Install all plugins in one folder and ask about each in a child process, as doctor does. Maps names to records and verdicts."""
    folder: Path = tmp_path_factory.mktemp("site")
    for one in MISTAKES:
        module = f"vendor_{one.name}"
        (folder / f"{module}.py").write_text(IMPORTS + one.source + "\n")
        info = folder / f"{module}-1.0.dist-info"
        info.mkdir()
        entry = f"[{one.group or GROUPS[one.kind]}]\n{one.name} = {one.value or f'{module}:Plugin'}\n"
        (info / "entry_points.txt").write_text(entry)
        (info / "METADATA").write_text(f"Metadata-Version: 2.3\nName: {module}\nVersion: 1.0\n\n")
        (info / "RECORD").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))
        accelkit.refresh()
        records = {record.name: record for record in catalog.plugins() if record.distribution.startswith("vendor_")}
        verdicts = probing.ask_mistakes([record for record in records.values() if record.status == "available"])
    accelkit.refresh()
    return {name: (record, verdicts.get(record)) for name, record in records.items()}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_is_found_and_explained(answers, mistake):
    record, verdict = answers[mistake.name]
    assert record.plugin == f"vendor_{mistake.name}==1.0"
    said = [(f"{one.what}: {one.why}", one.hint) for one in (verdict.mistakes if verdict else ())]
    said += [(record.reason, record.hint)] if verdict is None else [(verdict.reason, verdict.hint)]
    assert [hint for text, hint in said if mistake.says in text and mistake.hint in f"{hint} {text}"], said


def test_there_is_one_finding_for_each_mistake_in_a_class(answers):
    for name, (_, verdict) in answers.items():
        found = [one.what for one in (verdict.mistakes if verdict else ())]
        allowed = 3 if name == "engine" else 1  # it lacks three methods
        assert len(found) <= allowed, (name, found)


def test_every_rule_finds_a_mistake(answers):
    found = {one.rule for _, verdict in answers.values() if verdict for one in verdict.mistakes}
    assert found >= {*RULES, "import"} - {"documented"}
