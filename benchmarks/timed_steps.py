"""Run programs within a time budget. Each has its own deadline, folder and log. If one fails, the next ones still run."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal

Outcome = Literal["passed", "failed", "stopped", "skipped"]
_LOG = "log.txt"
_POLL = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """A program to run.

    Attributes:
        name: The name of the step and of its folder.
        command: The command line, in which ``{folder}`` stands for the step's folder.
        seconds: The time reserved for the step. It may take longer if earlier steps have taken less than their time.
        output: The file in the step's folder that receives its standard output. If empty, the standard output goes to the log.
        skip: Why the step is not run. Empty if it is run.
    """

    name: str
    command: Sequence[str]
    seconds: float
    output: str = ""
    skip: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """The result of a step.

    Attributes:
        name: The name of the step.
        outcome: Whether it passed, failed, was stopped at its deadline, or was skipped.
        seconds: How long it ran.
        code: Its exit code. None if it was not run.
        why: Why it was skipped or stopped.
        files: The files in its folder, relative to the folder of the schedule.
    """

    name: str
    outcome: Outcome
    seconds: float = 0.0
    code: int | None = None
    why: str = ""
    files: Sequence[str] = ()


class _Running:
    """A step's program, running in its own process group."""

    def __init__(self, step: Step, folder: Path, environ: Mapping[str, str], cwd: Path) -> None:
        self.step, self.began, self.seconds = step, time.monotonic(), 0.0
        place = folder / step.name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        command = [part.replace("{folder}", str(place)) for part in step.command]
        with contextlib.ExitStack() as files:
            log: IO[bytes] = files.enter_context((place / _LOG).open("wb"))
            target = files.enter_context((place / step.output).open("wb")) if step.output else log
            self.process = subprocess.Popen(
                command, stdout=target, stderr=log, stdin=subprocess.DEVNULL, env=environ, cwd=cwd, start_new_session=True
            )

    @property
    def is_over(self) -> bool:
        if self.process.poll() is None:
            return False
        self.seconds = self.seconds or time.monotonic() - self.began
        return True

    def kill(self) -> None:
        """Kill the program and every process in its group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def result(self, folder: Path, *, was_stopped: bool) -> Result:
        code = self.process.returncode
        found = sorted(str(path.relative_to(folder)) for path in (folder / self.step.name).rglob("*") if path.is_file())
        if was_stopped:
            why = f"it had not finished after {self.seconds:.0f} s"
            return Result(self.step.name, "stopped", self.seconds, code, why, found)
        return Result(self.step.name, "failed" if code else "passed", self.seconds, code, "", found)


def run_at_once(
    steps: Sequence[Step], folder: Path, seconds: float, *, environ: Mapping[str, str], cwd: Path, grace: float
) -> list[Result]:
    """Run these steps at the same time, and return their results.

    Args:
        steps: The steps.
        folder: The folder in which each step gets its own folder.
        seconds: The time after which the steps are interrupted, as by Ctrl-C, so that they can write what they have.
        environ: The environment variables of the programs.
        cwd: The working directory of the programs.
        grace: The seconds between the interruption and the moment when the remaining programs are killed.
    """
    running = [_Running(step, folder, environ, cwd) for step in steps]
    overrun: set[str] = set()
    try:
        _wait(running, seconds)
        late = [one for one in running if not one.is_over]
        overrun = {one.step.name for one in late}
        for one in late:
            with contextlib.suppress(ProcessLookupError):
                one.process.send_signal(signal.SIGINT)
        _wait(late, grace)
    finally:
        for one in running:
            one.kill()
            _ = one.is_over
    return [one.result(folder, was_stopped=one.step.name in overrun) for one in running]


def _wait(running: Sequence[_Running], seconds: float) -> None:
    end = time.monotonic() + seconds
    while [one for one in running if not one.is_over] and time.monotonic() < end:
        time.sleep(_POLL)


class Schedule:
    """Runs groups of steps, one group after the other. The steps of a group run at the same time.

    Args:
        folder: The folder for the steps' folders, and for summary.json and summary.md, which are rewritten after each group.
        budget: Seconds for all groups. Time that a group does not use is available to the next groups.
        environ: The environment variables of the programs.
        cwd: The working directory of the programs.
        about: Facts about the machine, for the summary.
        grace: The seconds that an interrupted step has before it is killed, or half the time of its group if that is less.
    """

    def __init__(self, folder: Path, *, budget: float, environ: Mapping[str, str], cwd: Path, about: Mapping[str, str], grace: float = 10):
        self.folder, self.environ, self.cwd, self.about, self.grace = folder, environ, cwd, about, grace
        self._began = time.monotonic()
        self._end = self._began + budget
        self.results: list[Result] = []

    @property
    def is_good(self) -> bool:
        """Whether no step failed or was stopped."""
        return all(result.outcome in ("passed", "skipped") for result in self.results)

    def run(self, groups: Sequence[Sequence[Step]], later: float = 0.0) -> None:
        """Run the groups.

        Args:
            groups: The groups of steps.
            later: Seconds to reserve for steps that run after these groups.
        """
        reserved = [max(step.seconds for step in group) for group in groups]
        for number, group in enumerate(groups):
            self.results += [Result(step.name, "skipped", why=step.skip) for step in group if step.skip]
            if steps := [step for step in group if not step.skip]:
                left, own, rest = self._end - time.monotonic(), reserved[number], sum(reserved[number + 1 :]) + later
                self._run_group(steps, max(left - rest, left * own / (own + rest)))  # if there is too little time, each gets its share
            self.write()

    def _run_group(self, steps: Sequence[Step], seconds: float) -> None:
        names = ", ".join(step.name for step in steps)
        print(f"{names}: at most {max(seconds, 0):.0f} s", flush=True)
        if seconds < 1:
            self.results += [Result(step.name, "stopped", why="no time was left") for step in steps]
            return
        found = run_at_once(steps, self.folder, seconds, environ=self.environ, cwd=self.cwd, grace=min(self.grace, seconds / 2))
        self.results += found
        for result in found:
            print(f"  {result.name}: {result.outcome} in {result.seconds:.1f} s{_reason(result)}", flush=True)

    def write(self) -> None:
        """Write summary.json and summary.md."""
        summary: dict[str, Any] = {"about": dict(self.about), "seconds": round(time.monotonic() - self._began, 1), "is_good": self.is_good}
        summary["steps"] = [dataclasses.asdict(result) | {"seconds": round(result.seconds, 1)} for result in self.results]
        (self.folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", "utf-8")
        lines = [", ".join(f"{name} {value}" for name, value in self.about.items()) + f"; {summary['seconds']:.0f} s.", ""]
        lines += ["| step | outcome | seconds | exit code | files |", "|---|---|---|---|---|"]
        for result in self.results:
            code = "" if result.code is None else str(result.code)
            links = ", ".join(f"[{Path(file).name}]({file})" for file in result.files)
            lines.append(f"| {result.name} | {result.outcome}{_reason(result)} | {result.seconds:.1f} | {code} | {links} |")
        (self.folder / "summary.md").write_text("\n".join(lines) + "\n", "utf-8")


def _reason(result: Result) -> str:
    return f": {result.why}" if result.why else f" with exit code {result.code}" if result.outcome == "failed" else ""
