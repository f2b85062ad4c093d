"""The child process that measures a device.

Run as ``python -m accelkit.benchmarking.worker``. Standard input is a request (JSON). Each line of standard output is a message (JSON). The
last message contains the report, or the class and the text of an error. Every other message contains the name of the next measurement. The
output of the plugin is discarded.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from accelkit import __version__
from accelkit.benchmarking import collectives, operators, training, transfers
from accelkit.benchmarking.case import Case, NotSupportedError, Target, reason_of
from accelkit.benchmarking.report import Report, Result, Samples
from accelkit.benchmarking.timing import FULL, QUICK, Plan
from accelkit.capabilities import Capabilities
from accelkit.device_name import device_name
from accelkit.discovery import plugin_worker
from accelkit.errors import AccelkitError, UsageError
from accelkit.plugin_calls import call
from accelkit.selection import AUTO

if TYPE_CHECKING:
    import torch

    from accelkit.specs.accelerator import Accelerator


class Bench:
    """The benchmark of the first device of an accelerator.

    Args:
        accelerator: The accelerator, already loaded.
        is_quick: Whether to measure for a short time (the plan ``QUICK`` instead of ``FULL``). This does not change the sizes, which
            ``cases`` determines.
        cases: The measurements to make.

    Raises:
        BrokenPluginError: If the plugin fails while the device is set up.
    """

    def __init__(self, accelerator: Accelerator, is_quick: bool, cases: Sequence[Case]) -> None:
        import torch

        self._accelerator, self._is_quick, self._plan = accelerator, is_quick, QUICK if is_quick else FULL
        self._cases = cases
        device = accelerator.device(0)
        call(accelerator, "setup_device", device)
        capabilities = call(accelerator, "capabilities", device)
        self._device = Target(device, lambda: call(accelerator, "synchronize", device), capabilities, _peer(accelerator, device))
        host = torch.empty(0, device=torch.get_default_device()).device
        self._host = None if host.type == device.type else Target(host, lambda: None, Capabilities())
        torch.backends.cudnn.allow_tf32 = False  # so that float32 operators, whose limit is the peak of float32, do not use TF32
        self._host_peaks: dict[str, float] = {}
        self._peaks: dict[str, float] = {}

    def run(self, report_progress: Callable[[str], None]) -> Report:
        """Make all measurements, and return the report.

        Args:
            report_progress: Called before each measurement, with the name of the measurement.

        Raises:
            BrokenPluginError: If a method of the plugin fails.
        """
        import torch

        begin = time.time()
        results = []
        for case in self._cases:
            report_progress(case.name)
            results.append(self._result(case))
        return Report(
            name=self._accelerator.name,
            plugin=self._accelerator.plugin,
            device=str(self._device.device),
            device_name=device_name(self._device.device),
            accelkit=__version__,
            torch=torch.__version__,
            python=platform.python_version(),
            processor=platform.processor() or platform.machine(),
            threads=torch.get_num_threads(),
            time=begin,
            is_quick=self._is_quick,
            peaks=self._peaks,
            results=tuple(self._limited(case, result) for case, result in zip(self._cases, results, strict=True)),
        )

    def _result(self, case: Case) -> Result:
        host = device = None
        reason = ""
        if self._host is not None and case.runs_on_cpu:
            host, _ = _measure(case, self._host, self._plan, self._host_peaks)
        device, reason = _measure(case, self._device, self._plan, self._peaks)
        return Result(case.name, case.unit, case.is_higher_better, device, host, unsupported=reason)

    def _limited(self, case: Case, result: Result) -> Result:
        limit, limited_by = case.limit(self._peaks) if result.device else (None, "")
        return dataclasses.replace(result, limit=limit, limited_by=limited_by)


def _peer(accelerator: Accelerator, device: torch.device) -> Target | None:
    """Return the second device of the accelerator. Return None if the accelerator has only one, or if the second device is ``device``."""
    indices = call(accelerator, "parse_devices", AUTO)
    peer = accelerator.device(indices[1]) if len(indices) > 1 else device
    return None if peer == device else Target(peer, lambda: call(accelerator, "synchronize", peer), Capabilities())


def _measure(case: Case, target: Target, plan: Plan, peaks: dict[str, float]) -> tuple[Samples | None, str]:
    """Measure a case on a target. Return the samples and "", or None and the reason why there are no samples.

    ``peaks`` contains the highest rate that has been measured so far for each resource, in bytes or FLOP per second. It is updated if the
    case measures the rate of a resource (``case.peak_of``).

    Raises:
        AccelkitError: If a method of the plugin fails.
    """
    try:
        samples = Samples.of(case.samples(target, plan, peaks))
    except NotSupportedError as error:
        return None, str(error)
    except AccelkitError:
        raise
    except Exception as error:  # an operator or a dtype that the device lacks can raise any error
        return None, reason_of(error)
    if case.peak_of:
        peaks[case.peak_of] = max(peaks.get(case.peak_of, 0.0), case.rate(samples.median))
    return samples, ""


def _selected(request: Mapping[str, Any], name: str) -> list[Case]:
    """Return the cases whose names match the pattern ``select`` in the request.

    The parent ends this process if a measurement takes longer than the request's ``seconds``. The first case that measures a collective
    measures all collectives; it stops after half of ``seconds``, so that the parent does not end this process.

    Args:
        request: The request, with the keys ``is_quick``, ``select``, ``ranks`` (the number of processes for collectives) and ``seconds``.
        name: The accelerator's name. The processes that measure collectives use this name to select the accelerator.

    Raises:
        UsageError: If no name matches ``select``.
    """
    is_quick, select = request["is_quick"], request["select"]
    between = collectives.cases(is_quick, name, request["ranks"], request["seconds"] / 2)
    every = [*transfers.cases(is_quick), *operators.cases(is_quick), *training.cases(is_quick), *between]
    found = [case for case in every if fnmatch.fnmatchcase(case.name, select)]
    if not found:
        groups = ", ".join(dict.fromkeys(f"'{case.name.partition('.')[0]}.*'" for case in every))
        raise UsageError(f"--select {select!r} selects no measurement", hint=f"use one of {groups}")
    return found


def main() -> None:
    with plugin_worker.connected() as connection:
        accelerator = connection.load()
        cases = _selected(connection.request, connection.record.qualified_name)
        bench = Bench(accelerator, connection.request["is_quick"], cases)
        numbers = itertools.count(1)
        report = bench.run(lambda name: connection.write({"measuring": name, "number": next(numbers), "count": len(cases)}))
        connection.write({"report": dataclasses.asdict(report)})


if __name__ == "__main__":
    main()
