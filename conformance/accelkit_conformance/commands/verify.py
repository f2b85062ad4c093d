"""``accelkit conformance verify BUNDLE``: check that a bundle is complete and consistent."""

from __future__ import annotations

from pathlib import Path

import click

from accelkit.cli.json_option import json_option
from accelkit.cli.output import print_json
from accelkit.errors import one_line
from accelkit_conformance.report import Report
from accelkit_conformance.reports import bundle

_FINDINGS = 1


@click.command("verify")
@click.argument("path", metavar="BUNDLE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option()
@click.pass_context
def command(context: click.Context, path: Path, is_json: bool) -> None:
    """Verify a bundle offline: check that it is complete, and that its verdict follows from its results.

    The exit code is 0 if the bundle is valid, whether or not the run was certified. If the bundle has problems, they are printed and the
    exit code is 1. The bundle is not signed, so this command cannot tell who made it.
    """
    problems = bundle.verify(path)
    report = None if problems else bundle.load(path)
    if is_json:
        parts = {name: report[name] for name in ("subject", "suite", "certification")} if report else {}
        print_json("conformance.verify", {"bundle": str(path), "is_sound": not problems, "problems": problems, **parts})
    elif report:
        click.echo("\n".join(_verdict(report)))
    else:
        click.echo("\n".join(one_line(problem) for problem in problems))
    context.exit(_FINDINGS if problems else 0)


def _verdict(report: Report) -> list[str]:
    subject, suite = report["subject"], report["suite"]
    names = ", ".join(sorted(set(subject.get("device_names", ()))))
    what = f"{subject['name']} ({subject['plugin']})" + (f" on {names}" if names else "")
    profile = f"profile {suite['profile']} for torch {suite['torch']}, suite {suite['digest'][:12]}"
    objections = report["certification"]["objections"]
    verdict = f"valid; not certified: {what}: {profile}" if objections else f"valid; certified: {what}: {profile}"
    return [one_line(line) for line in (verdict, *(f"  {objection}" for objection in objections))]
