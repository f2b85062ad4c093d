"""``accelkit conformance run NAME``: run the tests of a profile on a plugin, and write reports."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from accelkit import AccelkitError, BrokenPluginError, PluginRecord, UnavailableError, UsageError
from accelkit.atomic_file import is_replaceable, output_file
from accelkit.cli.import_option import IMPORT
from accelkit.cli.json_option import json_path_option
from accelkit.cli.output import print_json, say
from accelkit.cli.status_rows import complete_names
from accelkit_conformance import report as reports
from accelkit_conformance import terminal
from accelkit_conformance.commands import options
from accelkit_conformance.device_loss import Loss
from accelkit_conformance.run import Options, Run, availability_of, find_subject

_FILE = click.Path(dir_okay=False, path_type=Path)
_FINDINGS, _UNWRITTEN, _BROKEN, _UNAVAILABLE = 1, 2, 3, 4


@click.command("run")
@click.argument("name", shell_complete=complete_names)
@options.KIND
@IMPORT
@options.PROFILE
@options.SELECT
@click.option(
    "--on",
    multiple=True,
    metavar="NAME",
    help="An accelerator on which to test a precision or strategy. May be given several times.  [default: cpu and, if installed, fake_xpu]",
)
@click.option(
    "-n",
    "parallel",
    type=click.IntRange(1),
    metavar="N",
    help="The number of tests that run at a time.  [default: the number of cores, at most 4]",
)
@click.option(
    "--timeout",
    "seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="The time limit of each test, instead of its own limit.",
)
@click.option(
    "--first-call-timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="The additional time for the first run of each test, for a device that compiles each kernel when it is first called. "
    "A test that needed it is run again, within its own limit.  [default: what the accelerator declares]",
)
@click.option(
    "--reruns",
    type=click.IntRange(0),
    default=3,
    metavar="N",
    show_default=True,
    help="The number of times that a failed test is run again.",
)
@click.option("--resume", is_flag=True, help="Continue the interrupted run.")
@click.option(
    "--rerun-failed", is_flag=True, help="Run only the tests that failed, were flaky or were not run last time, and update the report."
)
@click.option(
    "--expected-failures",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A TOML file of expected failures, instead of the plugin's own.",
)
@click.option("--certify", is_flag=True, help="Exit with 1 unless the run can be certified.")
@json_path_option(_FILE)
@click.option("--junit", "junit_path", type=_FILE, metavar="PATH", help="Write the report as JUnit XML.")
@click.option("--html", "html_path", type=_FILE, metavar="PATH", help="Write the report as one self-contained HTML file.")
@click.option("--badge", "badge_path", type=_FILE, metavar="PATH", help="Write the verdict as an SVG badge.")
@click.option(
    "--bundle",
    "bundle_path",
    type=_FILE,
    metavar="PATH",
    help="Write a tar file of the report, the logs and the environment, for accelkit conformance verify.",
)
@click.option(
    "--benchmarks",
    is_flag=True,
    help="Also measure launch latency, bandwidth, matmul rates and an all-reduce. They do not affect the verdict.",
)
def command(name: str, kind: str, certify: bool, benchmarks: bool, **given: Any) -> None:
    """Run the suite on the plugin NAME.

    By default, NAME is an accelerator, and any name that Runtime accepts can be used. With --kind, NAME is a plugin of the given kind.

    A test that crashes or hangs is a failure even if it passes when it is run again. Only the tests of the contract profile are run if
    the plugin is broken, if its device is not present, or if NAME is a precision or a strategy that no accelerator supports.

    The exit code is 0 if no test failed, and 1 if a test failed. With --certify, it is also 1 if the run cannot be certified. The exit code
    is 2 for a usage error or if a report could not be written, and 3 if the plugin is broken. It is 4 if the device is not present, if the
    device is lost during the run, or if no accelerator supports the precision or the strategy. After Ctrl-C, the exit code is 130, and the
    reports cover the tests that have finished.
    """
    record = find_subject(name, kind)
    if kind == "accelerator" and given["profile"] != "contract":
        require_packages()
    availability = availability_of(record, given["on"])
    if availability["status"] != "usable" and given["resume"]:
        raise unusable(record, availability, "the run cannot be resumed")
    paths = {form: given.pop(f"{form}_path") for form in ("json", "junit", "html", "badge", "bundle")}
    check_writable([path for path in paths.values() if path is not None and str(path) != "-"])
    run = Run(record, availability, Options(**given))
    if availability["status"] != "usable":
        say(
            f"{name} ({record.plugin}) is {availability['status']}: {availability['reason']}\n"
            "running only the profile contract, which needs no device"
        )
    try:
        with terminal.Progress(len(run.tests)) as progress:
            report = run.execute(progress)
    except KeyboardInterrupt:
        done = len(run.journal.results)
        say(
            f"interrupted after {done} of {len(run.tests)} tests; to continue, with the same options: "
            f"accelkit conformance run {name} --resume"
        )
        if done:
            write(run.report(), run, paths)  # write itself prints an error for each format that could not be written
        raise click.exceptions.Exit(130) from None
    if benchmarks and availability["status"] == "usable" and run.loss is None:
        from accelkit_conformance.benchmarks import measure

        try:
            report["benchmarks"] = measure(record)
        except AssertionError as error:  # the benchmarks do not affect the results
            say(f"the benchmarks were not measured: {error}")
    unwritten = write(report, run, paths)
    code = conclude(report, availability, certify=certify, record=record)
    if run.loss is not None:
        say(str(lost(run.loss, record)))
        code = _UNAVAILABLE
    raise click.exceptions.Exit(_UNWRITTEN if unwritten else code)


def unusable(record: PluginRecord, availability: dict[str, str], consequence: str) -> AccelkitError:
    """Return the error for a plugin that cannot be used: an UnavailableError if its status is ``absent``, otherwise a BrokenPluginError.

    Args:
        record: The plugin.
        availability: The plugin's ``status``, ``reason`` and ``hint``, as ``availability_of`` returns them.
        consequence: The start of the message, such as ``the run cannot be resumed``.
    """
    error = UnavailableError if availability["status"] == "absent" else BrokenPluginError
    what = f"{consequence}: the {record.kind} {record.name!r} is {availability['status']}"
    return error(what, plugin=record.plugin, why=availability["reason"], hint=availability["hint"])


def lost(loss: Loss, record: PluginRecord) -> UnavailableError:
    """Return the error that describes the loss of the device during a run."""
    kept = f"; {loss.failed[0]} keeps its result, and the tests after it are run again" if loss.failed else ""
    again = f"with the same options: accelkit conformance run {record.name} --resume{kept}"
    return UnavailableError(
        f"the device of the {record.kind} {record.name!r} was lost during the run",
        plugin=record.plugin,
        why=str(loss),
        hint=f"{loss.hint}; then, {again}" if loss.hint else f"make the device work again; then, {again}",
    )


def require_packages() -> None:
    """Check that the packages needed by the tests of accelerators are installed.

    Without this check, the tests that need a missing package would have the result ``unsupported``.

    Raises:
        UnavailableError: If a package is missing.
    """
    if missing := [name for name in ("expecttest", "numpy") if importlib.util.find_spec(name) is None]:
        them = "it" if len(missing) == 1 else "them"
        raise UnavailableError(
            f"the tests of accelerators cannot be run without {' and '.join(missing)}",
            why=f"torch's database of operators needs {them}, and accelkit was installed without the extra 'conformance'",
            hint="pip install 'accelkit[conformance]'",
        )


def check_writable(paths: Iterable[Path]) -> None:
    """Check, before a long run, that reports can be written to ``paths``, and create missing folders.

    Raises:
        UsageError: If a report cannot be written.
    """
    for path in paths:
        try:
            if path.exists() and not os.access(path, os.W_OK):
                raise PermissionError(f"{path} is read-only")
            if is_replaceable(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                temporary = path.with_name(f"{path.name}.tmp")
                temporary.touch()
                temporary.unlink()
        except OSError as error:
            why = f"{error.strerror or error}: {error.filename or path}"
            raise UsageError(f"the report {path} cannot be written", why=why, hint="choose a different path") from error


def write(report: reports.Report, run: Run, paths: dict[str, Path | None]) -> list[str]:
    """Write the report in every requested format, and print the paths on standard error.

    Also print a summary on standard output. If the path of the JSON report is ``-``, print the JSON report there instead of the summary. If
    a file cannot be written, print an error that says how to write the file later.

    Args:
        report: The report.
        run: The run that the report describes.
        paths: The path for each format. None if the format is not requested.

    Returns:
        The formats that could not be written.
    """
    from accelkit_conformance.reports import WRITERS

    if str(paths["json"]) == "-":
        print_json("conformance", {key: value for key, value in report.items() if key != "schema"})
        paths = {**paths, "json": None}
    else:
        terminal.show(report)
    unwritten = []
    for form, path in paths.items():
        if path is None:
            continue
        try:
            with output_file(path) as target:
                WRITERS[form](report, target, run.journal.folder)
            say(f"{form}: {path}")
        except OSError as error:
            unwritten.append(form)
            hint = (
                f"repeat the command with the same options, --rerun-failed and another path for --{form}: it writes the report from the "
                "results, which have been kept"
            )
            say(str(UsageError(f"the {form} report {path} could not be written", why=str(error), hint=hint)))
    return unwritten


def conclude(report: reports.Report, availability: dict[str, str], *, certify: bool, record: PluginRecord) -> int:
    """Return the exit code of a run.

    If ``certify`` is True, print whether the run is certified. If the plugin is broken or its device is not present, print the reason.
    """
    is_good = reports.is_good(report["summary"])
    if certify:
        objections = report["certification"]["objections"]
        for objection in objections:
            say(f"not certified: {objection}")
        if not objections:
            say(f"certified: {record.name} ({record.plugin}), profile {report['suite']['profile']} for torch {report['suite']['torch']}")
        is_good = is_good and not objections
    if availability["status"] != "usable":
        what = "is not available on this machine" if availability["status"] == "absent" else "is broken"
        error: type[AccelkitError] = AccelkitError if availability["status"] == "absent" else BrokenPluginError
        say(
            str(
                error(
                    f"the {record.kind} {record.name!r} {what}", plugin=record.plugin, why=availability["reason"], hint=availability["hint"]
                )
            )
        )
        return _UNAVAILABLE if availability["status"] == "absent" else _BROKEN
    return 0 if is_good else _FINDINGS
