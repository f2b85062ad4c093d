"""``accelkit conformance next NAME``: show what to build next for a new device."""

from __future__ import annotations

import importlib.util
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

import click

from accelkit import AccelkitError, PluginRecord, UsageError
from accelkit.cli.import_option import IMPORT
from accelkit.cli.json_option import json_option
from accelkit.cli.output import print_json, say
from accelkit.cli.status_rows import complete_names
from accelkit.errors import printable
from accelkit_conformance import stages, terminal
from accelkit_conformance.commands.run import lost, require_packages, unusable
from accelkit_conformance.run import Options, Run, availability_of, find_subject
from accelkit_conformance.stages import Outcome, Stage

_SHOWN = 5
_POLL_SECONDS = 0.5
_DOCUMENTATION = "https://github.com/accelkit/accelkit/blob/main/docs/"


@click.command("next")
@click.argument("name", shell_complete=complete_names)
@IMPORT
@click.option("-n", "parallel", type=click.IntRange(1), metavar="N", help="As in accelkit conformance run.")
@click.option("--watch", "is_watching", is_flag=True, help="Run again each time a file of the plugin's package changes, until Ctrl-C.")
@json_option()
def command(name: str, parallel: int | None, is_watching: bool, is_json: bool) -> None:
    """Show what to build next for the accelerator NAME.

    The tests are grouped into stages, which are run in order: 'is a plugin', 'copies', 'computes', 'manages its memory', and so on. The
    first stage with a failed test is the next one to work on. The command prints the failed tests of this stage and what they need:
    functions of the driver, and registrations with torch.

    The exit code is 0 if every stage has passed, 1 if a stage has failed, 3 if the plugin is broken, and 4 if its device is not present
    or is lost.
    """
    record = find_subject(name, "accelerator")
    require_packages()
    if not is_watching:
        raise click.exceptions.Exit(_run_stages(record, parallel, is_json=is_json))
    folders = _folders_of(record)
    while True:
        before = _versions(folders)
        try:
            _run_stages(record, parallel, is_json=is_json)
        except AccelkitError as error:  # the next change to the package may repair it
            say(f"accelkit: {error}")
        say(f"waiting for a change in {' and '.join(map(str, folders))}; press Ctrl-C to stop")
        while _versions(folders) == before:
            time.sleep(_POLL_SECONDS)


def _run_stages(record: PluginRecord, parallel: int | None, *, is_json: bool) -> int:
    """Run the stages up to the first stage that fails, print the outcome, and return the exit code.

    Raises:
        BrokenPluginError: If the plugin is broken.
        UnavailableError: If the device is not present, or is lost during the run.
    """
    outcomes: list[Outcome] = []
    ahead = stages.read()
    availability = availability_of(record)
    if availability["status"] != "usable":
        raise unusable(record, availability, "no stage can be run")
    while ahead and not (outcomes and outcomes[-1].failed):
        outcomes.append(_run(record, availability, ahead.pop(0), parallel, is_quiet=is_json))
    if is_json:
        _print_json(record, availability, outcomes, ahead)
    else:
        for outcome in outcomes:
            mark = click.style("failed", fg="red") if outcome.failed else click.style("passed", fg="green")
            click.echo(f"{mark}  {outcome.stage.name}: {outcome.counts}")
        for stage in ahead:
            click.echo(f"        {stage.name}")
        click.echo()
        click.echo("\n".join(_advice(record, outcomes)))
    return int(bool(outcomes[-1].failed))


def _folders_of(record: PluginRecord) -> list[Path]:
    """Return the folders of the top-level package that contains the plugin: one folder, or several for a namespace package.

    Raises:
        UsageError: If no package contains the plugin, for example because the plugin is a single-file module.
    """
    name = record.value.partition(":")[0].partition(".")[0]
    spec = importlib.util.find_spec(name) if name else None
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(
            what=f"the package of {record.name!r} cannot be watched",
            plugin=record.plugin,
            why=f"{name or 'it'} is not a package in a folder",
            hint="run accelkit conformance next without --watch after each change",
        )
    return [Path(folder) for folder in spec.submodule_search_locations]


def _versions(folders: Sequence[Path]) -> dict[Path, int]:
    """Return the path of each file in the folders of a package, with the time in nanoseconds at which the file was last changed.

    Python's cache files are left out.
    """
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path: path.stat().st_mtime_ns for path in files}


def _run(record: PluginRecord, availability: dict[str, str], stage: Stage, parallel: int | None, *, is_quiet: bool) -> Outcome:
    """Run the tests of a stage, without reruns, and return the outcome.

    Raises:
        UnavailableError: If the device is lost during the run.
    """
    run = Run(record, availability, Options(stage.profile, stage.tests, parallel, reruns=0))
    if not is_quiet:
        say(f"{stage.name}: {len(run.tests)} tests")
    with terminal.Progress(len(run.tests)) as progress:
        run.execute(progress)
    if run.loss is not None:
        raise lost(run.loss, record)
    return Outcome.of(stage, [run.journal.results[test] for test in run.tests if test in run.journal.results])


def _advice(record: PluginRecord, outcomes: Sequence[Outcome]) -> list[str]:
    if not outcomes[-1].failed:
        again = f"accelkit conformance run {record.name} --profile full --certify"
        return [f"Next: every stage has passed; {again} runs all tests"]
    stage, failed = outcomes[-1].stage, outcomes[-1].failed
    lines = [f"Next: {stage.name}. {len(failed)} test{'s fail' if len(failed) > 1 else ' fails'}:"]
    lines += [f"  {result.id}: {printable(result.reason)[:300]}" for result in failed[:_SHOWN]]
    lines += [f"  and {len(failed) - _SHOWN} more"] * (len(failed) > _SHOWN)
    selected = " ".join(f"--select {shlex.quote(pattern)}" for pattern in stage.tests)
    lines += [
        f"They need: {stage.needs}",
        f"Read: {_DOCUMENTATION}{stage.page}",
        f"Run only these: accelkit conformance run {record.name} --profile {stage.profile} {selected}",
    ]
    return lines


def _print_json(record: PluginRecord, availability: dict[str, str], outcomes: Sequence[Outcome], ahead: Sequence[Stage]) -> None:
    done = [
        {
            "stage": outcome.stage.name,
            "tests": outcome.num_tests,
            "unsupported": outcome.num_unsupported,
            "failed": [{"id": result.id, "kind": result.kind, "reason": result.reason} for result in outcome.failed],
            "needs": outcome.stage.needs,
            "page": outcome.stage.page,
        }
        for outcome in outcomes
    ]
    fields = {
        "name": record.name,
        "plugin": record.plugin,
        "availability": availability,
        "stages": done,
        "ahead": [one.name for one in ahead],
    }
    print_json("conformance.next", fields)
