"""Checks of deterministic mode.

They test calls that could otherwise give a different result each time, the option ``warn_only=True``, and the filling of new memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # the usual name
from torch import nn

from accelkit_conformance.profiles.operators import DTYPES

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def _gradients(make: Callable[..., Any], *shapes: tuple[int, ...]) -> Callable[[Any], torch.Tensor]:
    """Return a function that takes a device and calls ``make`` with random tensors of these shapes on the device.

    The function returns the gradients of these tensors as one vector.
    """

    def call(device: Any) -> torch.Tensor:
        generator = torch.Generator().manual_seed(4)
        inputs = [torch.randn(shape, generator=generator).to(device).requires_grad_() for shape in shapes]
        result = make(*inputs)
        weights = torch.randn(result.shape, generator=generator).to(device)
        return torch.cat([one.flatten() for one in torch.autograd.grad((result * weights).sum(), inputs)])

    return call


def _index(device: Any, most: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, most, shape, generator=torch.Generator().manual_seed(6)).to(device)


def _values(device: Any, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7)).to(device)


def _assigned(device: Any) -> torch.Tensor:
    x = torch.zeros(50, device=device)
    x[_index(device, 50, 5000)] = _values(device, 5000)
    return x


def _check_assigned(found: torch.Tensor, values: torch.Tensor) -> None:
    """Check the result of an assignment in which several values were assigned to the same element.

    Each element of ``found`` must have one of the values that were assigned to it.

    ``values[k]`` was assigned to ``found[index[k]]``, where ``index`` is ``_index("cpu", len(found), len(values))``.
    """
    index = _index("cpu", len(found), len(values))
    for place, row in enumerate(found):
        is_right = bool((values[index == place] == row).any(0).all())
        assert is_right, f"an element has none of the values that were assigned to it: index {place}, value {row.tolist()}"


def _of_equal_elements(choose: Callable[[torch.Tensor], Any], *shape: int, dtype: str = "float32") -> Callable[[Any], torch.Tensor]:
    """Return a function that takes a device and calls ``choose`` with a tensor of this shape whose elements have only seven values.

    The function concatenates the values and indices that ``choose`` returns into one vector.
    """

    def call(device: Any) -> torch.Tensor:
        found = choose(_index(device, 7, *shape).to(getattr(torch, dtype)))
        return torch.cat([one.flatten().float() for one in (found if isinstance(found, tuple) else (found,))])

    return call


def _lstm(device: Any) -> torch.Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        module = nn.LSTM(8, 16, num_layers=2).to(device)
    module(_values(device, 9, 4, 8))[0].square().sum().backward()
    return torch.cat([one.grad.flatten() for one in module.parameters() if one.grad is not None])


REPEATED: dict[str, Callable[[Any], torch.Tensor]] = {
    "assignment": _assigned,
    "scatter": lambda device: torch.zeros(50, device=device).scatter(0, _index(device, 50, 5000), _values(device, 5000)),
    "index_copy": lambda device: torch.zeros(50, 3, device=device).index_copy(0, _index(device, 50, 900), _values(device, 900, 3)),
    "scatter_reduce_mean": lambda device: torch.zeros(50, device=device).scatter_reduce(
        0, _index(device, 50, 5000), _values(device, 5000), "mean"
    ),
    "scatter_reduce_prod": lambda device: torch.ones(50, device=device).scatter_reduce(
        0, _index(device, 50, 5000), _values(device, 5000), "prod"
    ),
    "index_reduce": lambda device: torch.ones(50, 2, device=device).index_reduce(
        0, _index(device, 50, 900), _values(device, 900, 2), "mean"
    ),
    "bincount": lambda device: _index(device, 50, 5000).bincount(weights=_values(device, 5000)),
    "embedding_bag": _gradients(lambda table: F.embedding_bag(_index(table.device, 40, 300, 9), table), (40, 8)),
    "gather": _gradients(lambda x: x.gather(0, _index(x.device, 30, 900, 4)), (30, 4)),
    "index_select": _gradients(lambda x: x.index_select(0, _index(x.device, 30, 900)), (30, 4)),
    "indexing": _gradients(lambda x: x[_index(x.device, 30, 900), _index(x.device, 4, 900)], (30, 4)),
    "repeat_interleave": _gradients(lambda x: x.repeat_interleave(_index(x.device, 9, 30), 0), (30, 4)),
    "expand": _gradients(lambda x, y: x + y, (1, 64), (900, 64)),
    "interpolate_bicubic": _gradients(lambda x: F.interpolate(x, scale_factor=2.3, mode="bicubic"), (2, 3, 9, 9)),
    "interpolate_nearest": _gradients(lambda x: F.interpolate(x, scale_factor=2.3, mode="nearest"), (2, 3, 9, 9)),
    "interpolate_linear": _gradients(lambda x: F.interpolate(x, scale_factor=2.3, mode="linear"), (2, 3, 40)),
    "interpolate_trilinear": _gradients(lambda x: F.interpolate(x, scale_factor=2.3, mode="trilinear"), (2, 3, 5, 5, 5)),
    "grid_sample": _gradients(lambda x, y: F.grid_sample(x, y, align_corners=False), (2, 3, 9, 9), (2, 20, 20, 2)),
    "adaptive_avg_pool2d": _gradients(lambda x: F.adaptive_avg_pool2d(x, 5), (2, 3, 13, 13)),
    "adaptive_max_pool2d": _gradients(lambda x: F.adaptive_max_pool2d(x, 5), (2, 3, 13, 13)),
    "avg_pool3d": _gradients(lambda x: F.avg_pool3d(x, 3, 1), (2, 3, 7, 7, 7)),
    "max_pool3d": _gradients(lambda x: F.max_pool3d(x, 3, 1), (2, 3, 7, 7, 7)),
    "reflection_pad": _gradients(lambda x: F.pad(x, (3, 3, 3, 3), mode="reflect"), (2, 3, 9, 9)),
    "replication_pad": _gradients(lambda x: F.pad(x, (3, 3, 3, 3), mode="replicate"), (2, 3, 9, 9)),
    "conv1d": _gradients(F.conv1d, (4, 6, 50), (8, 6, 5), (8,)),
    "conv3d": _gradients(F.conv3d, (2, 3, 8, 8, 8), (4, 3, 3, 3, 3)),
    "conv_transpose2d": _gradients(F.conv_transpose2d, (2, 8, 9, 9), (8, 3, 3, 3)),
    "fold": _gradients(lambda x: F.fold(x, (12, 12), 3), (2, 27, 100)),
    "nll_loss": _gradients(lambda x: F.nll_loss(x.log_softmax(1), _index(x.device, 5, 3, 16, 16), reduction="none"), (3, 5, 16, 16)),
    "ctc_loss": _gradients(
        lambda x: F.ctc_loss(x.log_softmax(2), _index(x.device, 8, 4, 6) + 1, torch.full((4,), 30), torch.full((4,), 6), reduction="none"),
        (30, 4, 10),
    ),
    "layer_norm": _gradients(lambda x, w, b: F.layer_norm(x, (32,), w, b), (500, 32), (32,), (32,)),
    "group_norm": _gradients(lambda x, w, b: F.group_norm(x, 4, w, b), (20, 16, 9, 9), (16,), (16,)),
    "batch_norm": _gradients(lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), (20, 16, 9, 9), (16,), (16,)),
    "attention": _gradients(F.scaled_dot_product_attention, (2, 4, 70, 16), (2, 4, 70, 16), (2, 4, 70, 16)),
    "cdist": _gradients(torch.cdist, (60, 8), (70, 8)),
    "prelu": _gradients(F.prelu, (200, 6, 9), (6,)),
    "cumprod": lambda device: (_values(device, 40, 90) / 9 + 1).cumprod(1),
    "logcumsumexp": lambda device: _values(device, 40, 90).logcumsumexp(1),
    "median": lambda device: torch.cat([one.double() for one in _index(device, 5, 60, 90).float().median(1)]),
    "kthvalue": lambda device: torch.cat([one.double() for one in _index(device, 5, 60, 90).float().kthvalue(40, 1)]),
    "topk": _of_equal_elements(lambda x: x.topk(17), 3, 200_000),
    "topk_in_bfloat16": _of_equal_elements(lambda x: x.topk(17), 3, 200_000, dtype="bfloat16"),
    "mode": _of_equal_elements(lambda x: x.mode(), 60, 900),
    "sort": _of_equal_elements(lambda x: x.sort(stable=False), 3, 9000),
    "argsort": _of_equal_elements(lambda x: x.argsort(0), 9000, 3),
    "unique": _of_equal_elements(lambda x: x.unique(return_inverse=True), 9000),
    "argmax": _of_equal_elements(lambda x: x.argmax(1), 3, 200_000),
    "mean": lambda device: _values(device, 300, 900).mean(),
    "norm": lambda device: torch.stack([_values(device, 300, 900).norm(), torch.linalg.vector_norm(_values(device, 270_001))]),
    "var": lambda device: torch.cat([_values(device, 300, 900).var(0), _values(device, 300, 900).std(1)]),
    "bmm": lambda device: _values(device, 9, 60, 70) @ _values(device, 9, 70, 80),
    "LSTM": _lstm,
}
"""Calls on a device, by name. Each returns one tensor."""


_AMBIGUOUS = (
    "assignment", "scatter", "index_copy", "median", "kthvalue", "topk", "topk_in_bfloat16", "mode", "sort", "argsort", "argmax",
)  # fmt: skip
"""Calls with several correct results: an element may get any of several values, or any of several equal elements may be chosen."""
_ASSIGNED = {"assignment": (5000,), "scatter": (5000,), "index_copy": (900, 3)}
"""Calls that assign several values to one element, each with the shape of the values."""


def check_repeated_call(subject: Subject, name: str) -> None:
    """Check that a call either is repeatable in deterministic mode or raises an error.

    The call must give the same result five times, or raise a RuntimeError that mentions determinism.

    Nothing is checked if the device does not implement the call (NotImplementedError).

    Args:
        subject: The plugin under test, with its device.
        name: The name of the call in ``REPEATED``.

    Raises:
        AssertionError: If two results differ from each other, if the result of a call that is not in ``_AMBIGUOUS`` differs from the CPU's,
            or if an element has a value that was not assigned to it.
        NotSupported: If the device lacks int64 or bool, or if the call needs float64 or bfloat16 and the device lacks it.
    """
    subject.needs("int64", "bool")
    if name in ("median", "kthvalue"):
        subject.needs("float64")
    if name == "topk_in_bfloat16":
        subject.needs("bfloat16")
    torch.use_deterministic_algorithms(True)
    try:
        runs = [REPEATED[name](subject.device).detach().cpu() for _ in range(5)]
    except NotImplementedError:  # tests of operators report this
        return
    except RuntimeError as error:
        if "determinis" not in str(error):
            raise
        return
    finally:
        torch.use_deterministic_algorithms(False)
    for run in runs[1:]:
        assert torch.equal(torch.nan_to_num(runs[0]), torch.nan_to_num(run)), "five runs gave different results"
    if name in _ASSIGNED:
        _check_assigned(runs[0], _values("cpu", *_ASSIGNED[name]))
    elif name not in _AMBIGUOUS:
        expected = REPEATED[name](torch.device("cpu")).detach()
        torch.testing.assert_close(
            runs[0], expected, rtol=2e-3, atol=2e-3, equal_nan=True, msg=lambda text: f"in deterministic mode: {text}"
        )


def check_warnings_only(subject: Subject) -> None:
    """Check seven calls after ``torch.use_deterministic_algorithms(True, warn_only=True)``.

    No call may raise an error or switch ``warn_only`` off. Six calls must give the same results as on the CPU. The seventh assigns several
    values to each element, and the element may have any of these values. Failures are recorded in the subject.

    Raises:
        NotSupported: If the device lacks int64 or bool.
    """
    subject.needs("int64", "bool")
    for name in ("assignment", "index_select", "embedding_bag", "interpolate_bicubic", "adaptive_max_pool2d", "nll_loss", "grid_sample"):
        with subject.sample(name, {"name": name}), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.use_deterministic_algorithms(True, warn_only=True)
            try:
                found = REPEATED[name](subject.device).detach().cpu()
                assert torch.is_deterministic_algorithms_warn_only_enabled(), f"{name} changed the mode"
            finally:
                torch.use_deterministic_algorithms(False)
            if name in _ASSIGNED:
                _check_assigned(found, _values("cpu", *_ASSIGNED[name]))
            else:
                expected = REPEATED[name](torch.device("cpu")).detach()
                torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def check_filled_memory(subject: Subject) -> None:
    """Check that new memory is filled in deterministic mode. Failures are recorded in the subject.

    Floating-point and complex numbers must be NaN, integers the largest value of their dtype, and bools True.
    """
    torch.use_deterministic_algorithms(True)
    try:
        for dtype in (one for one in DTYPES if one == "float32" or subject.capabilities.can(f"dtype.{one}")):
            kind = getattr(torch, dtype)
            makers: dict[str, Callable[[], torch.Tensor]] = {
                "empty": lambda kind=kind: torch.empty(300, dtype=kind, device=subject.device),  # type: ignore[misc]
                "empty_strided": lambda kind=kind: torch.empty_strided((30, 2), (1, 30), dtype=kind, device=subject.device),  # type: ignore[misc]
                "empty_like": lambda kind=kind: torch.empty_like(torch.zeros(9, dtype=kind, device=subject.device)),  # type: ignore[misc]
                "new_empty": lambda kind=kind: torch.zeros(9, dtype=kind, device=subject.device).new_empty(30),  # type: ignore[misc]
                "resize_": lambda kind=kind: torch.zeros(0, dtype=kind, device=subject.device).resize_(30),  # type: ignore[misc]
            }
            for name, make in makers.items():
                torch.zeros(300, dtype=kind, device=subject.device)  # memory that the next tensor may get
                with subject.sample(f"{name} of {dtype}", {"name": name, "dtype": dtype}):
                    found = make().cpu()
                    if kind.is_floating_point or kind.is_complex:
                        is_filled = bool(found.isnan().all())
                    else:
                        is_filled = bool((found == (True if kind is torch.bool else torch.iinfo(kind).max)).all())
                    assert is_filled, f"in deterministic mode, {name} of {dtype} has the values {found.flatten()[:4].tolist()} ..."
    finally:
        torch.use_deterministic_algorithms(False)
