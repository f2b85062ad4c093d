"""Fixtures, and a summary of what was not run, which is printed at the end of every run."""

from __future__ import annotations

{% if cookiecutter.__has_accelerator %}
import json
import subprocess
import sys

{% endif %}
import pytest
{% if cookiecutter.__has_accelerator %}

NAME = "{{ cookiecutter.accelerator }}"


def probe_device() -> tuple[str, str]:
    """Return whether the device works on this machine (``usable``, ``absent`` or ``broken``), and the reason. Runs a separate process."""
    command = [sys.executable, "-m", "accelkit", "probe", NAME, "--json"]
    answer: dict[str, str] = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    if "error" in answer:
        return "absent" if answer["error"] == "UnavailableError" else "broken", answer["why"]
    return answer["status"], answer["reason"]


@pytest.fixture(scope="session")
def device_status() -> str:
    """Return the status of the device: ``usable``, ``absent`` or ``broken``."""
    return probe_device()[0]


def not_run() -> list[str]:
    """Return a line for each thing that these tests do not cover."""
    (status, reason), lines = probe_device(), []
    if status != "usable":
        lines.append(f"tests that need the device, which is {status}: {reason}")
        lines.append("accelkit's suite ran only the profile contract, which needs no device; run these tests again where the device is")
{% if cookiecutter.__torch_device == "torch:cpu" %}
    lines.append("tests on hardware of {{ cookiecutter.vendor }}, for which torch's CPU stood in")
{% endif %}
    return [*lines, f"the other profiles: accelkit conformance run {NAME} --profile full --certify"]
{% else %}


def not_run() -> list[str]:
    """Return a line for each thing that these tests do not cover."""
    return ["tests on an accelerator; these tests ran on the CPU"]
{% endif %}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the summary at the end of every run."""
    terminalreporter.section("not run")
    for line in not_run():
        terminalreporter.write_line(line)
