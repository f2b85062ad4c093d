"""Calls that are the first to use the device in a process.

``check_first_calls`` runs this module in a new process, which loads the plugin but does not use the device. For each call, this process
forks a child process, which makes the call and then uses the device.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from accelkit import PluginRecord
from accelkit.discovery import loading
from accelkit_conformance.results import NotSupported
from accelkit_conformance.subprocess_checks import about, answer, ask, received

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_SECONDS = 20.0
_AT_ONCE = 4
_MODULE_FUNCTIONS = (
    "current_device", "current_stream", "default_stream", "device_count", "empty_cache", "get_device_capability", "get_device_name",
    "get_device_properties", "get_rng_state", "initial_seed", "is_available", "is_bf16_supported", "manual_seed", "max_memory_allocated",
    "mem_get_info", "memory_allocated", "memory_reserved", "memory_snapshot", "memory_stats", "memory_summary", "reset_peak_memory_stats",
    "seed", "seed_all", "set_device", "synchronize", "Event", "Stream",
)  # fmt: skip
_ACCELERATOR_FUNCTIONS = (
    "current_device_index", "current_stream", "device_count", "empty_cache", "get_memory_info", "memory_allocated", "memory_stats",
    "reset_peak_memory_stats", "set_device_index", "synchronize",
)  # fmt: skip
_TAKE_A_DEVICE = (
    "current_stream", "get_device", "get_memory", "max_memory", "mem_get", "memory_allocated", "memory_reserved", "memory_stats",
    "set_device",
)  # fmt: skip
_QUERIES = ("is_available", "device_count")
_CONSTANTS = re.compile(r"current_device|device_count|get_device_(capability|name)|initial_seed|is_|manual_seed|synchronize")
_RANDOM = re.compile(r"rand|rng")
_UNARY = (
    "tanh", "abs", "sin", "cos", "exp", "log", "sqrt", "rsqrt", "sigmoid", "floor", "ceil", "neg", "reciprocal", "expm1", "log10",
)  # fmt: skip
_NUM_PROCESSES_OF_UNARY = 3


def check_first_calls(subject: Subject) -> None:
    """Check calls that are the first to use the device in a process.

    Each call is made in a process of its own, and made again after the device has been used. One of the calls uses the device in several
    threads. In further processes, as many threads as there are operators in ``_UNARY`` each call one of these operators for the first time.
    Finally, a process is forked after functions that only describe devices have been called. A call that fails, crashes, hangs, or
    gives a result that differs in kind from the result of the later call is recorded in the subject.

    Raises:
        NotSupported: If the device cannot be used in a forked process although the parent process has not used it, or if the operating
            system cannot fork processes.
    """
    if not hasattr(os, "fork"):
        raise NotSupported("this system cannot fork processes")
    found = ask(__name__, about(subject.record), 160.0 + subject.first_call_timeout)
    if found["unsupported"]:
        raise NotSupported(found["unsupported"])
    for name, failure in found["failures"].items():
        with subject.sample(name, {"name": name}):
            assert not failure, f"{name} as the first use of the device in a process: {failure}"


def _calls(module: Any, device: Any) -> dict[str, Callable[[], Any]]:
    """Return calls that may be the first use of the device, by name."""
    import torch

    calls: dict[str, Callable[[], Any]] = {
        "Generator": lambda: torch.Generator(device=device).manual_seed(3),
        "torch.manual_seed": lambda: torch.manual_seed(3),
        "rand": lambda: torch.rand(3, device=device),
        "randn with a generator": lambda: torch.randn(3, device=device, generator=torch.Generator(device=device)),
        "Tensor.to": lambda: torch.ones(3).to(device, non_blocking=True),
        "tensor": lambda: torch.tensor([1.0, 2.0], device=device),
        "is_pinned": lambda: torch.ones(3).is_pinned(),
        "pin_memory": lambda: torch.ones(3).pin_memory(),
        "zeros of pinned memory": lambda: torch.zeros(3, pin_memory=True),
        "DataLoader with pinned memory": lambda: next(iter(torch.utils.data.DataLoader([1.0, 2.0], pin_memory=True))),  # type: ignore[arg-type]
        "Module.to": lambda: torch.nn.Linear(3, 3).to(device),
        "with device": lambda: _made_in(device),
        "autocast": lambda: _autocast(device),
        "torch.load": lambda: torch.load(_file(), map_location=device),
        "fork_rng": lambda: _forked_rng(device),
        "backward": lambda: torch.ones(3, device=device, requires_grad=True).sum().backward(),  # type: ignore[no-untyped-call]
    }
    current = torch.accelerator.current_accelerator()
    sources = {f"torch.{device.type}": (module, _MODULE_FUNCTIONS)}
    if current is not None and current.type == device.type:
        sources["torch.accelerator"] = (torch.accelerator, _ACCELERATOR_FUNCTIONS)
        calls |= {"torch.Stream": lambda: torch.Stream(device=device), "torch.Event": lambda: torch.Event(device).record()}
    for source, (owner, names) in sources.items():
        for name in names:
            if (function := getattr(owner, name, None)) is None:
                continue
            if name == "manual_seed":
                calls[f"{source}.{name}"] = lambda function=function: function(3)  # type: ignore[misc]
            elif not name.startswith("set_device"):
                calls[f"{source}.{name}"] = function
            if name.startswith(_TAKE_A_DEVICE) and device.index is not None:
                for form in (device.index, str(device)):
                    calls[f"{source}.{name}({form!r})"] = lambda function=function, form=form: function(form)  # type: ignore[misc]
    return calls


def _made_in(device: Any) -> Any:
    import torch

    with device:
        return torch.zeros(3)


def _autocast(device: Any) -> Any:
    import torch

    with torch.autocast(device.type):
        return torch.ones(3, 3, device=device) @ torch.ones(3, 3, device=device)


def _file() -> io.BytesIO:
    import torch

    file = io.BytesIO()
    torch.save(torch.ones(3), file)
    file.seek(0)
    return file


def _forked_rng(device: Any) -> Any:
    import torch

    with torch.random.fork_rng(devices=[device.index or 0], device_type=device.type):
        return torch.rand(3, device=device)


def _error_of(call: Callable[[], Any]) -> str:
    """Make a call, and return its error as text. Return an empty string if it raises none."""
    try:
        call()
    except RuntimeError as error:
        return f"RuntimeError: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _use(device: Any) -> None:
    """Use the device."""
    import torch

    total = float((torch.ones(3, device=device) * 2).sum())
    assert total == 6, f"2 + 2 + 2 is {total}, not 6"


def _first(name: str, call: Callable[[], Any], device: Any) -> str:
    """Make a call, then use the device and make the call again. Return what is wrong, or an empty string."""
    results: list[list[object]] = []

    def describe() -> None:
        results.append(_description(name, call()))

    before = _error_of(describe)
    if unusable := _error_of(lambda: _use(device)):
        return f"the device does not work afterwards: {unusable}"
    if _error_of(describe):
        return ""
    if before:
        return f"{before}, but no error after the device has been used"
    first, second = results
    return f"gave {first}, but {second} after the device has been used" if first != second else ""


def _description(name: str, result: Any) -> list[object]:
    """Return what must be the same for the first call and for a later call: the type of the result and, for tensors, streams, generators
    and constants, its properties."""
    import torch

    found: list[object] = [type(result).__name__]
    for one in result.parameters() if isinstance(result, torch.nn.Module) else [result]:
        if isinstance(one, torch.Tensor):
            found += [str(one.device), str(one.dtype), list(one.shape), one.device.type == "cpu" and one.is_pinned()]
            found += [] if _RANDOM.search(name) or isinstance(result, torch.nn.Module) else one.tolist()
        elif isinstance(one, torch.Generator):
            found += [str(one.device), one.initial_seed()]
        elif isinstance(one, torch.Stream):
            found += [str(one.device), one.stream_id if "Stream" not in name else None]
        elif isinstance(one, str | int | float | tuple) and _CONSTANTS.search(name):
            found.append(one)
    return found


def _in_threads(device: Any) -> str:
    """Run programs that use only float32 in several threads, and return what is wrong, or an empty string."""
    from accelkit_conformance.oracle import concurrent_threads

    names = ("factories", "pointwise", "products", "reductions", "layers", "item", "copies", "backward", "memory")

    def run(number: int) -> dict[str, list[float]]:
        order = names[number:] + names[:number]
        return {name: concurrent_threads.as_numbers(concurrent_threads.PROGRAMS[name](device, number)) for name in order}

    def compare() -> None:
        calls = [lambda number=number: run(number) for number in range(1, 5)]  # type: ignore[misc]
        for number, found in enumerate(concurrent_threads.run_together(calls), 1):
            for name, expected in run(number).items():
                concurrent_threads.check_equal(found[name], expected, name)

    return _error_of(compare)


def _operators_in_threads(device: Any) -> str:
    """Call each operator in ``_UNARY`` for the first time, each in a thread of its own, all at the same time. Return what is wrong, or an
    empty string."""
    import torch

    from accelkit_conformance.oracle import concurrent_threads

    def compare() -> None:
        here = torch.linspace(0.3, 2.6, 24)
        there = here.to(device)
        calls = [lambda name=name: getattr(there, name)().tolist() for name in _UNARY]  # type: ignore[misc]
        for name, found in zip(_UNARY, concurrent_threads.run_together(calls), strict=True):
            concurrent_threads.check_equal(found, getattr(here, name)().tolist(), name)

    return _error_of(compare)


class _Fork:
    """A child process, forked from this process, that makes a call and then ends."""

    def __init__(self, call: Callable[[], str]) -> None:
        self._reader, writer = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            with contextlib.suppress(BaseException):
                os.write(writer, f"done {call()}".encode()[:3000])
            os._exit(0)
        os.close(writer)

    def outcome(self) -> str:
        """Wait for the child process to end. Return the text that the call returned, or how the process ended without it."""
        deadline = time.monotonic() + _SECONDS
        status = None
        while status is None and time.monotonic() < deadline:
            ended, code = os.waitpid(self._child, os.WNOHANG)
            status = os.waitstatus_to_exitcode(code) if ended else None
            time.sleep(0.002)
        if status is None:
            os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)
        with os.fdopen(self._reader, "rb") as pipe:
            text = pipe.read().decode()
        if status is None:
            return "the process hung"
        return text.removeprefix("done ") if text.startswith("done ") else f"the process ended with status {status}"


def _findings(record: PluginRecord) -> dict[str, Any]:
    """Return what ``check_first_calls`` reads: why the check is not supported, and what is wrong with each call."""
    import torch

    instance: Any = loading.instantiate(loading.load_class(record), record)
    instance.load()
    device, module = instance.device(0), instance.device_module
    if device.type != "cpu" and getattr(module, "is_initialized", bool)():
        return {"unsupported": "loading the plugin initialises the driver", "failures": {}}
    if failure := _Fork(lambda: _error_of(lambda: _use(device))).outcome():
        return {"unsupported": f"a forked process cannot use the device: {failure}", "failures": {}}
    calls = {name: lambda name=name, call=call: _first(name, call, device) for name, call in _calls(module, device).items()}  # type: ignore[misc]
    calls["work in several threads"] = lambda: _in_threads(device)
    for number in range(1, _NUM_PROCESSES_OF_UNARY + 1):
        calls[f"{len(_UNARY)} operators in as many threads, process {number}"] = lambda: _operators_in_threads(device)
    failures: dict[str, str] = {}
    names = [*calls]
    for start in range(0, len(names), _AT_ONCE):
        forks = {name: _Fork(calls[name]) for name in names[start : start + _AT_ONCE]}
        failures |= {name: fork.outcome() for name, fork in forks.items()}
    for owner, name in itertools.product((module, torch.accelerator), _QUERIES):
        getattr(owner, name, bool)()
    torch.accelerator.current_accelerator()
    torch.get_device_module(device)
    after = _Fork(lambda: _error_of(lambda: _use(device))).outcome()
    return {"unsupported": "", "failures": failures | {"a fork after queries": "" if after.startswith("RuntimeError") else after}}


def main() -> None:
    _, record = received()
    answer(_findings(record))


if __name__ == "__main__":
    main()
