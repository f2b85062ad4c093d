"""``accelkit conformance selftest``."""

from __future__ import annotations

import fnmatch
import json
import os
from pathlib import Path

import click

from accelkit import UsageError
from accelkit.cli.output import print_json, print_table, say
from accelkit.selection import resolve
from accelkit_conformance import selftest
from accelkit_conformance.mutants import all_mutants
from accelkit_conformance.selftest import Autopsy

_BASE = "fake_xpu"


@click.command("selftest")
@click.option("--mutants", "patterns", multiple=True, metavar="GLOB", help="Only these.")
@click.option("--every", type=click.IntRange(1), default=1, metavar="N", help="Only every N-th, for a sample.")
@click.option("--own-area", "is_own_area_only", is_flag=True, help="Run each mutant on the tests of its area only: quicker.")
@click.option("--list", "is_list", is_flag=True, help="List the mutants, and run none.")
@click.option("-n", "parallel", type=click.IntRange(1), help="Mutants at a time. By default as many as cores, at most four.")
@click.option("--json", "is_json", is_flag=True, help="The kill matrix as JSON on standard output.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH", help="Write the kill matrix as JSON.")
def command(
    *,
    patterns: tuple[str, ...],
    every: int,
    is_own_area_only: bool,
    is_list: bool,
    parallel: int | None,
    is_json: bool,
    output: Path | None,
) -> None:
    """Run the suite on broken accelerators, each of which it must find, and print the kill matrix. Exits 1 if one survives."""
    chosen = [one for one in all_mutants() if not patterns or any(fnmatch.fnmatchcase(one.name, pattern) for pattern in patterns)]
    if not chosen:
        raise UsageError(f"no mutant is named {', '.join(patterns)}", hint="accelkit conformance selftest --list shows them")
    is_whole = not patterns and every == 1 and not is_own_area_only
    chosen = chosen[::every]
    if is_list:
        print_table(
            ["MUTANT", "AREA", "MECHANISM", "DESCRIPTION"], [[one.name, one.area, one.mechanism, one.description] for one in chosen]
        )
        return

    def watch(autopsy: Autopsy) -> None:
        say(f"{'killed' if autopsy.is_killed else 'SURVIVED'}: {autopsy.mutant.name} ({autopsy.mutant.area})")

    parallel = parallel or max(1, min(4, os.cpu_count() or 1))
    autopsies = selftest.examine_all(resolve(_BASE), chosen, parallel, watch, is_own_area_only=is_own_area_only)
    matrix = selftest.report(autopsies, is_whole=is_whole)
    if output is not None:
        output.write_text(json.dumps(matrix, indent=1) + "\n", "utf-8")
    if is_json:
        print_json("conformance.selftest", {key: value for key, value in matrix.items() if key != "schema"})
    else:
        _show(autopsies)
        say(f"{len(matrix['narrow'])} do not count, for only checks that found nothing else found them: {', '.join(matrix['narrow'])}")
        say(f"{len(matrix['idle_checks'])} checks found none of these mutants: {', '.join(matrix['idle_checks'])}")
    for objection in matrix["objections"]:
        say(objection)
    raise click.exceptions.Exit(1 if matrix["objections"] else 0)


def _show(autopsies: list[Autopsy]) -> None:
    rows = []
    for one in autopsies:
        areas = ", ".join(f"{area} {count}" for area, count in one.by_area().items())
        rows.append([one.mutant.name, one.mutant.area, "killed" if one.is_killed else "SURVIVED", str(len(one.killers)), areas])
    print_table(["MUTANT", "BREAKS", "VERDICT", "TESTS", "OF WHICH AREAS"], rows)
    click.echo(f"{sum(one.is_killed for one in autopsies)} of {len(autopsies)} mutants were killed by tests of the area that they break")
