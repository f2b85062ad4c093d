"""The page "PyTorch's requirements for a device" names tests that the suite has, and each in the profile that it says."""

from __future__ import annotations

import re
from pathlib import Path

from accelkit_conformance import profiles

PAGE = Path(__file__).parents[2] / "docs" / "vendors" / "torch-requirements.md"


def test_each_requirement_names_tests_that_the_suite_has():
    tests = profiles.suite("full", "2.13.0", "accelerator").tests
    known = {test.partition("[")[0] for test in tests} | set(tests)
    lines = PAGE.read_text("utf-8").splitlines()
    headings = [number - 1 for number, line in enumerate(lines) if line.startswith("|-")]
    rows = [line.strip("| ").split(" | ") for number, line in enumerate(lines) if line.startswith("| ") and number not in headings]
    assert len(rows) > 35
    for row in rows:
        assert len(row) == 4, row
        named = re.findall(r"`([^`]+)`", row[3])
        assert named or row[3] == "none", row
        assert not set(named) - known, (set(named) - known, row[0])
