"""``accelkit conformance selftest``: run the suite on broken plugins, and show which of them it detects."""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Sequence
from pathlib import Path

import click

from accelkit import PluginRecord, UsageError
from accelkit.cli.json_option import json_option
from accelkit.cli.output import print_json, print_table, say
from accelkit.selection import resolve
from accelkit_conformance import generated_selftest, selftest
from accelkit_conformance.checks import PROFILES, SUBJECT_KINDS
from accelkit_conformance.generated_selftest import Outcome
from accelkit_conformance.mutants import all_mutants, generated
from accelkit_conformance.mutants.generated import AXES, Generated
from accelkit_conformance.selftest import Autopsy

_BASE = "fake_xpu"


@click.command("selftest")
@click.option(
    "--mutants",
    "patterns",
    multiple=True,
    metavar="GLOB",
    help="Run only the mutants whose names match this pattern. May be given several times.",
)
@click.option(
    "--kind",
    "kinds",
    type=click.Choice(SUBJECT_KINDS),
    multiple=True,
    help="Run only the mutants of this kind of plugin. May be given several times.",
)
@click.option("--every", type=click.IntRange(1), default=1, metavar="N", show_default=True, help="Run only every N-th mutant, as a sample.")
@click.option(
    "--own-area", "is_own_area_only", is_flag=True, help="Run only the tests of the area that each mutant breaks. This is faster."
)
@click.option(
    "--until-killed",
    "is_until_killed",
    is_flag=True,
    help="Stop testing a mutant once a test of its area has failed. This is faster still, and gives the same verdicts.",
)
@click.option("--list", "is_list", is_flag=True, help="List the mutants without running them.")
@click.option(
    "--generated", "num_generated", type=click.IntRange(1), metavar="N", help="Run N generated mutants, chosen at random, instead."
)
@click.option("--seed", type=int, default=0, metavar="N", show_default=True, help="The seed of the sample of generated mutants.")
@click.option(
    "-n",
    "parallel",
    type=click.IntRange(1),
    metavar="N",
    help="The number of mutants that run at a time.  [default: the number of cores, at most 4]",
)
@json_option("Print the kill matrix as JSON to standard output.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH", help="Write the kill matrix to this file as JSON."
)
def command(
    *,
    patterns: tuple[str, ...],
    kinds: tuple[str, ...],
    every: int,
    is_own_area_only: bool,
    is_until_killed: bool,
    is_list: bool,
    num_generated: int | None,
    seed: int,
    parallel: int | None,
    is_json: bool,
    output: Path | None,
) -> None:
    """Run the suite on broken plugins (mutants), and print which tests detect each of them.

    Each mutant breaks one area. A mutant is killed if a test of this area fails on the mutant. The exit code is 1 if a mutant survives, or
    if too many of the mutants share a mechanism (kind of fault). After a run of all mutants, with neither --own-area nor --until-killed,
    the exit code is also 1 if too few mutants were killed. A mutant that was detected only by checks that detected no other mutant is not
    included in this number.

    With --generated, the mutants are chosen at random. In each mutant, one operator of the device has one fault, such as a wrong last row.
    To run such a mutant again, pass its id, as in --mutants 'generated[add,last_row,3]'. Generated mutants that survive do not affect the
    exit code.
    """
    parallel = parallel or max(1, min(4, os.cpu_count() or 1))
    if num_generated or any(pattern.startswith("generated[") for pattern in patterns):
        if kinds:
            raise UsageError(f"--kind {kinds[0]} has no effect on generated mutants", why="they are accelerators", hint="omit --kind")
        base = resolve(_BASE)
        _run_generated(base, _sample(patterns, num_generated, seed), parallel, seed, is_list=is_list, is_json=is_json, output=output)
        return
    chosen = [one for one in all_mutants() if not patterns or any(fnmatch.fnmatchcase(one.name, pattern) for pattern in patterns)]
    chosen = [one for one in chosen if not kinds or one.kind in kinds]
    if not chosen:
        listed = "accelkit conformance selftest --list shows all mutants"
        is_separated = any("," in pattern for pattern in patterns)
        hint = f"repeat the option, as in --mutants a --mutants b; {listed}" if is_separated else listed
        raise UsageError(f"no mutant matches {', '.join((*patterns, *kinds))}", hint=hint)
    is_whole = not patterns and not kinds and every == 1 and not is_own_area_only and not is_until_killed
    chosen = chosen[::every]
    if is_list:
        print_table(
            ["MUTANT", "AREA", "MECHANISM", "DESCRIPTION"], [[one.name, one.area, one.mechanism, one.description] for one in chosen]
        )
        return

    def watch(autopsy: Autopsy) -> None:
        say(f"{'killed' if autopsy.is_killed else 'SURVIVED'}: {autopsy.mutant.name} ({autopsy.mutant.area})")

    autopsies = selftest.examine_all(chosen, parallel, watch, is_own_area_only=is_own_area_only, is_until_killed=is_until_killed)
    matrix = selftest.report(autopsies, is_whole=is_whole, is_until_killed=is_until_killed)
    if output is not None:
        output.write_text(json.dumps(matrix, indent=1) + "\n", "utf-8")
    if is_json:
        print_json("conformance.selftest", {key: value for key, value in matrix.items() if key != "schema"})
    else:
        _show(autopsies)
        click.echo()
        columns = ("kind", "area", "mutants", *PROFILES)
        print_table([name.upper() for name in columns], [[str(row[name]) for name in columns] for row in matrix["scores"]])
        if not is_until_killed:
            say(
                f"{len(matrix['narrow'])} mutants do not count, because the checks that detected them detected no other mutants: "
                f"{_listed(matrix['narrow'])}"
            )
            say(f"{len(matrix['idle_checks'])} checks detected none of these mutants: {_listed(matrix['idle_checks'])}")
    for objection in matrix["objections"]:
        say(objection)
    raise click.exceptions.Exit(1 if matrix["objections"] else 0)


