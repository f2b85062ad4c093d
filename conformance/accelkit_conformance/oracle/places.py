"""Run a call on another device, in another thread, on another stream, after an error, or before ``empty_cache``. Check the current device
of each thread."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.late_errors import raises
from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.compared_calls import compare_call
from accelkit_conformance.oracle.device_streams import current_stream, is_accelerator, make_stream, on_stream
from accelkit_conformance.oracle.lacking_dtypes import possible_samples
from accelkit_conformance.oracle.op_compare import compare_backward, compare_forward
from accelkit_conformance.oracle.queued_copies import set_to_zero
from accelkit_conformance.oracle.reproducer import describe_sample, facts_of

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_SAMPLES = 3
"""The maximum number of inputs with which an operator is tested on another device."""
_OTHER_DTYPES = ("float64", "int64", "complex64", "bool")


def run_at(
    subject: Subject, place: str, device: torch.device, call: Callable[[], list[Any]], arguments: Iterable[torch.Tensor] = ()
) -> list[Any]:
    """Run ``call`` under the condition ``place`` (a value of ``condition_rows.AXES["place"]``) and return the result of ``call``.

    The condition ``another current device`` makes ``device`` current, ``another stream`` makes a stream of ``device`` current, and ``after
    an error`` first makes an operator fail on ``device``. ``a busy stream`` makes a stream of ``device`` current and queues copies on it.
    These copies write the values of ``arguments``, which are the tensors that ``call`` reads. ``another thread`` runs ``call`` in a new
    thread. ``followed by empty_cache`` calls the function ``empty_cache`` of the device's module right after ``call``, without waiting for
    the work that ``call`` has queued. All other conditions only run ``call``. An error that ``call`` raises is raised here, too.
    """
    if place == "another current device":
        with subject.module.device(device):
            return call()
    if place in ("another stream", "a busy stream"):
        restore = set_to_zero(arguments, device) if place == "a busy stream" else lambda: None
        stream = make_stream(subject, device)
        stream.wait_stream(current_stream(subject, device))
        with on_stream(subject, stream):
            restore()
            found = call()
        stream.synchronize()
        return found
    if place == "after an error":
        with contextlib.suppress(Exception), torch.no_grad():
            torch.ones(2, device=device) @ torch.ones(3, device=device)
        return call()
    if place == "followed by empty_cache":
        found = call()
        subject.function("empty_cache")()
        return found
    if place != "another thread":
        return call()
    found_or_error: list[Any] = []

    def run() -> None:
        try:
            found_or_error.append(call())
        except Exception as error:
            found_or_error.append(error)

    thread = threading.Thread(target=run, name="accelkit-conformance-call")
    thread.start()
    thread.join()
    if isinstance(found_or_error[0], Exception):
        raise found_or_error[0]
    return found_or_error[0]  # type: ignore[no-any-return]


def on_each_device(subject: Subject) -> Iterator[Subject]:
    """Yield the subject and, if there is a second device, a copy of the subject whose device is the second device.

    The first device stays current. What the copy records is also recorded in the subject.
    """
    yield subject
    if subject.capabilities.can("numbered_devices") and len(subject.devices) > 1:
        elsewhere = copy.copy(subject)
        elsewhere.device = subject.second_device()
        yield elsewhere
        subject.num_samples = elsewhere.num_samples


def check_operator_on_another_device(subject: Subject, name: str) -> None:
    """Compare the results and gradients of an operator of ``op_db`` with those on the CPU, for samples on a device that is not current.

    The arguments are float32 tensors on a device other than the one under test. If another device can be made current, the operator is also
    called with arguments on the device under test while another device is current. Pointwise operators with two operands are also called
    with a number as the first or the second operand. One sample of each dtype in ``_OTHER_DTYPES`` that the operator and the device support
    is compared too, without gradients. Differences are recorded in the subject.

    Raises:
        NotSupported: If there is only one device, or if the device lacks a dtype that the operator needs.
    """
    op = opdb.operators()[name]
    is_differentiable = opdb.supports(op, "float32", backward=True)
    other, make_current = subject.second_device(), subject.optional_function("device")
    elsewhere = copy.copy(subject)
    elsewhere.device = other
    tested = [(elsewhere, contextlib.nullcontext), *([(subject, functools.partial(make_current, other))] if make_current else [])]
    for sample in possible_samples(subject, op, opdb.samples(op, "float32", _SAMPLES, requires_grad=is_differentiable)):
        given = (sample.input, sample.args, sample.kwargs)
        for one, context in tested:
            with subject.sample(f"{describe_sample(given)}, on {one.device}", facts_of(given, "float32")), context():
                compare_forward(one, op, given)
                if is_differentiable:
                    compare_backward(one, op, sample, given)
    for dtype in _OTHER_DTYPES:
        if opdb.supports(op, dtype) and subject.capabilities.can(f"dtype.{dtype}"):
            for sample in possible_samples(subject, op, opdb.samples(op, dtype, 1)):
                given = (sample.input, sample.args, sample.kwargs)
                with subject.sample(f"{describe_sample(given)}, on {other}", facts_of(given, dtype)):
                    compare_forward(elsewhere, op, given)
    if not opdb.is_pointwise(op) or opdb.num_arguments(op) != 2:
        return
    x = torch.linspace(0.2, 0.9, 5)
    for operands, (one, context) in itertools.product([(x, 2.5), *([] if name.startswith("__r") else [(2.5, x)])], tested):
        with subject.sample(f"{describe_sample((operands, (), {}))}, on {one.device}", {"name": name}), context():
            compare_call(one, op, operands)


def check_current_device(subject: Subject) -> None:
    """Check that the context manager ``device`` of the device module makes a device current, and restores the previous device on exit.

    Also check that ``setup_device`` makes a device current.

    Raises:
        AssertionError: If the wrong device is current.
        NotSupported: If there is only one device.
    """
    other, module = subject.second_device(), subject.module
    assert module.current_device() == subject.device.index
    with module.device(other):
        assert module.current_device() == other.index
        assert torch.empty(1, device=subject.device_type).device == other
    assert module.current_device() == subject.device.index, "leaving the context did not restore the current device"
    with contextlib.suppress(RuntimeError), module.device(other):
        torch.ones(2, device=other) @ torch.ones(3, device=other)
    assert module.current_device() == subject.device.index, "leaving the context through an error did not restore the current device"
    assert torch.empty(1, device=subject.device_type).device == subject.device
    try:
        subject.accelerator.setup_device(other)
        assert torch.empty(1, device=subject.device_type).device == other, "setup_device did not make the device current"
    finally:
        subject.accelerator.setup_device(subject.device)


def check_devices_of_threads(subject: Subject) -> None:
    """Check that making a device current in one thread does not change the current device of another thread.

    Raises:
        AssertionError: If the wrong device is current in a thread.
        NotSupported: If there is only one device.
    """
    other, module = subject.second_device(), subject.module
    found: dict[str, int] = {}
    is_set, is_seen = threading.Event(), threading.Event()

    def run() -> None:
        with module.device(other):
            found["inside"] = module.current_device()
            is_set.set()
            is_seen.wait(10)
            found["later"] = module.current_device()
        module.set_device(other)

    thread = threading.Thread(target=run, name="accelkit-conformance-device")
    thread.start()
    is_set.wait(10)
    current, made = module.current_device(), torch.empty(1, device=subject.device_type).device
    module.set_device(subject.device)
    is_seen.set()
    thread.join()
    inside, later = found.get("inside"), found.get("later")
    assert inside == later == other.index, (
        f"in a thread on {other}, the current device was {inside}, and {later} after the main thread chose {subject.device}"
    )
    for when, index in {"while another thread used": current, "after another thread chose": module.current_device()}.items():
        assert index == subject.device.index, f"{when} {other}, the current device was {index}, not {subject.device.index}"
    assert made == subject.device, f"while another thread used {other}, a tensor without an index was created on {made}"


def check_failed_selections(subject: Subject) -> None:
    """Check that an attempt to select a device that does not exist raises an error, and leaves the current device unchanged.

    Raises:
        AssertionError: If no error is raised, or if the current device changes.
        NotSupported: If there is only one device.
    """
    other, module = subject.second_device(), subject.module
    missing = len(subject.devices) + 7

    def enter() -> None:
        with module.device(missing):
            pass

    ways: dict[str, Callable[[], Any]] = {
        "set_device": lambda: module.set_device(missing),
        "the context manager": enter,
    }
    if is_accelerator(subject):
        ways["torch.accelerator.set_device_index"] = lambda: torch.accelerator.set_device_index(missing)
    for current in (subject.device, other):
        for way, select in ways.items():
            with module.device(current):
                with raises(subject, RuntimeError, AssertionError, ValueError, doing=f"selecting device {missing} with {way}"):
                    select()
                found, made = module.current_device(), torch.empty(1, device=subject.device_type).device
            assert found == current.index, f"after {way} has failed on {current}, device {found} is current"
            assert made == current, f"after {way} has failed on {current}, a tensor without an index was created on {made}"


def check_devices_of_backward(subject: Subject) -> None:
    """Check that the right device is current while a backward pass calls hooks and the ``backward`` of custom functions.

    During each of these calls, the device of the gradient must be current. After the backward pass, the previous device must be current
    again.

    Raises:
        AssertionError: If the wrong device is current during these calls, or after the backward pass.
        NotSupported: If there is only one device.
    """
    other, module = subject.second_device(), subject.module
    seen: dict[str, tuple[int, torch.device]] = {}

    def note(what: str) -> None:
        seen[what] = (module.current_device(), torch.empty(1, device=subject.device_type).device)

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            note("the backward of a custom function")
            return gradients[0] * 2

    for device in (subject.device, other):
        seen.clear()
        x = torch.ones(3, device=device, requires_grad=True)
        x.register_post_accumulate_grad_hook(lambda leaf: note("the hook of an accumulated gradient"))
        y = Double.apply(x)
        y.register_hook(lambda gradient: note("the hook of a tensor"))  # type: ignore[no-untyped-call]
        y.sum().backward()  # type: ignore[no-untyped-call]
        assert len(seen) == 3, f"a backward pass on {device} called only {', '.join(seen) or 'no hook'}"
        for what, (index, made) in seen.items():
            assert index == device.index, f"in {what} on {device}, device {index} is current"
            assert made == device, f"in {what} on {device}, a tensor without an index was created on {made}"
        current = module.current_device()
        assert current == subject.device.index, f"after a backward pass on {device}, device {current} is current"


def check_named_device(subject: Subject) -> None:
    """Check that modules, optimizer states and a Runtime use exactly the subject's device, and not another device of the same type.

    Raises:
        AssertionError: If a tensor or the Runtime is on another device.
    """
    from accelkit_conformance.oracle.layers import batch_norm

    module = torch.nn.Sequential(torch.nn.Linear(3, 3), batch_norm(subject, 3)).to(subject.device)
    subject.assert_on_device(*module.parameters(), *module.buffers())
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.randn(4, 3, device=subject.device)).sum().backward()
    optimizer.step()
    for state in optimizer.state.values():
        subject.assert_on_device(state["exp_avg"], state["exp_avg_sq"])
    with subject.device:
        subject.assert_on_device(torch.zeros(2), torch.nn.Linear(2, 2).weight)
    runtime = subject.runtime()
    assert runtime.device == subject.device, f"Runtime uses {runtime.device}"
    subject.assert_on_device(runtime.prepare(torch.nn.Linear(2, 2)).weight)
