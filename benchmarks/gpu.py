"""Run a selection of tests and benchmarks on an accelerator within a time budget, and collect the results in one folder (``make gpu``).

    python3 benchmarks/gpu.py --accelerator cuda --wheels build/gpu-wheels --output build/gpu

Runs the conformance suite, the precisions, Transformer Engine, ``accelkit bench``, the profiler and the benchmarks, the most valuable
first. Tests of correctness run in parallel; benchmarks run alone. With ``--wheels``, it creates, without a package index, a virtual
environment that uses the torch of this Python. Without ``--wheels``, it runs in the environment of this Python. summary.md in the folder is
the overview, and the folder is also packed as ``<folder>.tar.gz`` beside it.
Uses only the standard library. Exits with 1 if a step failed or was stopped, and with 2 if this machine lacks something or if ``--only``
names an unknown step.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shutil
import signal
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from offline_environment import ROOT, ask_torch, missing, python_of
from timed_steps import Schedule, Step

BENCHMARKS = Path(__file__).parent
BUDGET = 510.0
"""Seconds for all steps. This leaves enough of nine minutes to query torch, let an interrupted step run ten seconds longer, and pack."""
_SHARE = 0.6
"""The share of a benchmark's time that its rounds may take. The rest is for starting."""
_MISSING = 2


def steps(python: str, accelerator: str, *, is_quick: bool) -> list[list[Step]]:
    """Return the steps to run, in groups. The steps of a group run at the same time.

    Args:
        python: The path of a Python in whose environment accelkit is installed.
        accelerator: The name of the accelerator.
        is_quick: Whether to run every program with its shortest settings.
    """
    accelkit = [python, "-m", "accelkit"]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = str(max(1, cores - 3))  # the other steps of the group need cores, too
    profile = "contract" if is_quick else "full"
    reports = ["--json", "{folder}/" + f"{accelerator}.json", "--html", "{folder}/" + f"{accelerator}.html"]
    conformance = [*accelkit, "conformance", "run", accelerator, "--profile", profile, "-n", workers, *reports]
    precisions = [python, str(BENCHMARKS / "precisions.py"), "--accelerator", accelerator, "--output", "{folder}/precisions.md"]
    if is_quick:
        precisions += ["--precision", "bf16-mixed", "--epochs", "2"]
    bench = [*accelkit, "bench", "run", accelerator, "--json", "{folder}/" + f"{accelerator}.json"]
    test = ["tests/runtime/test_transformer_engine.py::test_layers_are_replaced_and_train"]
    te = [python, "-m", "pytest", "-p", "no:cacheprovider", "-v", *test]
    no_driver = "" if shutil.which("nvidia-smi") else "nvidia-smi is not installed"
    no_te = "" if importlib.util.find_spec("transformer_engine") else "the package transformer_engine is not installed"
    on_cpu = "" if accelerator != "cpu" else "it is about devices with memory of their own"
    return [
        [
            Step("nvidia-smi", ["nvidia-smi", "-q"], 20, "nvidia-smi.txt", no_driver),
            Step("environment", [*accelkit, "env", "--json"], 40, "environment.json"),
            Step("packages", [python, "-c", _LIST_PACKAGES], 40, "packages.txt"),
            Step("doctor", [*accelkit, "doctor", accelerator, "--json"], 40, "doctor.json"),
            Step("monitor", [*accelkit, "monitor", accelerator, "--json", "--count", "3"], 40, "monitor.jsonl"),
        ],
        [
            Step("conformance", conformance, 150),
            Step("precisions", precisions, 120),
            Step("transformer-engine", te, 90, skip=no_te),
        ],
        [Step("bench", [*bench, *(["--quick"] if is_quick else [])], 60, "page.txt")],
        [Step("profile", [python, str(BENCHMARKS / "profile_step.py"), "--accelerator", accelerator, "--output", "{folder}"], 40)],
        [_benchmark(python, accelerator, "step_overhead", 30, tables=5, is_quick=is_quick)],
        [_benchmark(python, accelerator, "step_cases", 45, tables=6, is_quick=is_quick)],
        [_benchmark(python, accelerator, "prefetch", 30, tables=2, is_quick=is_quick, skip=on_cpu)],
        [_benchmark(python, accelerator, "memory_per_step", 40, tables=2, is_quick=is_quick, skip=on_cpu)],
        [_benchmark(python, accelerator, "start_cost", 40, tables=1, is_quick=is_quick)],
        [_benchmark(python, accelerator, "checkpoint_cost", 35, tables=3, is_quick=is_quick)],
    ]


