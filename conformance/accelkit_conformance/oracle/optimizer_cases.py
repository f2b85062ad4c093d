"""Optimizer steps in cases that torch's ``optim_db`` does not have: several parameter groups, options that change between steps, and
several memory layouts."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import _get_capturable_supported_devices
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.lacking_dtypes import require_dtypes
from accelkit_conformance.oracle.layouts import LAYOUTS
from accelkit_conformance.oracle.tolerance import check_result

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_CPU = torch.device("cpu")
RATE = 0.05
_IMPLEMENTATIONS = ("foreach", "fused", "capturable", "lr")
"""The options that select an implementation, and the learning rate, which is always ``RATE``."""
Options = Mapping[str, Any]
Train = Callable[[torch.device, torch.dtype, Options], Sequence[torch.Tensor]]


def ways(subject: Subject, info: Any) -> list[dict[str, bool]]:
    """Return the options that select each implementation other than the for-loop: ``foreach``, and ``fused`` if torch supports it here."""
    found = [{"foreach": True}] if "foreach" in info.supported_impls else []
    is_refused = info.optim_cls.__name__ == "Adagrad" and subject.device_type == "cuda"  # by torch itself
    if "fused" in info.supported_impls and subject.device_type in _get_fused_kernels_supported_devices() and not is_refused:
        found.append({"fused": True})
    return found


def all_ways(subject: Subject, info: Any) -> list[dict[str, Any]]:
    """Return the options with which the optimizer is tested, such as ``foreach=True``: one dictionary for each test. Some dictionaries
    contain a learning rate that is a tensor, on the device or on the CPU."""
    loop: dict[str, Any] = {"foreach": False} if "foreach" in info.supported_impls else {}
    found = [loop, *ways(subject, info)]
    found += [{**one, "lr": torch.tensor(RATE)} for one in found if "foreach" not in one or one == {"foreach": False}]
    if subject.lacks("bool"):
        return found  # if the learning rate is a tensor, torch compares it with 0
    if has_option(info, "capturable"):
        if subject.device_type in _capturable_devices(info, is_foreach=False):
            found.append({"capturable": True, "foreach": False})
        if subject.device_type in _capturable_devices(info, is_foreach=True):
            found.append({"capturable": True, "foreach": True})
            found.append({"capturable": True, "foreach": True, "lr": torch.tensor(RATE, device=subject.device)})
    if {"fused": True} in found:
        found.append({"fused": True, "lr": torch.tensor(RATE, device=subject.device)})
    return found


def _capturable_devices(info: Any, *, is_foreach: bool) -> list[str]:
    """Return the device types for which torch's optimizer accepts ``capturable``.

    XLA is always one of them for RMSprop and Rprop, never for Adadelta, and only without ``foreach`` for all other optimizers.
    """
    name = info.optim_cls.__name__
    return _get_capturable_supported_devices(supports_xla=name in ("RMSprop", "Rprop") or (not is_foreach and name != "Adadelta"))


def has_option(info: Any, option: str) -> bool:
    return option in inspect.signature(info.optim_cls).parameters


def compare_steps(
    subject: Subject, name: str, train: Train, expected: Train | None = None, *, ways: Sequence[Options] = (), case: str = ""
) -> None:
    """Compare the parameters after training on the device with those after training on the CPU. Differences are recorded in the subject.

    On the device, the training is repeated with each set of options in ``ways``. On the CPU, the optimizer uses a for-loop.

    A larger error is allowed for Muon, which orthogonalises updates in bfloat16, and for ``capturable``, which computes the bias
    corrections on the device in float32.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the optimizer.
        train: A function that trains on a device in a dtype, with options of the optimizer, and returns the parameters.
        expected: The function that trains on the CPU. None means ``train``.
        ways: Sets of options. They must not differ in options that change the result, such as ``weight_decay``. By default, those that
            ``all_ways`` returns.
        case: A description of the training, for messages and expected failures.
    """
    info = opdb.optimizers()[name]
    ways = ways or all_ways(subject, info)
    plain = {key: value for key, value in ways[0].items() if key not in _IMPLEMENTATIONS}
    plain |= {"foreach": False} if "foreach" in info.supported_impls else {}
    require_dtypes(subject, lambda: (expected or train)(_CPU, torch.float32, plain))
    truth, reference = ((expected or train)(_CPU, dtype, plain) for dtype in (torch.float64, torch.float32))
    for way in ways:
        text = ", ".join(
            f"{key}={f'a tensor on {value.device}' if isinstance(value, torch.Tensor) else value}" for key, value in way.items()
        )
        with subject.sample(f"{name}({text}){case}", {"kwargs": way, "case": case}):
            for mine, theirs, true in zip(train(subject.device, torch.float32, way), reference, truth, strict=True):
                more = {"num_stages": 32, "num_terms": 1024} if name == "Muon" or way.get("capturable") else {}
                check_result(mine.detach(), theirs.detach(), true, subject.device, is_sensitive=name == "LBFGS", **more)


def random_tensors(name: str, count: int, *shapes: tuple[int, ...]) -> list[list[torch.Tensor]]:
    """Return ``count`` lists of random tensors on the CPU, each with one tensor for every shape in ``shapes``.

    If ``name`` is Muon, which updates only matrices, every shape that is not two-dimensional is replaced by (5, 3).
    """
    generator = torch.Generator().manual_seed(6)
    chosen = [shape if len(shape) == 2 or name != "Muon" else (5, 3) for shape in shapes]
    return [[torch.randn(shape, generator=generator) for shape in chosen] for _ in range(count)]


def check_groups(subject: Subject, name: str) -> None:
    """Compare training on the device with training on the CPU, for several groups of parameters whose options change between steps.

    There are six steps. The groups have different learning rates and, if the optimizer has these options, different values of the weight
    decay, the momentum, ``maximize`` and ``amsgrad``. One parameter gets its first gradient in the third step, and another has no gradient
    in the second step. After the second step, all learning rates are multiplied by a number. After the third step, a group is added. After
    the fourth step, the state is loaded into a new optimizer.
    """
    info = opdb.optimizers()[name]
    starts, *gradients = random_tensors(name, 7, (3, 4), (257,), (), (5, 2), (70,))
    members = ((0, 1), (2, 3), (4,))
    options = [{"weight_decay": 0.1}, {"maximize": True, "amsgrad": True, "momentum": 0.5}, {}]

    def train(device: torch.device, dtype: torch.dtype, way: Options) -> Sequence[torch.Tensor]:
        parameters = [torch.nn.Parameter(one.to(device=device, dtype=dtype, copy=True)) for one in starts]
        rate = way.get("lr", RATE)

        def make(count: int) -> torch.optim.Optimizer:
            groups: list[dict[str, Any]] = [
                {
                    "params": [parameters[one] for one in numbers],
                    "lr": rate * (number + 1),
                    **{key: value for key, value in own.items() if has_option(info, key)},
                }
                for number, (numbers, own) in enumerate(zip(members, options, strict=True))
            ]
            made: torch.optim.Optimizer = info.optim_cls(groups[:count], **{"lr": rate, **way})
            return made

        optimizer = make(2)
        for step, given in enumerate(gradients):
            for number, (parameter, gradient) in enumerate(zip(parameters, given, strict=True)):
                is_missing = (number == 1 and step < 2) or (number == 0 and step == 1)
                parameter.grad = None if is_missing else gradient.to(device=device, dtype=dtype)
            optimizer.step()
            if step == 1:
                for group in optimizer.param_groups:
                    group["lr"] *= 0.3  # in place if it is a tensor, as schedulers do
            if step == 2:
                optimizer.add_param_group({"params": [parameters[4]], "lr": rate * 2})
            if step == 3:
                state = copy.deepcopy(optimizer.state_dict())
                optimizer = make(3)
                optimizer.load_state_dict(state)
        return parameters

    compare_steps(subject, name, train)


_KINDS = (
    ("transposed", "contiguous"), ("contiguous", "transposed"), ("strided", "contiguous"), ("strided", "strided"), ("offset", "offset"),
    ("contiguous", "expanded"),
)  # fmt: skip
"""The layouts of each parameter and of its gradient. With ``fused``, a gradient has the layout of its parameter, and ``strided`` is
replaced by ``transposed``, because torch's own fused kernels read and write all elements in the order in which they are stored."""
_LAYOUTS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **LAYOUTS,
    "contiguous": lambda one: one.clone(),
    "expanded": lambda one: one[..., :1].expand(one.shape),
}


