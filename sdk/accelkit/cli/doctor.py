"""``accelkit doctor [NAME]``: test one plugin or all, each in its own process, and check the installation."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from accelkit import child_processes
from accelkit.cli.import_option import IMPORT
from accelkit.cli.json_option import json_option
from accelkit.cli.output import print_json, print_table, say
from accelkit.cli.status_rows import Row, complete_names, rows_of
from accelkit.discovery import autoload, probing, verdict_cache
from accelkit.discovery.catalog import find, inventory, plugins
from accelkit.discovery.metadata import normalized
from accelkit.discovery.policy import ALLOW, Policy
from accelkit.discovery.verdict import Verdict
from accelkit.errors import UntrustedFileError
from accelkit.private_files import private_folder
from accelkit.selection import GENERIC, resolve
from accelkit.specs.finding import Finding
from accelkit.types import Availability, PluginRecord

_FAULTS = ("broken", "incompatible", "conflict")
_BLOCK = 4096
_OF_STYLE = ("documented",)  # rules that matter only to vendors; a user who installed the plugin need not act

Mistakes = Mapping[PluginRecord, Sequence[Finding]]


@click.command("doctor")
@click.argument("name", required=False, shell_complete=complete_names)
@IMPORT
@click.option("--verbose", is_flag=True, help="Show the tracebacks of errors in plugins.")
@json_option()
@click.pass_context
def command(context: click.Context, name: str | None, verbose: bool, is_json: bool) -> None:
    """Load each plugin (or only NAME) in a separate process, check its methods, use its device, and check the installation.

    A plugin that is disabled, or whose device is absent, counts as a problem only if NAME is given. Exits with 1 if there are problems.
    """
    records = _records(name)
    checks = dict(_installation())
    triable = [record for record in records if record.status == "available" and record.name != GENERIC]
    if sys.stderr.isatty():
        say(f"testing {len(triable)} plugin{'s' * (len(triable) != 1)} ...")
    verdicts = probing.ask_all(triable, is_trial=True)
    for record, verdict in verdicts.items():
        verdict_cache.remember(record, verdict)
    verdicts = _with_checks_of_hooks(verdicts)
    mistakes = _mistakes(triable, verdicts)
    rows = rows_of(records, verdicts)
    findings = _findings(rows, checks, mistakes, is_named=name is not None)
    if is_json:
        print_json("doctor", {"checks": _as_dicts(checks), "plugins": [_row(row, mistakes) for row in rows], "findings": findings})
    else:
        _print(rows, checks, mistakes, verbose)
        say(f"{len(findings)} problem{'s' * (len(findings) != 1)} found: {', '.join(findings)}" if findings else "no problems found")
    context.exit(1 if findings else 0)


def _records(name: str | None) -> list[PluginRecord]:
    if name is None:
        return [record for record in plugins() if not record.is_fallback]
    named = [record for record in plugins() if name in (record.name, record.qualified_name)]
    return named or [resolve(name) if name.startswith(f"{GENERIC}:") else find("accelerator", name)]


def _with_checks_of_hooks(verdicts: Mapping[PluginRecord, Verdict]) -> dict[PluginRecord, Verdict]:
    """Call ``doctor_checks`` of every usable hook plugin, and return a copy of the verdicts that includes the results.

    If the call for a plugin fails, the verdict of this plugin contains a single check, with the result ``broken`` and the reason. The
    plugin itself stays usable, because only this command calls ``doctor_checks`` of hook plugins.
    """
    found = dict(verdicts)
    for record, answer in probing.ask_checks([one for one in found if one.kind == "hooks" and found[one].status == "usable"]).items():
        failed = {"doctor_checks": Availability.broken(answer.reason, answer.hint)}
        checks = answer.checks if answer.status == "usable" else failed
        found[record] = dataclasses.replace(found[record], checks=checks, traceback=answer.traceback)
    return found


def _mistakes(records: Sequence[PluginRecord], verdicts: Mapping[PluginRecord, Verdict]) -> dict[PluginRecord, list[Finding]]:
    """Run the static checks on plugins, and return the findings for each plugin that was checked.

    A plugin that crashed or hung when it was probed is not checked. A finding is omitted if its text is already part of the reason in the
    plugin's verdict, or if it matters only to the plugin's vendor.
    """
    asked = [record for record in records if verdicts[record].seconds]  # 0 seconds: the plugin's process crashed or hung, and would again
    return {
        record: [one for one in found.mistakes if one.rule not in _OF_STYLE and one.what not in verdicts[record].reason]
        for record, found in probing.ask_mistakes(asked).items()
    }


def _installation() -> Iterator[tuple[str, Availability]]:
    """Check the parts of the installation that all plugins share, and yield the name and the result of each check."""
    yield "torch import", _import_torch()
    conflict = autoload.privateuse1_conflict()
    yield "PrivateUse1 backends", Availability.broken(conflict) if conflict else Availability.usable()
    policy = Policy.from_environment()
    installed = {normalized(record.distribution) for record in plugins()}
    unknown = sorted((policy.allowed or frozenset()) - installed)
    listed = f"{ALLOW} lists {', '.join(unknown)}, which {'are' if len(unknown) > 1 else 'is'} not installed"
    yield (
        "allow list",
        Availability.broken(listed, f"install the missing distributions, or correct {ALLOW}") if unknown else Availability.usable(),
    )
    yield "cache folder", _cache()


def _import_torch() -> Availability:
    """Import torch in a child process with the user's environment.

    Torch also imports the entry points of the group ``torch.backends``. If ACCELKIT_PLUGINS or ACCELKIT_DISABLE_PLUGINS excludes a
    distribution with such an entry point, torch is told to import none of them, because it can import either all of them or none.
    """
    code = "from accelkit.discovery.probe_worker import report_torch; report_torch()"
    limit = probing.time_limit("start")
    policy = Policy.from_environment()
    refused = sorted({backend.distribution for backend in inventory().torch_backends if policy.objection(backend.distribution)})
    environ = os.environ | ({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"} if refused else {})
    try:
        command = [sys.executable, "-P", "-c", code]
        result = child_processes.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=limit, env=environ)
    except subprocess.TimeoutExpired:
        slow = "increase ACCELKIT_START_TIMEOUT (seconds) if this machine is slow"
        return Availability.broken(f"import torch did not finish within {limit:g} s", f"{slow}{_or_without_backends()}")
    if result.returncode == 0 and result.stdout:
        answer = json.loads(result.stdout.splitlines()[-1])
        if "hint" not in answer:
            return Availability.usable(answer["reason"])
        return Availability.broken(f"{answer['plugin']}: {answer['reason']}".removeprefix(": "), answer["hint"])
    last = (result.stderr.strip().splitlines() or ["nothing was printed"])[-1]
    hint = f"python -c 'import torch' shows the traceback; reinstall torch{_or_without_backends()}"
    return Availability.broken(f"import torch ended the process with exit code {result.returncode}: {last}", hint)


def _or_without_backends() -> str:
    """Return the end of a hint: how to import torch without the ``torch.backends`` entry points, in case one of them makes the import fail.

    Returns "" if ``import torch`` imports no entry points.
    """
    backends = [backend.distribution for backend in inventory().torch_backends] if autoload.is_enabled() else []
    return f"; if that does not help, {autoload.way_out(backends)}" if backends else ""


def _cache() -> Availability:
    """Check that a file can be written into the cache folder. Writes a temporary file, because a folder on a full disk still looks
    writable."""
    try:
        folder = private_folder(verdict_cache.cache_folder())
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(bytes(_BLOCK))
    except UntrustedFileError as error:
        return Availability.broken(f"{error.what}: {error.why}", error.hint)
    except (OSError, RuntimeError) as error:
        hint = "check the free space and the permissions, or set ACCELKIT_CACHE_DIR; without a cache, plugins are tested again each time"
        return Availability.broken(f"no file can be written into the cache folder: {error}", hint)
    return Availability.usable(str(folder))


def _findings(rows: list[Row], checks: dict[str, Availability], mistakes: Mistakes, is_named: bool) -> list[str]:
    found = [name for name, check in checks.items() if not check.is_usable]
    for row in rows:
        if row.record.status in _FAULTS or (is_named and row.record.status != "available"):
            found.append(row.record.qualified_name)
        elif row.verdict is not None:
            found += [f"{row.record.name}: {name}" for name, check in row.verdict.checks.items() if not check.is_usable]
        found += [f"{row.record.name}: {mistake.what}" for mistake in mistakes.get(row.asked, ())]
    return found


def _print(rows: list[Row], checks: dict[str, Availability], mistakes: Mistakes, verbose: bool) -> None:
    lines = [[name, "", "ok" if check.is_usable else "broken", check.reason, check.hint] for name, check in checks.items()]
    for row in rows:
        lines.append([row.record.name, row.record.plugin, row.record.status, row.record.reason, row.record.hint])
        for name, check in (row.verdict.checks if row.verdict else {}).items():
            lines.append([f"  {name}", "", check.status, check.reason, check.hint])
        for mistake in mistakes.get(row.asked, ()):
            lines.append([f"  {mistake.rule}", "", "mistake", f"{mistake.what}: {mistake.why}", mistake.hint])
    print_table(["NAME", "PLUGIN", "STATUS", "REASON", "WHAT TO DO"], lines)
    for row in rows:
        if verbose and row.verdict and row.verdict.traceback:
            say(f"\n{row.record.plugin} {row.record.name}:\n{row.verdict.traceback}")


def _row(row: Row, mistakes: Mistakes) -> dict[str, Any]:
    verdict = row.verdict.as_dict() if row.verdict else {}
    found = {"mistakes": [dataclasses.asdict(one) for one in mistakes[row.asked]]} if row.asked in mistakes else {}
    return row.as_dict() | {key: verdict[key] for key in ("traceback", "checks", "seconds", "device_count") if key in verdict} | found


def _as_dicts(checks: dict[str, Availability]) -> dict[str, dict[str, str]]:
    return {name: {"status": check.status, "reason": check.reason, "hint": check.hint} for name, check in checks.items()}
