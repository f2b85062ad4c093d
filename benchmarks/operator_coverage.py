"""Report which ATen overloads the conformance suite calls on an accelerator, compared with several sets of overloads.

The sets are the overloads that accelkit requires, all those that a device can be asked for and, after ``pip install --no-deps torchcts``,
those on TorchCTS's list.

The program runs, in its own process, the checks that count towards the dispatcher coverage in a report. It does not matter whether they
pass. torch's execution trace observer records every overload that is called, including composite ones, with the devices of its tensors. On
the CPU, it also records the calls that the CPU's kernels make. On a device with kernels of its own, such as the fake XPU, it does not.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import importlib.util
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # the observer prints a warning whenever it starts or stops

import torch
from torch.profiler import ExecutionTraceObserver

from accelkit_conformance import profiles, worker
from accelkit_conformance.coverage import DispatchRecorder, required
from accelkit_conformance.run import find_subject
from accelkit_conformance.worker_pool import Order

_MOST_SAMPLES = 8

# Reasons why a device is not asked for an overload. The first pattern that matches the overload's name gives the reason.
_LEFT_OUT = {
    "sparse tensors": r"sparse|coalesce|_coo|_csr|_csc|_bsr|_bsc|spdiags|sspaddmm|hspmm|smm|_nnz|dense_dim|_spsolve|to_dense"
    r"|::_?(c?crow_|ccol_|col_|row_)?(indices|values)(_copy)?(\.out)?$",
    "quantized tensors": r"quant|fbgemm|int4|int8pack|_fused_moving_avg|_make_per_|_fake_|::q_|qscheme|int_repr|_wrapped_linear",
    "nested tensors": r"nested|jagged|to_padded|_padded_dense",
    "kernels of one vendor": r"mkldnn|mkl_|xnnpack|nnpack|cudnn|miopen|mps|cslt|triton|_cuda|cufft|xla|vulkan|flash_attention"
    r"|efficient_attention|slow_conv|for_cpu|_cpu_fallback|_to_cpu|hip",
    "torch's own tests and bookkeeping": r"_test_|_foobar|_dep_token|from_file|_sdp_choice|_fw_primal|_make_dual|_unpack_dual|_batch_dim"
    r"|_print|_assert_(?!async)|sym_|_functional_assert_scalar|_has_|_debug_|_autocast_to|_same_feature_meta|is_distributed|_version|is_leaf|output_nr",
}
_SCHEMA = re.compile(r'"op_schema", "type": "string", "value": "(aten::[\w.]+)\(')
_UNOBSERVED = {"aten::size.int", "aten::size", "aten::is_complex"}  # torch does not report calls to these to observers


class TraceRecorder:
    """Context manager that records, with an execution trace, every overload that takes or returns a tensor on the device.

    Args:
        device_type: The type of the device.
    """

    def __init__(self, device_type: str) -> None:
        self._on_device = re.compile(rf'\[\d+,\d+,\d+,\d+,\d+,"{re.escape(device_type)}(:\d+)?"\]')  # how a trace writes a tensor
        self._observer = ExecutionTraceObserver()
        self.seen: set[str] = set()
        self._new: set[str] = set()

    def __enter__(self) -> TraceRecorder:
        self._folder = tempfile.TemporaryDirectory()
        self._path = Path(self._folder.name, "trace.json")
        self._observer.register_callback(str(self._path))
        self._observer.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._observer.stop()
        self._observer.unregister_callback()
        with self._path.open(encoding="utf-8", errors="replace") as trace:
            self._new |= self._names(trace)
        self.seen |= self._new
        self._folder.cleanup()

    def news(self) -> tuple[str, ...]:
        """Return the names that were recorded since the last call to this method, sorted."""
        new, self._new = tuple(sorted(self._new)), set()
        return new

    def _names(self, trace: Iterable[str]) -> set[str]:
        """Return the names in a trace that are new. A trace can have a million lines, so most of it is not parsed as JSON."""
        found: set[str] = set()
        inputs = outputs = ""
        for line in map(str.lstrip, trace):
            if line.startswith('"inputs"'):
                inputs = line
            elif line.startswith('"outputs"'):
                outputs = line
            elif (
                (schema := _SCHEMA.search(line))
                and (name := schema[1]) not in found
                and name not in self.seen
                and self._is_here(inputs, outputs)
            ):
                found.add(name)
        return found

    def _is_here(self, *values: str) -> bool:
        return any(self._on_device.search(value) for value in values)


@dataclasses.dataclass(frozen=True, slots=True)
class Denominator:
    """A set of overloads.

    Attributes:
        title: The title of its row in the table.
        names: The names of the overloads.
        left_out: How many overloads are left out of the set, for each reason.
    """

    title: str
    names: Collection[str]
    left_out: Mapping[str, int] = dataclasses.field(default_factory=dict)


def denominators() -> list[Denominator]:
    """Return the sets of overloads with which the suite's coverage is compared."""
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    reasons = {name: _reason_to_leave_out(name) for name in names}
    counts = collections.Counter(reason for reason in reasons.values() if reason)
    found = [
        Denominator("required by accelkit", required()),
        Denominator("all that a device can be asked for", [name for name in names if not reasons[name]], dict(counts.most_common())),
    ]
    if theirs := torchcts_statuses():
        found.append(Denominator("TorchCTS: counted", theirs))
        found.append(Denominator("TorchCTS: covered", [name for name, status in theirs.items() if status.startswith("covered")]))
    return found


