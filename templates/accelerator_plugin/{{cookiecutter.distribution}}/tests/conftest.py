"""What is here, and what was therefore not run: said at the end of every run."""

from __future__ import annotations

{% if cookiecutter.__has_accelerator %}
import json
import subprocess
import sys

{% endif %}
import pytest
{% if cookiecutter.__has_accelerator %}

NAME = "{{ cookiecutter.accelerator }}"


def asked() -> tuple[str, str]:
    """Whether the device computes here, asked in a process of its own: ``usable``, ``absent`` or ``broken``, and why."""
    command = [sys.executable, "-m", "accelkit", "probe", NAME, "--json"]
    answer: dict[str, str] = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    if "error" in answer:
        return "absent" if answer["error"] == "UnavailableError" else "broken", answer["why"]
    return answer["status"], answer["reason"]


@pytest.fixture(scope="session")
def device_status() -> str:
    """``usable``, ``absent`` or ``broken``."""
    return asked()[0]


def not_run() -> list[str]:
    """What these tests do not show."""
    (status, reason), lines = asked(), []
    if status != "usable":
        lines.append(f"what needs the device, which is {status}: {reason}")
        lines.append("accelkit's suite ran its profile contract, which needs none; run these tests again where the device is")
{% if cookiecutter.torch_device == "torch:cpu" %}
    lines.append("anything on hardware of {{ cookiecutter.vendor }}: torch's CPU stood in for it")
{% endif %}
    return [*lines, f"the other profiles: accelkit conformance run {NAME} --profile full --certify"]
{% else %}


def not_run() -> list[str]:
    """What these tests do not show."""
    return ["anything on an accelerator: these tests ran on the CPU"]
{% endif %}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say it at the end of every run."""
    terminalreporter.section("not run")
    for line in not_run():
        terminalreporter.write_line(line)
