"""Run the conformance suite on PyTorch devices that others publish, each installed in an environment of its own, as its users would.

    python examples/published-devices/run.py             every device
    python examples/published-devices/run.py rgpu        one
    python examples/published-devices/run.py --page      write the page again from what earlier runs found

The folder of a device contains its plugin, ``device.toml`` (what is installed, and how its server is started, if it has one) and a program
in plain torch for each of its defects. The results are kept in docs/published-devices: a summary of the report, and what each program and
examples/digits.py printed. Runs with the environment of accelkit's repository.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import page

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
BUILD = REPOSITORY / "build" / "published-devices"
_SERVER_SECONDS = 120.0
_DIGITS_SECONDS = 1800


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(page.names())}; by default all")
    parser.add_argument("--page", action="store_true", help="only write docs/published-devices.md")
    options = parser.parse_args()
    if unknown := set(options.names) - set(page.names()):
        parser.error(f"there is no folder for {', '.join(sorted(unknown))}; there are {', '.join(page.names())}")
    for name in () if options.page else options.names or page.names():
        run(name)
    page.PAGE.write_text(page.text(), "utf-8")
    return 0


def run(name: str) -> None:
    """Install a device, run the suite, the programs for its defects and examples/digits.py on it, and keep what they found."""
    device = tomllib.loads((HERE / name / "device.toml").read_text("utf-8"))
    programs = install(name, device)
    reports = BUILD / name / "reports"
    reports.mkdir(exist_ok=True)
    outputs = page.RESULTS / name
    outputs.mkdir(parents=True, exist_ok=True)
    with serve(device, programs) as environment:
        for program in sorted((HERE / name / "defects").glob("*.py")):
            code, printed = output_of([programs / "python", program], environment)
            if code != 1 or "Traceback" in printed:
                raise SystemExit(f"{program} ended with {code} and did not find the defect. If it is fixed, delete the program.\n{printed}")
            (outputs / f"{program.stem}.txt").write_text(printed, "utf-8")
        code, printed = output_of([programs / "python", REPOSITORY / "examples" / "digits.py", "--accelerator", name], environment)
        (outputs / "digits.txt").write_text(f"{printed.splitlines()[-1]}\n", "utf-8")
        command = [programs / "accelkit", "conformance", "run", name, "--profile", device["profile"], "-n", "1"]
        command += [f"--select={area}" for area in device.get("areas", ())]
        subprocess.run([*command, "--json", reports / f"{name}.json", "--html", reports / f"{name}.html"], check=False, env=environment)
    matrix = [sys.executable, "-m", "accelkit", "conformance", "matrix"]
    subprocess.run([*matrix, reports, "--summaries", page.RESULTS], check=True)


def install(name: str, device: Mapping[str, Any]) -> Path:
    """Create the environment of a device, unless it exists, and install what is missing. Returns its folder of programs."""
    programs = BUILD / name / "bin"
    if not (programs / "python").exists():
        venv.create(BUILD / name, with_pip=True)
    pip = [programs / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, *device["requirements"]], check=True)
    subprocess.run([*pip, f"{REPOSITORY}[conformance]", HERE / name], check=True)
    return programs


@contextlib.contextmanager
def serve(device: Mapping[str, Any], programs: Path) -> Iterator[dict[str, str]]:
    """Run the server of a device, if it has one, and yield the environment variables for programs that use the device.

    Raises:
        SystemExit: If the server has ended, or accepted no connection within two minutes.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = os.environ | {name: text.format(port=port) for name, text in device.get("environment", {}).items()}
    if "server" not in device:
        yield environment
        return
    program, *arguments = (text.format(port=port) for text in device["server"])
    with subprocess.Popen([programs / program, *arguments], env=environment) as server:
        try:
            deadline = time.monotonic() + _SERVER_SECONDS
            while not _accepts(port):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{program} accepts no connection on port {port}")
                time.sleep(0.2)
            yield environment
        finally:
            server.terminate()


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def output_of(command: list[Path | str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a program in an empty folder. Returns its exit code and what it printed, without the colours."""
    with tempfile.TemporaryDirectory() as folder:
        ended = subprocess.run(
            command,
            env=environment,
            cwd=folder,
            timeout=_DIGITS_SECONDS,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    return ended.returncode, re.sub(r"\x1b\[[0-9;]*m", "", ended.stdout)


if __name__ == "__main__":
    sys.exit(main())
