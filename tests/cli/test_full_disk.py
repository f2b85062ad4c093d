"""Commands whose output cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.usefixtures("forked_interpreters"),
    pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full"),
]


@pytest.mark.parametrize(
    "arguments",
    [["list"], ["list", "--json"], ["info", "cpu"], ["why", "ipu", "--json"], ["conformance", "list"], ["--help"], ["list", "--help"]],
    ids=" ".join,
)
@pytest.mark.parametrize("is_buffered", [True, False])
def test_the_error_for_output_that_cannot_be_written_is_one_line(arguments, is_buffered):
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environ |= {} if is_buffered else {"PYTHONUNBUFFERED": "1"}
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "accelkit", *arguments]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=environ)
    assert result.returncode == 1
    lines = [line for line in result.stderr.splitlines() if "--all lists them" not in line]
    assert lines == ["accelkit: could not write the output: No space left on device"]
