"""``accelkit conformance coverage NAME``: show which operators an accelerator leaves to the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from accelkit import PluginRecord
from accelkit.cli.import_option import IMPORT
from accelkit.cli.json_option import json_option
from accelkit.cli.output import print_json, print_table, say
from accelkit.cli.status_rows import complete_names
from accelkit.errors import printable
from accelkit_conformance.commands.run import require_packages, unusable
from accelkit_conformance.operator_calls import MODELS, ModelRun, Operator, measure, ranked
from accelkit_conformance.run import availability_of, find_subject


@click.command("coverage")
@click.argument("name", shell_complete=complete_names)
@IMPORT
@click.option(
    "--model",
    "models",
    type=click.Choice(MODELS),
    multiple=True,
    help="A model to train. May be given several times.  [default: all]",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="The time limit of each model.",
)
@json_option()
def command(name: str, models: Sequence[str], timeout: float, is_json: bool) -> None:
    """Show which operators the accelerator NAME leaves to the CPU, the most frequently called first.

    Small models of five kinds (a transformer, a convolutional network, a diffusion model, a recurrent network and a graph network) are
    trained for two steps, and the operators of the second step are counted. An operator counts as left to the CPU if it copies tensors
    between the device and the host in order to compute. An operator that computes on the CPU without such copies is not detected.

    The exit code is 0 if every model was trained, 1 if a model could not be trained, 3 if the plugin is broken, and 4 if its device is
    not present.
    """
    record = find_subject(name, "accelerator")
    require_packages()
    availability = availability_of(record)
    if availability["status"] != "usable":
        raise unusable(record, availability, "no operator can be counted")
    runs: list[ModelRun] = []
    calls: list[Operator] = []
    for model in models or MODELS:
        say(f"{model}: trains for two steps")
        run, found = measure(record, model, timeout)
        runs.append(run)
        calls += found
    operators = ranked(calls)
    if is_json:
        _print_json(record, runs, operators)
    else:
        _print_table(operators)
        click.echo("\n".join(printable(line) for line in _summary(record, runs, operators)))
    raise click.exceptions.Exit(int(any(run.error for run in runs)))


def _print_table(operators: Sequence[Operator]) -> None:
    rows = [
        (
            one.name.removeprefix("aten::"),
            str(one.num_calls),
            f"{one.seconds * 1e3:.2f}",
            " ".join(f"{k} {n}" for k, n in one.calls.items()),
        )
        for one in operators
        if one.is_on_cpu
    ]
    if rows:
        print_table(("on the CPU", "calls", "ms", "calls by model"), rows)
        click.echo()


def _summary(record: PluginRecord, runs: Sequence[ModelRun], operators: Sequence[Operator]) -> Iterator[str]:
    device = [one.name.removeprefix("aten::") for one in operators if not one.is_on_cpu]
    on_cpu = [one for one in operators if one.is_on_cpu]
    if device:
        yield f"On the device: {', '.join(device)}"
        yield ""
    if operators:
        num_calls, num_on_cpu = (sum(one.num_calls for one in some) for some in (operators, on_cpu))
        total = sum(run.seconds for run in runs)
        share = sum(one.seconds for one in on_cpu) / total
        yield (
            f"{record.name} ({record.plugin}): {len(on_cpu)} of {len(operators)} operators and {num_on_cpu} of {num_calls} calls "
            f"ran on the CPU, which took {share:.0%} of the steps' time."
        )
    for run in runs:
        if run.error:
            yield f"{run.model} could not be trained: {run.error}"
    if on_cpu:
        yield f"Next: write a kernel for {on_cpu[0].name}, which is called most often."


def _print_json(record: PluginRecord, runs: Sequence[ModelRun], operators: Sequence[Operator]) -> None:
    fields = {
        "name": record.name,
        "plugin": record.plugin,
        "models": [{"model": run.model, "seconds": run.seconds, "error": run.error} for run in runs],
        "operators": [
            {"name": one.name, "is_on_cpu": one.is_on_cpu, "calls": one.calls, "num_calls": one.num_calls, "seconds": one.seconds}
            for one in operators
        ],
    }
    print_json("conformance.coverage", fields)
