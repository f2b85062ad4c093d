"""The rule that decides whether the values that a device computed are wrong.

The conformance suite and ``Runtime.compare_to_cpu`` use this rule.

Let the truth t be the CPU's result in float64 (complex128), c the CPU's result in the dtype under test, and x the device's result. With
e(x) = max|x - t| / max|t|, the device is wrong if e(x) > C * max(e(c), eps), where C = 8 and eps is the machine epsilon of the dtype. In
words, the device's error may be at most a small multiple of the CPU's error. If nothing more precise than c is available (as for float64),
t is c, and 8 eps replaces eps.

The conformance suite makes an exception for gradients of operators in float64: eps is not replaced. If the error is then too large, the
suite adds rounding errors to the inputs on the CPU, and uses the relative change of the gradient in place of e(c) (see
accelkit_conformance.oracle.conditioning).

The error of each element is also measured relative to |t| + s, so that a large element does not hide errors in small ones. Here, s is the
median magnitude of the nonzero elements of t, but at least the dtype's smallest normal number. This error may be at most 64 times the CPU's
largest error, measured in the same way, or 64 eps if that is larger.

If t is 0 everywhere, these errors are not defined. In this case, max|x| may be at most C * max(max|c|, eps^2).

The bound C * max(e(c), eps) is raised in three cases:

- If the result is a gradient, max(e(c), min(e', 8 eps)) replaces e(c), because a gradient with few elements is a poor sample of the
  rounding errors. Here, e' is the largest e(c) among all gradients of the same call.
- If a result passes through at least k operators one after another, as in a module, k * eps replaces eps, because each operator may be off
  by C * eps.
- If an element of the result is a sum of n > 64 terms, sqrt(n) / C * eps replaces eps, also in the bound of each element. An error of this
  size is likely if a device adds one term after another (N. J. Higham, T. Mary, "A new approach to probabilistic rounding error analysis",
  SIAM J. Sci. Comput. 41(5), 2019), while the CPU uses pairwise summation.

Where x or c is NaN or infinite, x must agree with c or with t. Agreement with t is enough because c may be wrong there: the CPU's vector
code returns NaN for gelu(inf), but the true value is inf. There are three exceptions:

- In an 8-bit dtype, the magnitude of x may be the largest finite number where c is NaN or infinite. Where c is infinite, x must have the
  sign of c.
- Where |t| is close to the largest finite number, |x| may be close to this number or infinite. x must have the sign of t.
- Where |t| is greater than the largest finite number, x may be infinite. x must have the sign of t.

Integers must be equal.

The errors of the real part and of the imaginary part of a complex number are both measured relative to the magnitude of the number. A small
error of the phase is small relative to this magnitude, but may be large relative to one of the parts.
"""

from __future__ import annotations

import math

import torch

C = 8.0
DOUBLE = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}
"""Mapping from the dtype under test to the dtype in which the truth is computed."""

UNINITIALIZED = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_", "resize_as_")
"""Operators that return uninitialised memory."""

_EACH = 64.0
_WITHOUT_TRUTH = 8.0
_LEFT_OF_CANCELLATION = 1e-6
_OTHERS = 8.0
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def relative_error(reference: torch.Tensor, truth: torch.Tensor | None) -> float:
    """Return the largest error of a result, relative to the largest magnitude of the true result.

    Args:
        reference: The result, usually that of the CPU.
        truth: The true result, which is computed in float64. None if it is unknown.

    Returns:
        The relative error. It is 0 if ``truth`` is None or zero, or if either tensor contains NaN or infinity. It is also 0 if the tensors
        cannot be compared, because they have different shapes, are not strided, are empty or contain integers.
    """
    if truth is None or truth.shape != reference.shape or not (reference.is_floating_point() or reference.is_complex()):
        return 0.0
    if reference.layout is not torch.strided or not reference.numel():
        return 0.0
    c, t = as_reals(reference.detach()), as_reals(truth.detach())
    error = float((c - t).abs().max() / t.abs().max())
    return error if math.isfinite(error) else 0.0


