"""The child process that probes plugins, so that a crash or hang of a plugin does not affect the parent process.

Run as ``python -m accelkit.discovery.probe_worker`` with a request (JSON) on standard input. One line of JSON is appended to the report
file for each stage reached and for each verdict, so that the parent knows in which stage a child died.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import functools
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from accelkit import child_processes
from accelkit.discovery.autoload import explain, import_torch
from accelkit.discovery.import_side_effects import Footprint
from accelkit.discovery.loading import base_class, instantiate, load_class, plugin_errors, probe
from accelkit.discovery.remedies import by_text
from accelkit.errors import AccelkitError, BrokenPluginError, UnavailableError
from accelkit.gc_pause import pause_collector_until_exit
from accelkit.specs.accelerator import Accelerator
from accelkit.types import Availability, PluginRecord

Reached = Callable[[str], None]


class Report:
    """The report that the parent process reads. Each line is flushed immediately, because this process may crash at any time."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 # the file stays open until the process ends
        faulthandler.enable(self._file)
        if child_processes.SHOW_STACK is not None:
            faulthandler.register(child_processes.SHOW_STACK, file=self._file, all_threads=False)

    def end_after(self, seconds: float) -> None:
        """Start a timer that ends this process after ``seconds``, even if the parent has ended or a plugin does not release the GIL.

        The stacks of all threads are first written to the report.
        """
        faulthandler.dump_traceback_later(seconds, file=self._file, exit=True)

    def stage(self, index: int, stage: str) -> None:
        self._write({"index": index, "stage": stage})

    def verdict(self, index: int, verdict: dict[str, Any]) -> None:
        self._write({"index": index, "verdict": verdict})

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def main() -> None:
    pause_collector_until_exit()
    request = json.load(sys.stdin)
    sys.path[:] = request["sys_path"]
    report = Report(request["report"])
    report.end_after(request["seconds"])
    for index, fields in enumerate(request["records"]):
        reached = functools.partial(report.stage, index)
        report.verdict(index, _ask(PluginRecord(**fields), request["question"], reached))


def report_torch() -> None:
    """Print whether a plain ``import torch`` works in this environment, as one line of JSON.

    ``accelkit doctor`` calls this in a child process and reads only the last line of the output. Importing torch may print lines before it.
    """
    pause_collector_until_exit()
    try:
        import torch

        answer = {"reason": f"torch {torch.__version__}"}
    except Exception as error:
        explained = explain(error)
        answer = {"plugin": explained.plugin, "reason": explained.why, "hint": explained.hint}
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


def _ask(record: PluginRecord, question: str, reached: Reached) -> dict[str, Any]:
    start = time.perf_counter()
    facts: dict[str, Any] = {}
    try:
        answer = _QUESTIONS[question](record, facts, reached)
        verdict = {"status": answer.status, "reason": answer.reason, "hint": answer.hint}
    except BrokenPluginError as error:
        cause = "".join(traceback.format_exception(error.__cause__)) if error.__cause__ else ""
        why = f"{error.what}: {error.why}" if error.why else error.what
        verdict = {"status": "broken", "reason": why, "hint": error.hint, "traceback": cause}
    except AccelkitError as error:
        status = "absent" if isinstance(error, UnavailableError) else "broken"
        verdict = {"status": status, "reason": f"{error.what}: {error.why}", "hint": error.hint}
    return facts | verdict | {"seconds": round(time.perf_counter() - start, 3)}


def _probe(record: PluginRecord, facts: dict[str, Any], reached: Reached) -> Availability:
    """Import the plugin's class and call its probe, if plugins of this kind have one. Does not import torch unless the plugin does.

    Adds the class's description to ``facts`` and, for an accelerator, also ``is_simulated`` and ``device_type``.
    """
    reached("import")
    cls: Any = load_class(record)
    facts["description"] = (cls.__doc__ or "").strip().partition("\n")[0] if "__doc__" in vars(cls) else ""
    if record.kind in ("cluster", "hooks"):
        return Availability.usable()
    if record.kind == "accelerator":
        facts["is_simulated"] = bool(cls.is_simulated)
        facts["device_type"] = str(cls.device_type)
    reached("probe")
    return probe(cls, record)


def _read_definitions(record: PluginRecord, facts: dict[str, Any], reached: Reached) -> Availability:
    """Import the plugin's class, and list in ``facts["definitions"]`` what the class adds or overrides. No member is called."""
    from accelkit.specs.api_snapshot.snapshot import definitions

    reached("import")
    cls = load_class(record)
    with plugin_errors(record.plugin, f"reading the methods of {record.name}"):
        facts["definitions"] = definitions(cls, base_class(record.kind))
    return Availability.usable()


def _find_mistakes(record: PluginRecord, facts: dict[str, Any], reached: Reached) -> Availability:
    """Import the plugin's class, and add the findings of the static checks on the class to ``facts``. No method is called."""
    from accelkit.specs.static_checks.rules import TORCH_AT_IMPORT, find_mistakes

    had_torch = "torch" in sys.modules
    reached("import")
    cls = load_class(record)
    found = [TORCH_AT_IMPORT] if "torch" in sys.modules and not had_torch else []
    with plugin_errors(record.plugin, f"reading the methods of {record.name}"):
        found += find_mistakes(record.kind, cls)
    facts["mistakes"] = [dataclasses.asdict(one) for one in found]
    return Availability.usable()


