"""Wrong uses of autograd, for which torch raises an error on every device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.late_errors import raises

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def _leaf(device: torch.device) -> torch.Tensor:
    return torch.ones(2, 3, device=device, requires_grad=True)


def _changed(
    device: torch.device, change: Callable[[torch.Tensor], Any], save: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    """Change a tensor in place after an operator has saved it for the backward pass, and run the backward pass.

    ``save`` is the operator. Its first argument is the tensor, which is an intermediate result. ``change`` changes this tensor in place.
    """
    leaf = _leaf(device)
    saved = leaf * 2
    result = save(saved, leaf)
    change(saved)
    result.sum().backward()


def _inference(device: torch.device) -> None:
    with torch.inference_mode():
        x = torch.ones(2, 3, device=device)
    (x * _leaf(device)).sum().backward()


def _inference_in_place(device: torch.device) -> None:
    with torch.inference_mode():
        x = torch.ones(2, 3, device=device)
    x.add_(1)


def _graph_of_another_pass(device: torch.device) -> None:
    x = _leaf(device)
    (gradient,) = torch.autograd.grad(x.exp().sum(), x)
    gradient.sum().backward()


def _set_gradient(device: torch.device, gradient: torch.Tensor) -> None:
    _leaf(device).grad = gradient


def _part_of_several(device: torch.device) -> None:
    parts = (_leaf(device) * 1).unbind(0)
    parts[0].add_(1)


def _one_changed_input(device: torch.device, place: int) -> None:
    x, y = _leaf(device) * 2, _leaf(device) * 3
    result = torch.addcmul(x, x, y)
    (x, y)[place].zero_()
    result.sum().backward()


def _changed_result(device: torch.device) -> None:
    result = _leaf(device).sigmoid()
    result.mul_(2)
    result.sum().backward()


_PRODUCT = lambda saved, leaf: saved * leaf  # noqa: E731

CASES: Mapping[str, tuple[str, Callable[[torch.device], Any]]] = {
    "a leaf is changed in place": ("leaf", lambda device: _leaf(device).add_(1)),
    "a view of a leaf is changed in place": ("leaf", lambda device: _leaf(device)[0].mul_(2)),
    "an element of a leaf is assigned": ("leaf", lambda device: _leaf(device).__setitem__((0, 0), 1.0)),
    "a leaf is the output": ("out=", lambda device: torch.add(torch.ones(2, 3, device=device), 1, out=_leaf(device))),
    "an integer requires a gradient": ("floating point", lambda device: torch.ones(2, dtype=torch.int64, device=device).requires_grad_()),
    "backward of several elements without an output gradient": ("scalar", lambda device: (_leaf(device) * 2).backward()),  # type: ignore[no-untyped-call]
    "an output gradient has another shape": ("shape", lambda device: (_leaf(device) * 2).backward(torch.ones(3, 2, device=device))),  # type: ignore[no-untyped-call]
    "a gradient of another shape is assigned": ("", lambda device: _set_gradient(device, torch.ones(3, 2, device=device))),
    "a gradient of another dtype is assigned": (
        "",
        lambda device: _set_gradient(device, torch.ones(2, 3, dtype=torch.int64, device=device)),
    ),
    "an input is unused": ("", lambda device: torch.autograd.grad(_leaf(device).sum(), _leaf(device))),
    "an inference tensor is saved for a backward pass": ("inference", _inference),
    "an inference tensor is changed in place": ("inference", _inference_in_place),
    "backward of a gradient without a graph": ("does not require grad", _graph_of_another_pass),
    "an output of unbind is changed in place": ("view", _part_of_several),
    "an intermediate result is copied": ("", lambda device: copy.deepcopy(_leaf(device) * 2)),
    "a leaf is converted to NumPy": ("", lambda device: _leaf(device).cpu().numpy()),
    "a saved tensor is changed by add_": ("modified", lambda device: _changed(device, lambda one: one.add_(1), _PRODUCT)),
    "a view of a saved tensor is changed": ("modified", lambda device: _changed(device, lambda one: one[0].zero_(), _PRODUCT)),
    "a saved tensor is changed by copy_": (
        "modified",
        lambda device: _changed(device, lambda one: one.detach().copy_(one.detach() * 3), _PRODUCT),
    ),
    "a saved tensor is changed by normal_": ("modified", lambda device: _changed(device, lambda one: one.normal_(), _PRODUCT)),
    "a saved tensor is changed by an assignment": (
        "modified",
        lambda device: _changed(device, lambda one: one.__setitem__(0, 5.0), _PRODUCT),
    ),
    "a saved tensor is changed by out=": (
        "modified",
        lambda device: _changed(device, lambda one: torch.neg(one.detach(), out=one.detach()), _PRODUCT),
    ),
    "a saved operand of matmul is changed": (
        "modified",
        lambda device: _changed(device, lambda one: one.mul_(2), lambda saved, leaf: leaf @ saved.t()),
    ),
    "a saved result of sigmoid is changed": ("modified", _changed_result),
    "the first saved input of addcmul is changed": ("modified", lambda device: _one_changed_input(device, 0)),
    "the last saved input of addcmul is changed": ("modified", lambda device: _one_changed_input(device, 1)),
}
"""Calls that raise RuntimeError or TypeError, by description, each with a text (perhaps empty) that the error message must contain."""


def check_rejected(subject: Subject) -> None:
    """Check that each call in ``CASES`` raises RuntimeError or TypeError on the device."""
    for name, (about, call) in CASES.items():
        with subject.sample(name, {"call": name}), raises(subject, RuntimeError, TypeError, about=about, doing=name):
            call(subject.device)
