"""``accelkit conformance list``: list the tests of a profile."""

from __future__ import annotations

import click

from accelkit.cli.json_option import json_option
from accelkit.cli.output import print_json
from accelkit.discovery.metadata import installed_version
from accelkit_conformance import checks, profiles
from accelkit_conformance.checks import Profile
from accelkit_conformance.commands import options


@click.command("list")
@options.KIND
@options.PROFILE
@options.SELECT
@click.option("--describe", is_flag=True, help="Print what each check asserts, instead of the ids of the tests.")
@json_option()
def command(profile: Profile, kind: str, select: tuple[str, ...], describe: bool, is_json: bool) -> None:
    """List the ids of the tests of a profile for the installed torch, without importing torch."""
    suite = profiles.suite(profile, installed_version("torch") or "", kind)
    tests = profiles.select(suite.tests, select) if select else list(suite.tests)
    if is_json:
        print_json("conformance.list", {"profile": profile, "torch": suite.torch, "digest": suite.digest, "tests": tests})
        return
    if not describe:
        click.echo("\n".join(tests))
        return
    for one in dict.fromkeys(checks.find(test)[0] for test in tests):
        click.echo(f"{one.area}/{one.name}: {' '.join(one.description.split())}")
