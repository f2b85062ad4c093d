"""Draw failed tests of all devices at random, and reproduce each of them in plain torch.

    python examples/published-devices/reproduce.py --number 30 --seed 22
    python examples/published-devices/reproduce.py --all rgpu

A failure is reproduced by a program in ``defects``, if ``[shown_by]`` in ``device.toml`` names one for the failure's test or reason.
Otherwise, it is reproduced by the program in the suite's report, which must raise an error or print different results on the device and on
the CPU. Run ``make devices`` first. The exit status is 1 if a failure is not reproduced.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import random
import re
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

import page
import run

from accelkit_conformance.results import BAD

_DEVICE = re.compile(r",?\s*device='[^']*'")


@dataclasses.dataclass(frozen=True)
class Failure:
    """A failed test of a device. ``program`` is the program that the report gives to reproduce the failure, or empty if it gives none."""

    device: str
    test: str
    reason: str
    program: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="the devices; by default all that were run")
    parser.add_argument("--number", type=int, default=30, help="the number of failures, at most; by default 30")
    parser.add_argument("--seed", type=int, default=22)
    parser.add_argument("--all", action="store_true", help="reproduce every failure")
    options = parser.parse_args()
    were_run = [name for name in page.names() if (page.RESULTS / name / page.NOT_PASSED).exists()]
    if missing := [name for name in options.names if name not in were_run]:
        parser.error(f'there is no report of {", ".join(missing)}: make devices NAMES="{" ".join(missing)}" makes it')
    found = [one for name in options.names or were_run for one in failures(name)]
    generator = random.Random(options.seed)  # noqa: S311 # not a secret
    number = len(found) if options.all else min(options.number, len(found))
    drawn = sorted(generator.sample(found, number), key=found.index)
    missed = 0
    for name in page.names():
        mine = [one for one in drawn if one.device == name]
        if not mine:
            continue
        with run.serve(name, tomllib.loads((page.HERE / name / "device.toml").read_text("utf-8"))) as environment:
            for one in mine:
                verdict = reproduce(one, environment)
                missed += verdict.startswith("NOT")
                print(f"{name} {one.test}: {verdict}", flush=True)
    print(f"{len(drawn) - missed} of {len(drawn)} failures are reproduced in plain torch")
    return int(missed > 0)


def failures(name: str) -> list[Failure]:
    """Return the failed tests of a device from the results that ``make devices`` has written."""
    results = map(json.loads, (page.RESULTS / name / page.NOT_PASSED).read_text("utf-8").splitlines())
    return [Failure(name, one["id"], one["reason"], one.get("reproducer", "")) for one in results if one["kind"] in BAD]


def reproduce(failure: Failure, environment: Mapping[str, str]) -> str:
    """Run the program for a failure, and return a line that says what it showed. The line begins with NOT if it showed nothing."""
    python = run.BUILD / failure.device / "bin" / "python"
    if path := shown_by(failure):
        code, printed = run.output_of([python, path], environment)
        is_shown = code == 1 and "Traceback" not in printed
        return f"{'' if is_shown else 'NOT SHOWN BY '}{path.name}: {_last_line(printed)}"
    if not failure.program:
        return f"NOT REPRODUCED, there is no program: {failure.reason}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.py"
        path.write_text(failure.program, "utf-8")
        code, printed = run.output_of([python, path], environment)
    cpu, _, device = printed.partition("\ndevice")
    if code != 0:
        where = "on the device" if cpu.startswith("cpu") or "\ncpu" in cpu else "NOT ON THE DEVICE"
        return f"{where} it raises {_last_line(printed)}"
    shown = [_DEVICE.sub("", " ".join(text.split())).strip() for text in (cpu.rpartition("cpu   ")[2], device)]
    return (
        "NOT REPRODUCED: the results look alike" if shown[0] == shown[1] else f"the CPU gives {shown[0][:150]}, the device {shown[1][:150]}"
    )


def shown_by(failure: Failure) -> Path | None:
    """Return the first program in ``defects`` with a glob that matches the failure, or None. The program shows why the test fails."""
    patterns = tomllib.loads((page.HERE / failure.device / "device.toml").read_text("utf-8")).get("shown_by", {})
    stem = next((stem for stem, globs in patterns.items() if any(matches(one, failure) for one in globs)), None)
    return page.HERE / failure.device / "defects" / f"{stem}.py" if stem else None


def matches(pattern: str, failure: Failure) -> bool:
    """Return whether a glob matches the test id or the reason of a failure. Brackets are literal."""
    return any(fnmatch.fnmatchcase(text, pattern.replace("[", "[[]")) for text in (failure.test, failure.reason))


def _last_line(printed: str) -> str:
    return ([line for line in printed.splitlines() if line.strip()] or ["nothing"])[-1][:300]


if __name__ == "__main__":
    sys.exit(main())