def _show(autopsies: list[Autopsy]) -> None:
    rows = []
    for one in autopsies:
        areas = ", ".join(f"{area} {count}" for area, count in one.by_area().items())
        rows.append([one.mutant.name, one.mutant.area, "killed" if one.is_killed else "SURVIVED", str(len(one.killers)), areas])
    print_table(["MUTANT", "BREAKS", "VERDICT", "FAILED TESTS", "FAILED TESTS BY AREA"], rows)
    click.echo(f"{sum(one.is_killed for one in autopsies)} of {len(autopsies)} mutants were killed by a test of the area that they break")


def _sample(patterns: Sequence[str], number: int | None, seed: int) -> list[Generated]:
    """Return the generated mutants whose full ids are given in ``patterns``. If ``patterns`` is empty, return a random sample of ``number``
    mutants.

    Raises:
        UsageError: If an id is invalid, or if the mutant with this id does not exist for the installed torch.
    """
    chosen = [Generated.from_id(pattern) for pattern in patterns]
    known = generated.operators()
    for mutant in chosen:
        if mutant.axis not in known.get(mutant.operator, ()):
            why = (
                f"{mutant.axis} does not apply to {mutant.operator}"
                if mutant.operator in known
                else f"there is no operator {mutant.operator}"
            )
            raise UsageError(f"there is no mutant {mutant.id}", why=why)
    return chosen or generated.sample(known, number or 0, seed)


def _run_generated(
    base: PluginRecord, mutants: Sequence[Generated], parallel: int, seed: int, *, is_list: bool, is_json: bool, output: Path | None
) -> None:
    if is_list:
        print_table(["MUTANT", "AREA", "DESCRIPTION"], [[one.id, one.area, f"{one.operator}: {AXES[one.axis][1]}"] for one in mutants])
        return

    def watch(outcome: Outcome) -> None:
        say(f"{outcome.verdict}: {outcome.mutant.id} ({outcome.mutant.area})" + (f" by {outcome.killer}" if outcome.killer else ""))

    outcomes = generated_selftest.examine(base, mutants, parallel, watch)
    matrix = selftest.report([], is_whole=False) | {"seed": seed, "generated": generated_selftest.report(outcomes)}
    if output is not None:
        output.write_text(json.dumps(matrix, indent=1) + "\n", "utf-8")
    if is_json:
        print_json("conformance.selftest", {key: value for key, value in matrix.items() if key != "schema"})
        return
    for head, key in (("AXIS", lambda one: one.mutant.axis), ("AREA", lambda one: one.mutant.area)):
        rows = [[name, *(str(number) for number in counts)] for name, counts in generated_selftest.score(outcomes, key)]
        print_table([head, "MUTANTS", "KILLED", "SURVIVED", "NOT TRIGGERED"], rows)
        click.echo()
    for verdict in ("survived", "not triggered"):
        click.echo(f"{verdict}: {_listed([one.mutant.id for one in outcomes if one.verdict == verdict])}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