def difference(
    found: torch.Tensor,
    reference: torch.Tensor,
    truth: torch.Tensor | None,
    *,
    phase: bool = False,
    cancels: bool = False,
    others: float = 0.0,
    num_terms: int = 1,
    num_stages: int = 1,
) -> str:
    """Return a description of how and by how much the values of a result are wrong, or an empty string if they are correct.

    All tensors are on the CPU. ``found`` and ``reference`` have the same shape.

    Args:
        found: The device's result.
        reference: The CPU's result.
        truth: The CPU's result in double precision. If it is None or has another shape, ``reference`` takes its place, and larger errors
            are allowed.
        phase: Whether elements are unique only up to sign or phase.
        cancels: Whether terms of the result may cancel, as happens in gradients. If numbers around 1 cancel, only their rounding errors
            are left. Therefore, if ``cancels`` is True and all elements of the truth are below 1e-6 in magnitude, the absolute error is
            checked instead of the relative error.
        others: The largest :func:`relative_error` among all results of the same call on the CPU.
        num_terms: The number of terms that are summed for an element of the result. The device may add these terms one after another.
        num_stages: The smallest number of operators that have to run one after another to compute the result.
    """
    if found.layout is not torch.strided:
        found, reference, truth = found.to_dense(), reference.to_dense(), None if truth is None else truth.to_dense()
    if found.numel() == 0:
        return ""
    if not (found.is_floating_point() or found.is_complex()):
        return _unequal(found, reference)
    dtype = reference.dtype
    x, c = as_reals(found, phase=phase), as_reals(reference, phase=phase)
    has_truth = truth is not None and truth.shape == reference.shape
    t = as_reals(truth, phase=phase) if truth is not None and has_truth else c
    nan = (torch.isnan(x) != torch.isnan(c)) & (torch.isnan(x) != torch.isnan(t)) & ~_is_saturated(x, dtype)
    if bool(nan.any()):
        return f"NaN: {int(nan.sum())} of {nan.numel()} elements are NaN in only one of the two results{_first(nan, x, c)}"
    c = torch.where(torch.isnan(c), t, c)
    infinite = (torch.isinf(x) | torch.isinf(c)) & ~torch.isnan(x) & (x != c) & (x != t)
    infinite &= ~_is_near_overflow(x, t, dtype) & ~_has_overflowed(x, t, dtype)
    infinite &= ~(_is_saturated(x, dtype) & (x.sign() == c.sign()))
    if bool(infinite.any()):
        return f"infinity: {int(infinite.sum())} of {infinite.numel()} elements differ{_first(infinite, x, c)}"
    finite = torch.isfinite(x) & torch.isfinite(c) & torch.isfinite(t)
    if not bool(finite.any()):
        return ""
    eps = torch.finfo(dtype).eps * (1.0 if has_truth else _WITHOUT_TRUTH) * max(1.0, math.sqrt(num_terms) / C)
    if cancels and float(t[finite].abs().max()) < _LEFT_OF_CANCELLATION:
        off, own = float((x[finite] - t[finite]).abs().max()), float((c[finite] - t[finite]).abs().max())
        return "" if off <= C * max(own, eps) else f"the absolute error is {off:.3g} where all terms cancel"
    least = max(num_stages * eps, min(others, _OTHERS * eps))
    size = (t.abs() if phase or not reference.is_complex() else _magnitudes(t))[finite]
    whole = x if bool(finite.all()) else None
    return _error((x[finite], c[finite], t[finite]), size, torch.finfo(dtype), whole, eps=eps, least=least)


def as_reals(values: torch.Tensor, *, phase: bool = False) -> torch.Tensor:
    """Return the values as a one-dimensional float64 tensor. Each complex number becomes two elements, its real and its imaginary part.

    Args:
        values: A tensor of real or complex numbers.
        phase: Whether the values are unique only up to sign or phase. If True, each value becomes one element, its absolute value.
    """
    if values.is_complex():
        values = values.to(torch.complex128)
        values = values.abs() if phase else torch.view_as_real(values.resolve_conj())
    values = values.to(torch.float64).reshape(-1)
    return values.abs() if phase else values


def is_equal_choice(values: torch.Tensor, found: torch.Tensor, reference: torch.Tensor) -> bool:
    """Return whether two tensors of indices into some dimension of ``values`` choose equal elements. NaN equals NaN.

    If elements are equal, a device may choose any of them. The dimension is not known, so it is enough if the elements are equal for one
    dimension. All tensors are on the CPU.
    """
    if found.dtype != torch.int64 or found.numel() == 0 or values.ndim == 0:
        return False
    if found.ndim == values.ndim - 1:  # the dimension along which elements were chosen is not kept
        return any(is_equal_choice(values, found.unsqueeze(d), reference.unsqueeze(d)) for d in range(values.ndim))
    if found.ndim != values.ndim:
        return False
    dims = [d for d in range(values.ndim) if all(found.shape[i] <= values.shape[i] for i in range(values.ndim) if i != d)]
    largest = max(int(found.max()), int(reference.max()))
    dims = [d for d in dims if int(found.min()) >= 0 and largest < values.shape[d]]
    chosen = [(values.gather(d, found), values.gather(d, reference)) for d in dims]
    return any(bool(((one == other) | (one.isnan() & other.isnan())).all()) for one, other in chosen)