def torchcts_statuses() -> dict[str, str]:
    """Return TorchCTS's status of each overload that it counts for the installed torch; empty if TorchCTS is not installed."""
    if importlib.util.find_spec("torchcts") is None:
        return {}
    audit = importlib.import_module("torchcts.core.coverage").build_audit()
    uncounted = ("not_backend_relevant", "unavailable_in_pytorch_runtime")
    return {one["name"]: one["status"] for one in audit["entries"] if one["status"] not in uncounted}


def kind_of(name: str) -> str:
    """Return the kind of an overload, by which the missing overloads are grouped."""
    if reason := _reason_to_leave_out(name):
        return reason
    base, _, overload = name.removeprefix("aten::").partition(".")
    if overload.endswith("out") or overload in ("grad_input", "values", "indices"):
        return "out= of a copying view" if base.endswith("_copy") else "out= of a list" if base.startswith("_foreach") else "out="
    if "backward" in base:
        return "backward"
    if base.endswith("_"):
        return "in place"
    return "composite" if torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd") else "with a kernel"


def record(accelerator: str, tests: Sequence[str], seconds: float | None = None) -> tuple[set[str], int]:
    """Run checks on an accelerator, and return the overloads that they called and how many checks were run.

    Args:
        accelerator: The name of the accelerator.
        tests: The ids of the checks.
        seconds: If not None, no check starts later than this.
    """
    order = Order(find_subject(accelerator, "accelerator"), most_samples=_MOST_SAMPLES)
    runs = worker.Worker(order.as_request(), lambda answer: None)
    device_type = runs.subject.device_type
    recorder, simple = TraceRecorder(device_type), DispatchRecorder(device_type)
    start, done = time.monotonic(), 0
    for test in tests:
        if seconds is not None and time.monotonic() - start > seconds:
            break
        if "sparse" in test:  # a trace of sparse tensors crashes torch
            recorder.seen |= set(runs.record(test, simple))
        else:
            runs.record(test, recorder)
        done += 1
        sys.stderr.write(f"\r{done} of {len(tests)} checks, {len(recorder.seen)} overloads")
    sys.stderr.write("\n")
    return recorder.seen, done


def _reason_to_leave_out(name: str) -> str:
    schema = str(torch._C._dispatch_find_schema_or_throw(*_parts(name)).schema())
    if "Tensor" not in schema:
        return "without a tensor"
    if "Dimname" in schema or re.search(r"dimname|align_tensors|rename|\.names", name):
        return "named tensors"
    if name in _UNOBSERVED:
        return "torch's own tests and bookkeeping"
    return next((reason for reason, pattern in _LEFT_OUT.items() if re.search(pattern, name)), "")


def _parts(name: str) -> tuple[str, str]:
    base, _, overload = name.partition(".")
    return base, overload


def _report(found: Iterable[Denominator], seen: set[str], *, is_json: bool, missing: Path | None) -> None:
    rows = []
    for one in found:
        names = set(one.names)
        lacking = collections.defaultdict(list)
        for name in sorted(names - seen):
            lacking[kind_of(name)].append(name)
        row = {"title": one.title, "overloads": len(names), "seen": len(names & seen), "left_out": dict(one.left_out)}
        rows.append(row | {"missing": dict(sorted(lacking.items(), key=lambda item: -len(item[1])))})
    if missing is not None:
        missing.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    if is_json:
        print(json.dumps(rows))
        return
    print(f"{'':<40}{'overloads':>10}{'seen':>8}{'per cent':>10}")
    for row in rows:
        print(f"{row['title']:<40}{row['overloads']:>10}{row['seen']:>8}{row['seen'] / row['overloads']:>10.1%}")
    for row in rows:
        for title, counts in (("left out", row["left_out"]), ("missing", {kind: len(names) for kind, names in row["missing"].items()})):
            if counts:
                print(f"\n{row['title']}: {title}")
                print("\n".join(f"  {what:<40}{count:>8}" for what, count in counts.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--accelerator", default="cpu", metavar="NAME")
    parser.add_argument("--select", action="append", default=[], metavar="PATTERN", help="only checks that match, as in conformance run")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th check")
    parser.add_argument("--seconds", type=float, help="no check begins later than this")
    parser.add_argument("--missing", type=Path, metavar="PATH", help="write the names of the missing overloads to this file as well")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tests = profiles.suite("full", torch.__version__).tests
    tests = [test for test in (profiles.select(tests, options.select) if options.select else tests) if worker.is_recorded(test)]
    tests = tests[:: options.every]
    seen, done = record(options.accelerator, tests, options.seconds)
    if not options.json:
        print(f"{done} of {len(tests)} checks on {options.accelerator}, torch {torch.__version__}\n")
    _report(denominators(), seen, is_json=options.json, missing=options.missing)


if __name__ == "__main__":
    main()
