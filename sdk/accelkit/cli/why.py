"""``accelkit why [NAME]``: explain which accelerator, or with ``--cluster`` which cluster environment, would be used."""

from __future__ import annotations

import click

from accelkit.cli.import_option import IMPORT
from accelkit.cli.json_option import json_option
from accelkit.cli.output import print_json, print_table, say
from accelkit.cli.status_rows import complete_names
from accelkit.errors import printable
from accelkit.selection import decide
from accelkit.specs.cluster import PLACEMENT


@click.command("why")
@click.argument("name", required=False, shell_complete=complete_names)
@click.option(
    "--cluster",
    "is_cluster",
    is_flag=True,
    help="Explain the cluster environment instead: what started this process, and the ranks and sizes that it set.",
)
@IMPORT
@json_option()
def command(name: str | None, is_cluster: bool, is_json: bool) -> None:
    """Explain which accelerator would be used for NAME, and why the others would not.

    Without NAME, the value of ACCELKIT_ACCELERATOR is used, or auto if that variable is not set. If NAME (or the value of the variable) is
    the name of a single plugin, this plugin is tested again in a child process, even if it worked before.

    With --cluster, NAME is the name of a cluster environment. Under srun or mpirun, each process shows its own settings.
    """
    if is_cluster:
        _why_cluster(name, is_json)
        return
    decision = decide(name, is_fresh=True)
    if is_json:
        print_json("why", decision.as_dict())
        return
    click.echo(printable(str(decision).partition("\n")[0]))
    rows = [[c.name, c.plugin, c.status, c.reason, c.hint] for c in decision.candidates]
    print_table(["NAME", "PLUGIN", "STATUS", "REASON", "WHAT TO DO"], rows)
    for note in decision.notes:
        click.echo(printable(f"note: {note}"))


def _why_cluster(name: str | None, is_json: bool) -> None:
    """Print the cluster environment that would be used, the other candidates, and the settings of the environment that would be used.

    Exits with status 2 if a setting cannot be read, because a program that reads this setting would fail.
    """
    from accelkit.cluster.subprocess_detection import ask_cluster

    answer = ask_cluster(name)
    if is_json:
        print_json("why.cluster", answer)
    else:
        request = "detected" if answer["source"] == "default" else f"{answer['requested']!r} ({answer['source']})"
        click.echo(printable(f"cluster environment {answer['chosen']} from {answer['plugin']}: {request}"))
        ranked = [
            [c["name"], c["plugin"], c["status"], str(c["priority"] if c["priority"] is not None else ""), c["reason"]]
            for c in answer["candidates"]
        ]
        print_table(["NAME", "PLUGIN", "STATUS", "PRIORITY", "REASON"], ranked)
        click.echo()
        unknown = dict.fromkeys(PLACEMENT, "known once the processes have joined")
        unknown |= {error["name"]: "cannot be read" for error in answer["errors"]}
        rows = [[key, unknown.get(key, "none") if value is None else str(value)] for key, value in answer["settings"].items()]
        print_table(["SETTING", "VALUE"], rows)
        for warning in answer["warnings"]:
            say(f"warning: {warning}")
        for error in {error["what"]: error for error in answer["errors"]}.values():
            say(f"error: {error['what']}\n  why: {error['why']}\n  what to do: {error['hint']}")
    if answer["errors"]:
        raise click.exceptions.Exit(2)