def _magnitudes(t: torch.Tensor) -> torch.Tensor:
    """Return, for each element of ``t``, the magnitude of the complex number to which the element belongs.

    In ``t``, the real part of each number is followed by its imaginary part. If the magnitude of a number is NaN or infinite, the absolute
    value of the element is returned instead.
    """
    whole = torch.hypot(t[0::2], t[1::2]).repeat_interleave(2)
    return torch.where(torch.isfinite(whole), whole, t.abs())


def _error(
    values: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    size: torch.Tensor,
    dtype: torch.finfo,
    whole: torch.Tensor | None,
    *,
    eps: float,
    least: float,
) -> str:
    x, c, t = values
    off, own = (x - t).abs(), (c - t).abs()
    scale = float(size.max())
    if scale == 0.0:
        allowed = C * max(float(own.max()), eps * eps)
        return "" if float(off.max()) <= allowed else f"is {float(off.max()):.3g} where 0 is expected"
    error, bound = float(off.max()) / scale, C * max(float(own.max()) / scale, least)
    if error > bound:
        where = f" (worst at {_index(off, whole)}: {float(x[off.argmax()]):.9g}, expected {float(t[off.argmax()]):.9g})"
        return f"the error is {error:.3g} of the largest magnitude; at most {bound:.3g} is allowed{where}"
    typical = size[size > 0].median().clamp(min=dtype.tiny)
    each, allowed_each = off / (size + typical), _EACH * max(float((own / (size + typical)).max()), eps)
    worst = int(each.argmax())
    if float(each[worst]) <= allowed_each:
        return ""
    return (
        f"an element has a relative error of {float(each[worst]):.3g}; at most {allowed_each:.3g} is allowed: "
        f"{float(x[worst]):.9g}, expected {float(t[worst]):.9g}"
    )


def _unequal(found: torch.Tensor, reference: torch.Tensor) -> str:
    if found.dtype in _SIGNED:
        found, reference = found.view(_SIGNED[found.dtype]), reference.view(_SIGNED[reference.dtype])
    wrong = found != reference
    return f"{int(wrong.sum())} of {wrong.numel()} elements differ{_first(wrong, found, reference)}" if bool(wrong.any()) else ""


def _is_saturated(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a mask of the saturated elements: those whose magnitude is the largest finite number of an 8-bit dtype.

    Some devices give this number instead of NaN or infinity. If ``dtype`` has more than 8 bits, the mask is False everywhere.
    """
    return (x.abs() == torch.finfo(dtype).max) & (dtype.itemsize == 1)


def _is_near_overflow(x: torch.Tensor, t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a mask of the elements where rounding may decide whether the result is finite or infinite.

    At these elements, ``t`` is close to the largest finite number of the dtype in magnitude. ``x`` is close to it too, or infinite, and has
    the same sign as ``t``.
    """
    part = t.abs() / torch.finfo(dtype).max
    return (part > 0.98) & (part < 1.02) & (x.abs() > 0.95 * torch.finfo(dtype).max) & (x.sign() == t.sign())


def _has_overflowed(x: torch.Tensor, t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a mask of the elements where ``x`` is infinite because ``|t|`` is greater than the largest finite number of the dtype.

    At these elements, ``x`` has the same sign as ``t``.
    """
    return torch.isinf(x) & (t.abs() > torch.finfo(dtype).max) & (x.sign() == t.sign())


def _first(wrong: torch.Tensor, x: torch.Tensor, c: torch.Tensor) -> str:
    index = int(wrong.reshape(-1).to(torch.int8).argmax())
    return f" (first at {index}: {x.reshape(-1)[index].item()!r}, expected {c.reshape(-1)[index].item()!r})"


def _index(off: torch.Tensor, whole: torch.Tensor | None) -> str:
    return f"element {int(off.argmax())}" if whole is not None else "a finite element"
