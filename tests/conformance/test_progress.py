"""What a person sees while a conformance run goes on, where there is no terminal."""

from __future__ import annotations

import pytest

from accelkit_conformance import terminal
from accelkit_conformance.results import Result
from accelkit_conformance.runner import Started


@pytest.mark.smoke
def test_lines_name_what_runs_and_end_well_when_nothing_does(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "_SAY_EVERY_SECONDS", -1)
    with terminal.Progress(2) as progress:
        progress(Started("device/one"))
        progress(Started("device/two"))
        progress(Result("device/two", "pass"))
        progress(Result("device/one", "fail"))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("0 of 2 tests")
    assert lines[0].endswith("device/one")
    assert lines[1].endswith("device/two")
    assert lines[2] == "1 of 2 tests; running device/one"
    assert lines[3] == "2 of 2 tests, 1 failed"