_LIST_PACKAGES = """
import importlib.metadata
print(*sorted({f"{one.name}=={one.version}" for one in importlib.metadata.distributions()}, key=str.lower), sep="\\n")
"""


def _benchmark(python: str, accelerator: str, program: str, seconds: float, *, tables: int, is_quick: bool, skip: str = "") -> Step:
    rounds = ["--rounds", "1"] if is_quick else ["--seconds", f"{seconds * _SHARE / tables:.0f}"]
    given = ["--accelerator", accelerator, "--only", program, "--output", "{folder}", *rounds]
    return Step(program, [python, str(BENCHMARKS / "everything.py"), *given], seconds, skip=skip)


def environ_of(wheels: Path | None, cache: Path) -> dict[str, str]:
    """Return the environment variables for the steps: without the user's settings for accelkit, pip and pytest, with a separate cache,
    and with Hugging Face offline."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("ACCELKIT_", "PIP_", "PYTEST_"))}
    environ |= {"ACCELKIT_CACHE_DIR": str(cache), "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    if wheels is not None and (wheels / "digits.csv.gz").exists():
        environ["DIGITS_FILE"] = str(wheels / "digits.csv.gz")
    return environ


def pack(folder: Path) -> Path:
    """Pack the folder into a ``.tar.gz`` file beside it, and return the path of that file."""
    path = folder.with_name(f"{folder.name}.tar.gz")
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, folder.name)
    return path


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--accelerator", default="cuda", metavar="NAME")
    parser.add_argument(
        "--wheels", type=Path, metavar="FOLDER", help="folder created by make gpu-wheels; without it, the current environment is used"
    )
    parser.add_argument(
        "--environment", type=Path, default=ROOT / "build" / "gpu-environment", metavar="FOLDER", help="recreated on each run with --wheels"
    )
    parser.add_argument(
        "--output", type=Path, default=ROOT / "build" / "gpu", metavar="FOLDER", help="earlier results of the selected steps are removed"
    )
    parser.add_argument("--budget", type=float, default=BUDGET, metavar="SECONDS")
    parser.add_argument("--quick", action="store_true", help="use the shortest settings for every step")
    parser.add_argument("--only", action="append", metavar="STEP", help="may be given several times")
    options = parser.parse_args(arguments)
    for name in ("wheels", "environment", "output"):
        if (path := getattr(options, name)) is not None:
            setattr(options, name, path.resolve())
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    if lacking := next(missing(options.accelerator, options.wheels), None):
        print(f"gpu: {lacking}", file=sys.stderr)
        return _MISSING
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore SIGINT, but steps are stopped with it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    python = sys.executable if options.wheels is None else python_of(options.environment)
    plan = steps(python, options.accelerator, is_quick=options.quick)
    if options.only:
        names = {step.name for group in plan for step in group}
        if unknown := set(options.only) - names:
            what = f"unknown step{'s' * (len(unknown) > 1)} {', '.join(sorted(unknown))}"
            print(f"gpu: {what}; the steps are {', '.join(sorted(names))}", file=sys.stderr)
            return _MISSING
        plan = [kept for group in plan if (kept := [step for step in group if step.name in options.only])]
    for name in ("install", *(step.name for group in plan for step in group)):
        shutil.rmtree(options.output / name, ignore_errors=True)
    options.output.mkdir(parents=True, exist_ok=True)
    found = ask_torch(sys.executable)
    about = {"accelerator": options.accelerator, "torch": found["torch"], "device": found["device"] or "no GPU"}
    about |= {"python": platform.python_version(), "machine": f"{platform.machine()}, {os.cpu_count()} cores"}
    cache = options.environment.with_name(f"{options.environment.name}-cache")
    environ = environ_of(options.wheels, cache)
    schedule = Schedule(options.output, budget=options.budget, environ=environ, cwd=ROOT, about=about)
    try:
        if options.wheels is not None:
            install = [sys.executable, str(BENCHMARKS / "offline_environment.py"), str(options.environment), str(options.wheels)]
            later = sum(max(step.seconds for step in group) for group in plan)
            later = min(later, options.budget * 3 / 4)  # without an environment there is nothing to run
            schedule.run([[Step("install", install, options.budget - later)]], later)
        if schedule.is_good:
            schedule.run(plan)
        else:
            log = options.output / "install" / "log.txt"
            said = log.read_text("utf-8", "replace") if log.exists() else schedule.results[-1].why
            print(f"gpu: the environment could not be created: {said}", file=sys.stderr)
    finally:
        schedule.write()
        archive = pack(options.output)
        print(f"{options.output / 'summary.md'}\n{archive}", flush=True)
    return 0 if schedule.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
