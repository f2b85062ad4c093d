"""Where a command prints an error: also to standard output, as JSON, if that is where its JSON goes."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("forked_interpreters")


@pytest.mark.parametrize(
    ("arguments", "is_json"),
    [
        (["bench", "run", "nobody", "--json", "{path}"], False),
        (["bench", "run", "nobody", "--json={path}"], False),
        (["bench", "run", "nobody", "--json", "-"], True),
        (["bench", "run", "nobody", "--json=-"], True),
        (["conformance", "run", "nobody", "--json=-"], True),
        (["conformance", "run", "nobody", "--json", "{path}"], False),
        (["conformance", "next", "nobody", "--json"], True),
        (["launch", "--accelerator", "nobody", "script.py", "--json"], False),
    ],
)
def test_an_error_is_printed_as_json_only_if_the_output_is(tmp_path, arguments, is_json):
    command = [sys.executable, "-m", "accelkit", *(word.format(path=tmp_path / "report.json") for word in arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith("accelkit: ")
    assert '"accelkit.error/1"' in result.stdout if is_json else result.stdout == ""
