"""Optimizer steps with a gradient scaler. One of the steps is skipped because a gradient is not finite."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.optimizer_cases import RATE, Options, all_ways, compare_steps, has_option, random_tensors
from accelkit_conformance.oracle.scaler_options import require_scaler

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_First = TypeVar("_First")
_Second = TypeVar("_Second")
_SCALE = 64.0
_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    {"momentum": 0.9, "dampening": 0.5, "maximize": True},
    {"amsgrad": True, "maximize": True, "weight_decay": 0.1},
)
"""Options for optimizers. Each optimizer is tested with those that it has."""
_OTHER_DTYPES = ("float64", "bfloat16")
"""The dtypes of further parameters, which are not compared with parameters on the CPU."""


@dataclasses.dataclass(frozen=True, slots=True)
class _SkippedStep:
    """A step that the scaler must skip.

    Attributes:
        which: The place of the step among all steps: ``first``, ``third`` or ``last``.
        number: The index of the step.
        parameter: The index of the parameter whose gradient has an element that is not finite.
        element: The index of this element.
        value: The value of this element.
        is_unscaled: Whether ``unscale_`` is called before each step.
        has_other_dtypes: Whether there are also parameters in ``_OTHER_DTYPES``.
    """

    which: str
    number: int
    parameter: int
    element: int
    value: float
    is_unscaled: bool = False
    has_other_dtypes: bool = False

    def __str__(self) -> str:
        more = " after unscale_" * self.is_unscaled + ", parameters in several dtypes" * self.has_other_dtypes
        return f", the {self.which} of four steps is skipped{more}"


_SKIPPED = (
    _SkippedStep("third", 2, 2, 3, math.nan),
    _SkippedStep("first", 0, 0, 0, math.inf),
    _SkippedStep("last", 3, -1, -1, -math.inf, has_other_dtypes=True),
    _SkippedStep("third", 2, 2, 3, math.inf, is_unscaled=True),
)


def check_skipped_steps(subject: Subject, name: str) -> None:
    """Check that neither the parameters nor the state of the optimizer change in a step that a gradient scaler skips.

    Four steps, one of which must be skipped, are taken with a scaler. Immediately after the skipped step, each parameter and each entry of
    the state must have the value that it had immediately before this step. After all four steps, the float32 parameters must agree with
    those after the other three steps on the CPU, without a scaler. The training is repeated with several options of the optimizer.
    Differences are recorded in the subject.

    A fused implementation decides for itself whether to skip a step, so it is tested with each combination of options and skipped step. The
    other implementations are tested at least once with each set of options, and at least once with each skipped step.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the optimizer.

    Raises:
        NotSupported: If the device lacks a dtype that the training needs.
    """
    require_scaler(subject)
    info = opdb.optimizers()[name]
    starts, *gradients, others = random_tensors(name, 5, (3, 4), (257,), (5,))

    def without(device: torch.device, dtype: torch.dtype, way: Options) -> Sequence[torch.Tensor]:
        parameters = [torch.nn.Parameter(one.to(device=device, dtype=dtype, copy=True)) for one in starts]
        optimizer = info.optim_cls(parameters, **{"lr": RATE, **way})
        for given in gradients:
            for parameter, gradient in zip(parameters, given, strict=True):
                parameter.grad = gradient.to(device=device, dtype=dtype)
            optimizer.step()
        return parameters

    own = [{key: value for key, value in options.items() if has_option(info, key)} for options in _OPTIONS]
    distinct = [options for number, options in enumerate(own) if options not in own[:number]]
    ways = all_ways(subject, info)
    for is_fused, pairs in ((True, itertools.product(distinct, _SKIPPED)), (False, _each_once(distinct, _SKIPPED))):
        for options, skipped in pairs:
            steps = [*gradients[: skipped.number], others, *gradients[skipped.number :]]
            train = functools.partial(_train, subject, info, starts=starts, steps=steps, skipped=skipped)
            chosen = [options | way for way in ways if (way == {"fused": True}) == is_fused]
            if chosen:
                compare_steps(subject, name, lambda *args: train(args[-1]), without, ways=chosen, case=str(skipped))  # noqa: B023


def _each_once(first: Sequence[_First], second: Sequence[_Second]) -> list[tuple[_First, _Second]]:
    """Return pairs in which each element of both sequences occurs at least once."""
    return [(first[number % len(first)], second[number % len(second)]) for number in range(max(len(first), len(second)))]


def _train(
    subject: Subject, info: Any, way: Options, *, starts: list[torch.Tensor], steps: list[list[torch.Tensor]], skipped: _SkippedStep
) -> Sequence[torch.Tensor]:
    """Take steps with a scaler on the device, check the step that the scaler must skip, and return the float32 parameters.

    Args:
        subject: The plugin under test, with its device.
        info: The OptimizerInfo of the optimizer.
        way: Options for the optimizer.
        starts: The initial float32 parameters. If ``skipped.has_other_dtypes``, there is one more parameter for each dtype in
            ``_OTHER_DTYPES`` that the device has.
        steps: The gradients of the float32 parameters in each step.
        skipped: The step that the scaler must skip.
    """
    others = [getattr(torch, dtype) for dtype in _OTHER_DTYPES if skipped.has_other_dtypes and not subject.lacks(dtype)]
    dtypes = [torch.float32] * len(starts) + others
    given = zip([*starts, *starts[:1] * len(others)], dtypes, strict=True)
    parameters = [torch.nn.Parameter(one.to(device=subject.device, dtype=dtype, copy=True)) for one, dtype in given]
    optimizer = info.optim_cls(parameters, **{"lr": RATE, **way})
    scaler = torch.amp.GradScaler(subject.device_type, init_scale=_SCALE)
    for number, gradients in enumerate(steps):
        scaler.scale(torch.zeros((), device=subject.device))
        scaled = [gradient * scaler.get_scale() for gradient in [*gradients, *gradients[:1] * len(others)]]
        if number == skipped.number:
            scaled[skipped.parameter].view(-1)[skipped.element] = skipped.value
        for parameter, gradient in zip(parameters, scaled, strict=True):
            parameter.grad = gradient.to(parameter)
        before = _values(optimizer, parameters) if number == skipped.number else {}
        if skipped.is_unscaled:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        subject.compute()
        if number == skipped.number:
            after = _values(optimizer, parameters)
            changed = [what for what, one in before.items() if what not in after or not _is_same(one, after[what])]
            assert not changed, (
                f"the skipped step changed {len(changed)} of {len(before)} parameters and entries of the state, for example {changed[-1]}"
            )
            if number == 0 and info.optim_cls is torch.optim.SGD and way.get("fused") and way.get("momentum"):
                # torch's fused SGD creates momentum buffers without values in its first step, and later uses them even if this step was
                # skipped: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/optim/sgd.py#L511
                optimizer = info.optim_cls(parameters, **{"lr": RATE, **way})
    assert scaler.get_scale() == _SCALE / 2, f"after one skipped step, the scale is {scaler.get_scale()}, not {_SCALE / 2}"
    counts = [float(state["step"]) for state in optimizer.state.values() if "step" in state]
    assert all(count == len(steps) - 1 for count in counts), f"after {len(steps) - 1} steps, the step counts are {counts}"
    return parameters[: len(starts)]


def _values(optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return CPU copies of all parameters, and of all tensors and numbers in the optimizer's state. The keys are descriptions."""
    found = {f"parameter {number}": parameter for number, parameter in enumerate(parameters)}
    for number, parameter in enumerate(parameters):
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor | int | float):
                found[f"{key} of parameter {number}"] = torch.as_tensor(value)
    return {what: one.detach().cpu().clone() for what, one in found.items()}


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())
