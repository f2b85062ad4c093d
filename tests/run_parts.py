"""Run the parts of the test suite one after the other, and report where the time went.

    python tests/run_parts.py                              every part of tests/parts.toml
    python tests/run_parts.py test-distributed test-docs   these parts

Every part runs, even if an earlier one failed. The exit code is 1 if any part failed. The separate environment of a part is built
while earlier parts run; a part whose environment does not fit on the disk is not run, and the report says so. Each part writes JUnit
files to build/tests, from which the report is created. A run that receives SIGTERM reports the parts that have ended and the part that
was running.
"""

from __future__ import annotations

import argparse
import collections
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from xml.etree import ElementTree

import suite_parts
from part_environments import GB, Environments, free_disk
from suite_parts import ROOT, Part

RESULTS = ROOT / "build" / "tests"
TOLERANCE = 1.25
"""The report lists a part that takes more than this multiple of its budget."""
SLOWEST = 20


class Test:
    """A test case of a JUnit file."""

    def __init__(self, case: ElementTree.Element) -> None:
        self.name = f"{case.get('classname')}::{case.get('name')}"
        self.seconds = float(case.get("time") or 0)
        self.has_failed = case.find("failure") is not None or case.find("error") is not None
        skipped = case.find("skipped")
        is_expected_failure = skipped is not None and "xfail" in (skipped.get("type") or "")
        self.skip_reason = "" if skipped is None or is_expected_failure else (skipped.get("message") or "no reason given").splitlines()[0]


class Outcome:
    """The outcome of a part. ``shortage`` says why it was not run, or is empty."""

    def __init__(self, part: Part, set_up_seconds: float, seconds: float, exit_code: int, shortage: str = "") -> None:
        self.part, self.set_up_seconds, self.seconds, self.exit_code, self.shortage = part, set_up_seconds, seconds, exit_code, shortage
        files = sorted(RESULTS.glob(f"{part.name}.*xml"))
        self.tests = [Test(case) for file in files for case in ElementTree.parse(file).getroot().iter("testcase")]

    def row(self) -> str:
        failed = sum(test.has_failed for test in self.tests)
        skipped = sum(bool(test.skip_reason) for test in self.tests)
        seconds = f"{self.set_up_seconds:>7.0f}  {self.seconds:>7.0f}  {self.part.seconds:>6}"
        numbers = f"{len(self.tests):>6}  {failed:>6}  {skipped:>7}"
        return f"{self.part.name:<20}  {seconds}  {numbers}  {self._result()}"

    def _result(self) -> str:
        if self.shortage:
            return f"NOT RUN: {self.shortage}"
        return f"FAILED (exit code {self.exit_code})" if self.exit_code else "passed"


def run(part: Part, environments: Environments) -> Outcome:
    """Set up a part and run it."""
    for old in RESULTS.glob(f"{part.name}.*xml"):
        old.unlink()
    start = time.monotonic()
    shortage = environments.wait_for(part)
    print(f"\n== {part.name}: {part.contents}", flush=True)
    if shortage:
        print(f"not run: {shortage}", flush=True)
        return Outcome(part, time.monotonic() - start, 0, 0, shortage)
    code = make(f"setup-{part.name}")
    set_up = time.monotonic()
    if code == 0:
        code = make(part.name)
    environments.end(part)
    environments.start()  # not beside the first part, which is to fail quickly
    return Outcome(part, set_up - start, time.monotonic() - set_up, code)


def make(target: str) -> int:
    return subprocess.run(["make", "--no-print-directory", target], cwd=ROOT, check=False).returncode


def report(outcomes: Sequence[Outcome]) -> str:
    """Return the slowest tests, the reasons of skipped tests, and the table of parts (last, because the end of a log is read first)."""
    tests = [test for outcome in outcomes for test in outcome.tests]
    lines = ["", f"The {SLOWEST} slowest tests:"]
    lines += [f"{test.seconds:>6.1f} s  {test.name}" for test in sorted(tests, key=lambda test: -test.seconds)[:SLOWEST]]
    reasons = collections.Counter(test.skip_reason for test in tests if test.skip_reason)
    lines += ["", "Skipped tests, by reason:" if reasons else "No test was skipped."]
    lines += [f"{count:>6}  {reason}" for reason, count in reasons.most_common()]
    lines += ["", f"{'part':<20}  {'set-up':>7}  {'seconds':>7}  {'budget':>6}  {'tests':>6}  {'failed':>6}  {'skipped':>7}"]
    lines += [outcome.row() for outcome in outcomes]
    total = sum(outcome.set_up_seconds + outcome.seconds for outcome in outcomes)
    lines += [f"{total / 60:.1f} minutes in total"]
    late = [outcome for outcome in outcomes if outcome.seconds > TOLERANCE * outcome.part.seconds]
    lines += [""] * bool(late) + [
        f"{outcome.part.name} took {outcome.seconds:.0f} s, {outcome.seconds / outcome.part.seconds - 1:.0%} over its budget of "
        f"{outcome.part.seconds} s: make it faster, or change tests/parts.toml and explain why in the commit"
        for outcome in late
    ]
    return "\n".join(lines)


def run_all(parts: Sequence[Part], *, remove_environments: bool = False) -> int:
    """Run the parts, print the report (also after SIGTERM), and return the exit code."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    environments = Environments(parts, RESULTS, remove=remove_environments)
    free_at_first = free_disk()
    outcomes: list[Outcome] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        for part in parts:
            outcomes.append(run(part, environments))
    finally:
        print(report(outcomes), flush=True)
        print(f"Free disk: {free_at_first / GB:.0f} GB at the start, {environments.least_free_disk / GB:.0f} GB at the least", flush=True)
        for part in parts[len(outcomes) :]:
            print(f"{part.name:<20}  not completed", flush=True)
        signal.signal(signal.SIGTERM, before)
    return int(any(outcome.exit_code for outcome in outcomes))


def main(arguments: Sequence[str]) -> int:
    parts = suite_parts.read()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", nargs="*", help=f"the parts to run (default: all): {', '.join(parts)}")
    parser.add_argument(
        "--remove-environments", action="store_true", help="remove the separate environment of a part after the last part that uses it"
    )
    options = parser.parse_args(arguments)
    names = options.part or list(parts)
    if unknown := set(names) - set(parts):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return run_all([part for part in parts.values() if part.name in names], remove_environments=options.remove_environments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
