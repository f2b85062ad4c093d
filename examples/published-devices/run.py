"""Run the conformance suite on PyTorch devices that others publish, each installed in its own environment, as its users would install it.

    python examples/published-devices/run.py             every device
    python examples/published-devices/run.py rgpu        one device
    python examples/published-devices/run.py --page      write the page again from the results of earlier runs

The folder of a device contains its plugin, ``device.toml`` (what is installed, and how its server is started, if it has one) and a program
in plain torch for each of its defects. The results are kept in docs/published-devices: a summary of the report, the tests that did not
pass, and what each program and examples/digits.py printed. Start this script in the environment of accelkit's repository.

If a device is on no package index, its source must be in the folder that the environment variable DEVICE_SOURCES names.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
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
_PROGRAM_SECONDS = 1800


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
    """Install a device, run the suite, the programs for its defects and examples/digits.py on it, and keep the results.

    Raises:
        SystemExit: If a program does not find the defect that it is meant to show.
    """
    device = tomllib.loads((HERE / name / "device.toml").read_text("utf-8"))
    programs = install(name, device)
    reports = BUILD / name / "reports"
    reports.mkdir(exist_ok=True)
    outputs = page.RESULTS / name
    outputs.mkdir(parents=True, exist_ok=True)
    for program in sorted((HERE / name / "defects").glob("*.py")):
        with serve(name, device) as environment:  # a server of its own, because a defect may leave the server in a bad state
            code, printed = output_of([programs / "python", "-W", "ignore", program], environment)
        if code != 1 or "Traceback" in printed:
            raise SystemExit(f"{program} ended with {code} and did not find the defect. If it is fixed, delete the program.\n{printed}")
        (outputs / f"{program.stem}.txt").write_text(printed, "utf-8")
    with serve(name, device) as environment:
        command = [programs / "accelkit", "conformance", "run", name, "--profile", device["profile"], "-n", "1", "--reruns", "1"]
        subprocess.run([*command, "--json", reports / f"{name}.json", "--html", reports / f"{name}.html"], check=False, env=environment)
        _, printed = output_of([programs / "python", REPOSITORY / "examples" / "digits.py", "--accelerator", name], environment)
        (outputs / "digits.txt").write_text(f"{conclusion(printed)}\n", "utf-8")
    report = json.loads((reports / f"{name}.json").read_text("utf-8"))
    (outputs / page.NOT_PASSED).write_text(not_passed(report), "utf-8")
    matrix = [sys.executable, "-m", "accelkit", "conformance", "matrix"]
    subprocess.run([*matrix, reports, "--summaries", page.RESULTS], check=True)


def install(name: str, device: Mapping[str, Any]) -> Path:
    """Create the environment of a device, unless it exists, and install what is missing. Return its ``bin`` folder.

    Raises:
        SystemExit: If the source of the device is needed and missing.
    """
    programs = BUILD / name / "bin"
    if not (programs / "python").exists():
        venv.create(BUILD / name, with_pip=True)
        if "folder" in device:
            copy_source(name, device)
    pip = [programs / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, *device["requirements"]], check=True)
    if compiled := [one.format(folder=source_of(name)) for one in device.get("compiled", ())]:
        subprocess.run([*pip, "--no-build-isolation", *compiled], check=True)  # against the torch that is installed, not the newest
    subprocess.run([*pip, f"{REPOSITORY}[conformance]", HERE / name], check=True)
    return programs


def source_of(name: str) -> Path:
    """Return the folder with the copy of a device's source. The source is compiled in this folder."""
    return BUILD / name / "source"


def copy_source(name: str, device: Mapping[str, Any]) -> None:
    """Copy the source of a device from DEVICE_SOURCES into its environment, because compiling it writes into its folder.

    Raises:
        SystemExit: If the source is missing.
    """
    sources = os.environ.get("DEVICE_SOURCES")
    if not sources or not (Path(sources) / device["folder"]).is_dir():
        raise SystemExit(
            f"{name} is not on the package index: set DEVICE_SOURCES to a folder with {device['folder']}, from {device['source']}"
        )
    shutil.copytree(Path(sources) / device["folder"], source_of(name), ignore=shutil.ignore_patterns("build", "*.so", "*.egg-info"))


def conclusion(printed: str) -> str:
    """Return the last line that a program printed or, if it ended with an error of accelkit, the reason in that error."""
    said = [line.strip() for line in printed.splitlines() if line.strip()]
    return next((line.removeprefix("why: ") for line in reversed(said) if line.startswith("why: ")), said[-1])


def not_passed(report: Mapping[str, Any]) -> str:
    """Return the results of the tests that did not pass as JSON, one result per line, with the programs that reproduce failures."""
    lines = []
    for result in report["results"]:
        if result["kind"] != "pass":
            kept = ("id", "kind", "reason", "error", "step", *(() if result["kind"] == "unsupported" else ("reproducer",)))
            lines.append(json.dumps({name: result[name] for name in kept if name in result}))
    return "".join(f"{line}\n" for line in lines)


@contextlib.contextmanager
def serve(name: str, device: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Context manager that runs the server of a device, if it has one, and yields the environment variables for programs on the device.

    Raises:
        SystemExit: If the server has ended, or accepted no connection within two minutes.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    own = {variable: text.format(port=port, folder=source_of(name)) for variable, text in device.get("environment", {}).items()}
    environment = os.environ | own
    if "server" not in device:
        yield environment
        return
    program, *arguments = (text.format(port=port) for text in device["server"])
    with (
        (BUILD / name / "server.log").open("wb") as log,
        subprocess.Popen([BUILD / name / "bin" / program, *arguments], env=environment, stderr=log) as server,
    ):
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


def output_of(command: list[Path | str], environment: Mapping[str, str], seconds: float = _PROGRAM_SECONDS) -> tuple[int, str]:
    """Run a program in an empty folder. Return its exit code and what it printed, without the colours.

    If the program takes longer than ``seconds``, it is ended. The exit code is then 124, and the last line of the output says so.
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        try:
            code = subprocess.run(
                command, env=environment, cwd=folder, timeout=seconds, check=False, stdout=output, stderr=subprocess.STDOUT
            ).returncode
        except subprocess.TimeoutExpired:
            code = 124
            output.write(f"\nended after {seconds:g} s, because it had not finished\n".encode())
        output.seek(0)
        printed = output.read().decode("utf-8", "replace")
    return code, re.sub(r"\x1b\[[0-9;]*m", "", printed)


if __name__ == "__main__":
    sys.exit(main())