def check_layouts(subject: Subject, name: str) -> None:
    """Compare training on the device with training on the CPU, for parameters and gradients in several memory layouts.

    Parameters and gradients must be the same as on the CPU. No step may write outside a parameter. Each tensor in the state of a parameter
    must have the shape of the parameter or be 0-d, except with Adafactor. Without ``foreach`` and ``fused``, each step must increase the
    version counter of each parameter. Differences are recorded in the subject.
    """
    info = opdb.optimizers()[name]
    starts, *gradients = random_tensors(name, 4, (3, 4), (4, 5), (5, 3), (6, 7), (9, 33), (2, 9))
    for one in gradients:
        one[-1] = one[-1].mean(-1, keepdim=True).expand(one[-1].shape)
    has_empty = name not in ("Adafactor", "Muon")  # Adafactor divides by the number of elements, and Muon by a norm

    def train(device: torch.device, dtype: torch.dtype, way: Options) -> Sequence[torch.Tensor]:
        kinds = _KINDS if "fused" not in way else [("transposed" if one == "strided" else one,) * 2 for one, _ in _KINDS]
        placed = [_LAYOUTS[kind[0]](one.to(device=device, dtype=dtype)) for one, kind in zip(starts, kinds, strict=True)]
        parameters = [torch.nn.Parameter(one) for one in placed]
        expected = [_LAYOUTS[kind[0]](one) for one, kind in zip(starts, kinds, strict=True)]
        around = [_around(*one) for one in zip(placed, expected, strict=True)]
        empty = [torch.nn.Parameter(torch.empty(0, dtype=dtype, device=device))] * has_empty
        optimizer = info.optim_cls([*parameters, *empty], **{"lr": RATE, **way})
        for given in gradients:
            versions = [one._version for one in parameters]
            for parameter, gradient, kind in zip(parameters, given, kinds, strict=True):
                parameter.grad = _LAYOUTS[kind[1]](gradient.to(device=device, dtype=dtype))
            for one in empty:
                one.grad = torch.empty_like(one)
            optimizer.step()
            for parameter, version in zip(parameters, versions, strict=True):
                is_loop = "fused" not in way and not way.get("foreach")
                assert not is_loop or parameter._version > version, "a step does not increase the version of a parameter"
        for parameter in parameters:
            for key, value in optimizer.state[parameter].items():
                is_right = name == "Adafactor" or not isinstance(value, torch.Tensor) or value.shape in (parameter.shape, ())
                assert is_right, f"the state {key} of a parameter of shape {tuple(parameter.shape)} has the shape {tuple(value.shape)}"
        for one, like, before in zip(placed, expected, around, strict=True):
            assert torch.equal(_around(one, like), before), "a step wrote outside a parameter"
        return [*parameters, *(parameter.grad for parameter in parameters if parameter.grad is not None)]

    compare_steps(subject, name, train)


def _around(placed: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a CPU copy of the elements of a view's base that are not in the view. Return an empty tensor if ``placed`` is not a view.

    ``like`` is the same view on the CPU. Its strides show which elements are in the view. The strides of ``placed`` would not show this if
    tensors of its device have no memory layout, as on XLA.
    """
    base = placed._base
    if base is None or like._base is None:
        return torch.empty(0)
    is_around = torch.ones(like._base.shape, dtype=torch.bool)
    is_around.as_strided(like.shape, like.stride(), like.storage_offset()).fill_(False)
    return base.detach().cpu().flatten()[is_around.flatten()]