def _probe_without_traces(record: PluginRecord, facts: dict[str, Any], reached: Reached) -> Availability:
    """Probe a plugin, and check that importing and probing the plugin has no side effects.

    If the plugin is not a hook plugin, torch is imported before the plugin, so that changes that the plugin makes to torch are detected.
    """
    reached("torch")
    if record.kind != "hooks":
        import_torch()
    before = Footprint()
    answer = _probe(record, facts, reached)
    if changes := before.changes():
        raise BrokenPluginError(
            f"importing {record.name} has side effects",
            plugin=record.plugin,
            why="it " + "; it ".join(changes),
            hint="report it to the vendor, who must move this code into load() or setup_device()",
        )
    return answer


def _trial(record: PluginRecord, facts: dict[str, Any], reached: Reached) -> Availability:
    """Import a plugin and check that it works. The checks depend on the kind of the plugin.

    An accelerator is probed. If it is usable, an instance of it is created, its ``build`` and ``load`` are called, and a small computation
    is run on its device. A precision is only probed. A strategy is probed and, if it is usable, an instance is created. For a cluster
    environment or a hook plugin, an instance is created; the methods of a hook plugin are also checked against their specifications.

    The import of a third-party plugin is checked for side effects.
    """
    ask = _probe if record.is_builtin else _probe_without_traces
    answer = ask(record, facts, reached)
    if not answer.is_usable or record.kind == "precision":
        return answer
    if record.kind == "accelerator":
        reached("torch")
        import_torch()
    reached("instance")
    cls = load_class(record)
    instance = instantiate(cls, record)
    if record.kind == "hooks":
        from accelkit.plugin_manager import validate_hooks

        validate_hooks(instance, record.plugin)
    if record.kind != "accelerator":
        return answer
    reached("doctor")
    facts["checks"] = _results(record, lambda: [instance.doctor_checks()])
    reached("build")
    with plugin_errors(record.plugin, f"building {record.name}"):
        instance.build()
    reached("load")
    with plugin_errors(record.plugin, f"loading {record.name}"):
        instance.load()
    reached("check")
    with plugin_errors(record.plugin, f"checking {record.name}"):
        checked = instance.check()
    if not isinstance(checked, Availability):
        raise BrokenPluginError(
            f"check() of {record.name} returned {checked!r:.80}", why="it must return an Availability", plugin=record.plugin
        )
    if not checked.is_usable:
        return Availability.broken(
            f"its probe() reports it as usable, but its check() failed: {checked.reason}", checked.hint or _remedy(checked.reason, instance)
        )
    if type(instance).check is not Accelerator.check:
        facts["checked"] = checked.reason or "its check() passed"
    with plugin_errors(record.plugin, f"reading the properties of {record.name}"):
        facts["device_count"] = int(instance.auto_device_count())
        facts["capabilities"] = dict(instance.capabilities())
    return answer


def _call_checks(record: PluginRecord, facts: dict[str, Any], reached: Reached) -> Availability:
    """Import a hook plugin and call its ``doctor_checks`` through a plugin manager, so that hook wrappers are called too. The results are
    stored in ``facts["checks"]``."""
    from accelkit.plugin_manager import PluginManager

    reached("import")
    cls = load_class(record)
    reached("instance")
    manager = PluginManager()
    manager.add(instantiate(cls, record), record.plugin)
    reached("doctor")
    facts["checks"] = _results(record, manager.hook.doctor_checks)
    return Availability.usable()


def _results(record: PluginRecord, call: Callable[[], Iterable[object]]) -> dict[str, dict[str, Any]]:
    """Return the results of ``doctor_checks``, converted to dicts and keyed by the name of the check.

    ``call`` returns one mapping for each implementation of ``doctor_checks``. These mappings are merged.

    Raises:
        AccelkitError: If ``doctor_checks`` raises an AccelkitError. It is passed on unchanged.
        BrokenPluginError: If ``doctor_checks`` raises any other error, or returns anything other than a mapping of names to Availability.
    """
    found: dict[str, dict[str, Any]] = {}
    with plugin_errors(record.plugin, f"doctor_checks of {record.name}"):
        results = list(call())
    for result in results:
        if not isinstance(result, Mapping) or not all(isinstance(check, Availability) for check in result.values()):
            raise BrokenPluginError(
                f"doctor_checks of {record.name} returned {result!r:.80}",
                plugin=record.plugin,
                why="it must return a mapping from check names to Availability objects",
                hint="report it to the vendor",
            )
        found |= {str(name): dataclasses.asdict(check) for name, check in result.items()}
    return found


def _remedy(reason: str, accelerator: Any) -> str:
    """Return the remedy for an accelerator that ``probe()`` reports as usable, but whose ``check()`` failed for ``reason``."""
    words = reason.lower()
    if "expected one of" in words and "device type" in words:
        package = accelerator.torch_package or "its package"
        problem = f"device_type is {accelerator.device_type!r}, but importing {package} does not register a device of that name with torch"
        return f"{problem}; if the package registers it in a function, override load() to call it, or report it to the vendor"
    remedy = by_text(reason) or "check that the versions of the driver, torch and the plugin are compatible"
    return f"{remedy}; if that does not help, report it to the vendor"


_QUESTIONS = {
    "probe": _probe,
    "trial": _trial,
    "definitions": _read_definitions,
    "mistakes": _find_mistakes,
    "checks": _call_checks,
}

if __name__ == "__main__":
    main()
