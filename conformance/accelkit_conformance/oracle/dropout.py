"""Checks of every kind of dropout: its mask, its results and its gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # the usual name

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_P = 0.3
_ALPHA = -1.7580993408473766
"""The limit of SELU at minus infinity. ``alpha_dropout`` replaces elements with this value."""
_SCALE = 1 / math.sqrt((_ALPHA**2 * _P + 1) * (1 - _P))

_Call = Callable[[torch.Tensor], torch.Tensor]

_DROPOUTS: dict[str, tuple[_Call, int]] = {
    "dropout": (lambda x: F.dropout(x, _P), 0),
    "dropout_in_place": (lambda x: F.dropout(x * 1, _P, inplace=True), 0),
    "native_dropout": (lambda x: torch.native_dropout(x, _P, train=True)[0], 0),
    "dropout1d": (lambda x: F.dropout1d(x.flatten(2), _P).view(x.shape), 2),
    "dropout2d": (lambda x: F.dropout2d(x, _P), 2),
    "dropout3d": (lambda x: F.dropout3d(x.unsqueeze(2), _P).squeeze(2), 2),
    "alpha_dropout": (lambda x: F.alpha_dropout(x, _P, training=True), 0),
    "feature_alpha_dropout": (lambda x: F.feature_alpha_dropout(x, _P, training=True), 2),
}
"""Kinds of dropout, by name, with the number of trailing dimensions along which elements are dropped together. Each function takes a tensor
of four dimensions."""
DROPOUTS = tuple(_DROPOUTS)


def check_ones(subject: Subject) -> None:
    """Check the results and the gradient of ``Dropout`` for an input of ones, in training and in evaluation mode.

    Raises:
        AssertionError: If a result or the gradient is wrong.
    """
    x = torch.ones(5000, device=subject.device, requires_grad=True)
    layer = torch.nn.Dropout(0.2)
    y = layer(x)
    assert sorted(y.detach().cpu().unique().tolist()) == [0.0, 1.25]
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad.cpu(), y.detach().cpu()), "the gradient does not have the same mask as the result"
    assert torch.equal(layer.eval()(x).cpu(), x.cpu())


def _inputs(device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors in several memory layouts, each with the name of its layout. A third of the elements of each tensor are zero."""
    values = (torch.arange(64 * 48 * 12) % 3 - 1).view(64, 48, 3, 4).to(dtype)
    yield "contiguous", values.to(device)
    yield "channels_last", values.to(device).contiguous(memory_format=torch.channels_last)
    yield "transposed", values.transpose(0, 1).contiguous().to(device).transpose(0, 1)
    yield "strided", values.repeat_interleave(2, dim=-1).to(device)[..., ::2]


def check_dropout(subject: Subject, name: str) -> None:
    """Check which elements dropout drops, how it scales the others, and that the backward pass uses the same mask.

    The right share of the elements must be dropped. If a kind of dropout drops whole channels, channels must be dropped independently of
    each other. With any other kind, elements must be dropped independently of each other.

    The expected mask is found by calling the same function with an input of ones and the same seed. Zeros in the actual input reveal a
    backward pass that takes its mask from the result. Failures are recorded in the subject.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the dropout in ``_DROPOUTS``.

    Raises:
        NotSupported: If the accelerator declares that the device lacks the dtype bool.
    """
    subject.needs("bool")
    for dtype in ("float32", "float16", "bfloat16", "float64"):
        if dtype != "float32" and not subject.capabilities.can(f"dtype.{dtype}"):
            continue
        for layout, x in _inputs(subject.device, getattr(torch, dtype)):
            with subject.sample(f"{name} of {layout} {dtype}", {"layout": layout, "dtype": dtype}):
                try:
                    _check(subject, name, x)
                except NotImplementedError:  # tests of operators report this
                    continue


def _check(subject: Subject, name: str, x: torch.Tensor) -> None:
    call, num_together = _DROPOUTS[name]
    is_alpha = "alpha" in name
    subject.accelerator.manual_seed(21)
    ones = call(torch.ones_like(x)).cpu().double()
    kept, dropped = (_SCALE * (1 - _ALPHA * _P), _SCALE * (_ALPHA - _ALPHA * _P)) if is_alpha else (1 / (1 - _P), 0.0)
    shift = -_SCALE * _ALPHA * _P if is_alpha else 0.0
    mask = ((ones - kept).abs() < (ones - dropped).abs()).double()
    tolerance = 8 * torch.finfo(x.dtype).eps
    right = dropped + mask * (kept - dropped)
    assert float((ones - right).abs().max()) < tolerance * 2, f"the result for ones has values other than {dropped:.5g} and {kept:.5g}"
    _check_mask(mask, num_together)
    x = x.detach().requires_grad_()
    gradient = ((torch.arange(x.numel()) % 5) + 1).view(x.shape).to(x.dtype).to(subject.device)
    subject.accelerator.manual_seed(21)
    y = call(x)
    found = y.detach().cpu().double()
    expected = torch.where(mask > 0, x.detach().cpu().double() * (kept - shift) + shift, dropped)
    assert float((found - expected).abs().max()) < tolerance * 2, "the result does not have the mask that the same seed gives for ones"
    y.backward(gradient)  # type: ignore[no-untyped-call]
    assert x.grad is not None, "the input has no gradient"
    wrong = float((x.grad.cpu().double() - gradient.cpu().double() * mask * (kept - shift)).abs().max())
    assert wrong < tolerance * 10, "the gradient does not have the mask of the forward pass"


def _check_mask(mask: torch.Tensor, num_together: int) -> None:
    """Check that elements or whole channels are dropped independently of each other, with the probability ``_P`` everywhere.

    Args:
        mask: A tensor of 64 samples with 48 channels of 12 elements: 1 for each element that is kept, and 0 for each that is dropped.
        num_together: The number of trailing dimensions along which elements are dropped together. If it is 0, elements must be dropped
            independently of each other. Otherwise, the elements of a channel must be dropped together, and channels must be dropped
            independently of each other.
    """
    if num_together:
        single = mask.flatten(2)[..., 0]
        assert torch.equal(mask.flatten(2), single[..., None].expand(64, 48, 12)), "elements of one channel are not dropped together"
    else:
        single = mask.flatten(1)
    share, error = float(single.mean()), math.sqrt(_P * (1 - _P) / single.numel())
    assert abs(share - (1 - _P)) < 5.5 * error, f"{share:.3f} of the elements or channels are kept, not {1 - _P}"
    for dim, what in enumerate(("samples", "places")):
        shares = single.mean(dim)
        bound = 5.5 * math.sqrt(_P * (1 - _P) / single.shape[dim])
        assert float((shares - (1 - _P)).abs().max()) < bound, f"the share of kept {what} is not {1 - _P} everywhere"
        one, other = single.narrow(dim, 0, single.shape[dim] // 2), single.narrow(dim, single.shape[dim] // 2, single.shape[dim] // 2)
        assert not torch.equal(one, other), f"the mask repeats itself after half of the {what}"
        neighbours = (single.narrow(dim, 0, single.shape[dim] - 1) == single.narrow(dim, 1, single.shape[dim] - 1)).double()
        expected = _P**2 + (1 - _P) ** 2
        bound = 6 * math.sqrt(expected * (1 - expected) * 2 / neighbours.numel())
        assert abs(float(neighbours.mean()) - expected) < bound, f"neighbouring {what} are not dropped independently"
