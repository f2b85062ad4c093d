"""Calls that must raise an error."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.late_errors import raises
from accelkit_conformance.oracle.device_streams import current_stream, make_event
from accelkit_conformance.results import NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_Call = Callable[[torch.Tensor], object]
_NUM_COPIED = 1 << 24

_MISTAKES: dict[str, _Call] = {
    "add": lambda x: x + x[:, :2],
    "mm": lambda x: x @ x,
    "cat": lambda x: torch.cat([x, x[:, :2]]),
    "view": lambda x: x.view(7),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.t() - 100),
    "layer_norm": lambda x: F.layer_norm(x, (7,)),
    "sum": lambda x: x.sum(5),
    "copy_": lambda x: x.copy_(torch.ones(7)),
    "index_select": lambda x: x.index_select(7, torch.tensor([0], device=x.device)),
    "backward": lambda x: x.requires_grad_().exp().backward(),
}
"""Mistakes that every device detects before it computes, by name. Each function is called with a matrix of 2 by 3 ones."""


def check_current_device(subject: Subject) -> None:
    """Check that an error leaves the current device and the current streams unchanged.

    The errors are raised by operators on a device that is not current, and by ``elapsed_time`` of this device's events.

    Raises:
        AssertionError: If another device or stream is current after an error, or if an error is neither a RuntimeError nor an IndexError
            (or, for ``elapsed_time``, a ValueError).
        NotSupported: If there is only one device.
    """
    other, module = subject.second_device(), subject.module
    has_streams = subject.capabilities.can("streams")
    streams = [current_stream(subject, device) for device in subject.devices] if has_streams else []
    mistakes: dict[str, Callable[[], object]] = {}
    for name, mistake in _MISTAKES.items():
        mistakes[name] = functools.partial(mistake, torch.ones(2, 3, device=other))
    if subject.capabilities.can("events") and hasattr(make_event(subject), "elapsed_time"):
        events = _events_without_a_time(subject, other)
        mistakes["elapsed_time"] = lambda: events[0].elapsed_time(events[1])
        _check_elapsed_time_of_running_work(subject, other)
    for name, make in mistakes.items():
        module.set_device(subject.device)
        with raises(subject, RuntimeError, IndexError, *([ValueError] if name == "elapsed_time" else []), doing=f"a mistake in {name}"):
            make()
        index = module.current_device()
        module.set_device(subject.device)
        assert index == subject.device.index, f"after an error of {name} on {other}, device {index} is current"
        if has_streams:
            found = [current_stream(subject, device) for device in subject.devices]
            assert found == streams, f"after an error of {name} on {other}, other streams are current"


def _check_elapsed_time_of_running_work(subject: Subject, device: torch.device) -> None:
    """Check that ``elapsed_time`` leaves the current device unchanged if the device may not have completed the second event yet.

    On some devices, ``elapsed_time`` raises an error in this case. On others, it waits for the event.

    Raises:
        AssertionError: If another device is current afterwards.
    """
    module = subject.module
    module.set_device(device)
    try:
        start, end = (make_event(subject, enable_timing=True) for _ in range(2))
        host = torch.ones(_NUM_COPIED, pin_memory=subject.capabilities.can("pinned_memory"))
        x = torch.ones(_NUM_COPIED, device=device)
        subject.accelerator.synchronize(device)
        start.record()
        for _ in range(4):
            x.copy_(host, non_blocking=True)
        end.record()
        module.set_device(subject.device)
        with contextlib.suppress(RuntimeError, ValueError):
            start.elapsed_time(end)
        index = module.current_device()
    finally:
        module.set_device(subject.device)
        subject.accelerator.synchronize(device)
    assert index == subject.device.index, f"after elapsed_time of events of {device}, device {index} is current"


def _events_without_a_time(subject: Subject, device: torch.device) -> tuple[Any, Any]:
    """Return two events of a device. The first is recorded, the second is not, so the time between them is not defined."""
    subject.module.set_device(device)
    try:
        start, end = (make_event(subject, enable_timing=True) for _ in range(2))
        start.record()
        start.synchronize()
    finally:
        subject.module.set_device(subject.device)
    return start, end


_FLOAT_OPERANDS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "add": lambda x, other: x + other,
    "add_": lambda x, other: x.add_(other),
    "add with out=": lambda x, other: torch.add(x, x, out=other),
    "mm": lambda x, other: x @ other,
    "cat": lambda x, other: torch.cat([x, other]),
    "lerp": lambda x, other: x.lerp(x, other),
    "linear": F.linear,
    "layer_norm": lambda x, other: F.layer_norm(x, (2,), other[0]),
}
"""Operators of two arguments, by name. Each function is called with two matrices of 2 by 2 ones that are on different devices."""
_SEVERAL_OPERANDS: dict[str, tuple[Callable[..., object], tuple[tuple[int, ...], ...]]] = {
    "linear with a bias": (F.linear, ((2, 3), (4, 3), (4,))),
    "addmm": (torch.addmm, ((2, 4), (2, 3), (3, 4))),
    "addmv": (torch.addmv, ((2,), (2, 3), (3,))),
    "baddbmm": (torch.baddbmm, ((5, 2, 4), (5, 2, 3), (5, 3, 4))),
    "addcmul": (torch.addcmul, ((2, 3), (2, 3), (2, 3))),
    "conv1d": (F.conv1d, ((1, 3, 5), (4, 3, 2), (4,))),
    "conv2d": (F.conv2d, ((1, 3, 5, 5), (4, 3, 2, 2), (4,))),
    "conv_transpose2d": (F.conv_transpose2d, ((1, 3, 5, 5), (3, 4, 2, 2), (4,))),
    "layer_norm with a bias": (lambda x, weight, bias: F.layer_norm(x, (3,), weight, bias), ((2, 3), (3,), (3,))),
    "group_norm": (lambda x, weight, bias: F.group_norm(x, 1, weight, bias), ((2, 3, 4), (3,), (3,))),
    "scaled_dot_product_attention": (F.scaled_dot_product_attention, ((1, 1, 4, 8), (1, 1, 4, 8), (1, 1, 4, 8))),
    "mse_loss": (F.mse_loss, ((2, 3), (2, 3))),
}
"""Operators of several float32 tensors, by name: a function, and the shapes of its arguments. Each argument in turn is on another device
than the others."""
_INDEX_OPERANDS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "index_select": lambda x, index: x.index_select(0, index),
    "gather": lambda x, index: x.gather(0, index.view(1, 2)),
    "scatter_": lambda x, index: x.scatter_(0, index.view(1, 2), 1.0),
    "index_add_": lambda x, index: x.index_add_(0, index, x.clone()),
    "embedding": lambda x, index: F.embedding(index, x),
}
"""Operators that take indices, by name. Each function is called with a matrix of 2 by 2 ones, and with the indices 0 and 1 on another
device. ``x[index]`` is left out, because torch itself copies its indices to the device of ``x``."""
_MASK_OPERANDS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "masked_fill": lambda x, mask: x.masked_fill(mask, 2.0),
    "where": lambda x, mask: torch.where(mask, x, x),
}
"""Operators that take a mask, by name. Each function is called with a matrix of 2 by 2 ones, and with a mask on another device."""


def check_two_devices(subject: Subject, where: str) -> None:
    """Check that operators raise RuntimeError if their arguments are on different devices. Failures are recorded in the subject.

    Args:
        subject: The plugin under test, with its device.
        where: Where one of the arguments is: ``the_cpu`` or ``another_device``.

    Raises:
        NotSupported: If ``where`` is ``the_cpu`` and the device is the CPU, or if ``where`` is ``another_device`` and there is only one
            device.
    """
    if where == "the_cpu" and subject.device_type == "cpu":
        raise NotSupported("the device is the CPU")
    other = torch.device("cpu") if where == "the_cpu" else subject.second_device()
    groups = [(_FLOAT_OPERANDS, torch.ones(2, 2))]
    groups += [] if subject.lacks("int64") else [(_INDEX_OPERANDS, torch.tensor([0, 1]))]
    groups += [] if subject.lacks("bool") else [(_MASK_OPERANDS, torch.ones(2, 2) > 0)]
    for calls, argument in groups:
        for name, call in calls.items():
            x, elsewhere = torch.ones(2, 2, device=subject.device), argument.to(other)
            with (
                subject.sample(name, {"name": name}),
                raises(subject, RuntimeError, doing=f"{name} of arguments on {subject.device} and on {other}"),
            ):
                call(x, elsewhere)
    for name, (call, shapes) in _SEVERAL_OPERANDS.items():
        for place in range(len(shapes)):
            given = [torch.ones(shape, device=other if number == place else subject.device) for number, shape in enumerate(shapes)]
            doing = f"{name} with argument {place} on {other} and the others on {subject.device}"
            with subject.sample(doing, {"name": name, "place": place}), raises(subject, RuntimeError, doing=doing):
                call(*given)


def check_batches_of_matrices(subject: Subject) -> None:
    """Check that linear algebra functions report a singular matrix, wherever it is in a batch.

    A failure is recorded in the subject if ``cholesky``, ``inv``, ``solve`` or ``lu_factor`` does not raise RuntimeError.

    Raises:
        AssertionError: If ``cholesky_ex`` or ``inv_ex`` reports no matrix or the wrong matrices.
        NotSupported: If the device lacks int32. torch's kernels report failed factorisations in a tensor of this dtype.
    """
    subject.needs("int32")
    linalg = torch.linalg
    for place in range(3):
        here = torch.eye(3).repeat(3, 1, 1)
        here[place] = 0
        batch = here.to(subject.device)
        calls: dict[str, Callable[[], object]] = {
            "cholesky": lambda batch=batch: linalg.cholesky(batch),
            "inv": lambda batch=batch: linalg.inv(batch),
            "solve": lambda batch=batch: linalg.solve(batch, torch.ones(3, 3, 1, device=subject.device)),
            "lu_factor": lambda batch=batch: linalg.lu_factor(batch),
        }
        for name, call in calls.items():
            with (
                subject.sample(f"{name} of matrix {place}", {"name": name, "place": place}),
                raises(subject, RuntimeError, doing=f"linalg.{name} of a batch of 3 matrices, of which number {place} is zero"),
            ):
                call()
        for name, function in {"cholesky_ex": linalg.cholesky_ex, "inv_ex": linalg.inv_ex}.items():
            try:
                info = function(batch).info.tolist()
            except NotImplementedError:  # tests of the operator report this
                continue
            failed = [number for number, value in enumerate(info) if value]
            assert failed == [place], f"linalg.{name} reports that the matrices {failed} of a batch failed, instead of matrix {place}"


_ROWS = torch.arange(12.0).view(4, 3)
_WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "add_": lambda x, rows: x.add_(rows),
    "mul_": lambda x, rows: x.mul_(rows),
    "copy_": lambda x, rows: x.copy_(rows),
    "lerp_": lambda x, rows: x.lerp_(rows, 0.5),
    "addcmul_": lambda x, rows: x.addcmul_(rows, rows),
    "add with out=": lambda x, rows: torch.add(rows, 1, out=x),
    "exp with out=": lambda x, rows: torch.exp(rows / 12, out=x),
}
"""Calls that write a different value to each element of their first argument, by name."""


def check_expanded_tensors(subject: Subject) -> None:
    """Check calls that write different values to the elements of an expanded tensor.

    Each call must either raise RuntimeError or give every element the right value. Wrong values and other errors are recorded in the
    subject.
    """
    for name, write in _WRITES.items():
        expected = torch.ones(4, 3)
        write(expected, _ROWS)
        x = torch.ones(1, 3, device=subject.device).expand(4, 3)
        with subject.sample(name, {"name": name}):
            try:
                write(x, _ROWS.to(subject.device))
                found = x.cpu()
            except RuntimeError:
                continue
            is_right = torch.allclose(found, expected, rtol=1e-3)
            assert is_right, f"{name} wrote {found.tolist()} to an expanded tensor instead of raising an error"
