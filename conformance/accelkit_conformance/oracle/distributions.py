"""Checks of random samplers: parameters given as tensors, results of every dtype, integers from wide ranges, and categories."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.results import NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_ROWS = 4000
_NUM_DRAWS = 20_000
MOST_ERRORS = 6.0
"""The largest permitted deviation of a mean, in standard errors. A correct mean exceeds it once in 500 million tests."""

_THRESHOLD = 1e-6

_ONLY_IN_FLOAT64 = ("poisson_of_huge_rates",)
_Parameters = torch.Tensor
_Moments = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def _of_events(p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the means and the variances of numbers that are 1 with the probabilities ``p`` and otherwise 0."""
    return p, p * (1 - p)


TENSOR_PARAMETERS: dict[str, tuple[list[float], Callable[[_Parameters], torch.Tensor], _Moments]] = {
    "bernoulli": ([0.2, 0.4, 0.7, 0.9], torch.bernoulli, _of_events),
    "bernoulli_": ([0.2, 0.4, 0.7, 0.9], lambda p: torch.zeros_like(p).bernoulli_(p), _of_events),
    "poisson": ([0.4, 2.5, 15, 200], torch.poisson, lambda p: (p, p)),
    "binomial_counts": ([1, 7, 40, 300], lambda p: torch.binomial(p, torch.full_like(p, 0.3)), lambda p: (p * 0.3, p * 0.21)),
    "binomial_probabilities": (
        [0.1, 0.3, 0.6, 0.9],
        lambda p: torch.binomial(torch.full_like(p, 50), p),
        lambda p: (p * 50, 50 * p * (1 - p)),
    ),
    "standard_gamma": ([0.7, 1, 2.5, 30], torch._standard_gamma, lambda p: (p, p)),
    "dirichlet": ([1, 2, 3, 4], torch._sample_dirichlet, lambda p: (p / 10, p * (10 - p) / 1100)),
    "normal_means": ([-5, 0, 3, 100], lambda p: torch.normal(p, 2.0), lambda p: (p, torch.full_like(p, 4))),
    "normal_deviations": ([0.1, 1, 3, 20], lambda p: torch.normal(1.0, p), lambda p: (torch.ones_like(p), p**2)),
    "poisson_of_high_rates": ([1e3, 1e4, 1e5, 1e6], torch.poisson, lambda p: (p, p)),
    "poisson_of_huge_rates": ([1e7, 1e8, 3e9, 4e9], torch.poisson, lambda p: (p, p)),
    "binomial_of_high_counts": ([1e3, 1e4, 1e5, 1e6], lambda p: torch.binomial(p, torch.full_like(p, 0.3)), lambda p: (p * 0.3, p * 0.21)),
    "binomial_of_rare_events": (
        [1e-4, 1e-3, 0.999, 0.9999],
        lambda p: torch.binomial(torch.full_like(p, 1e6), p),
        lambda p: (p * 1e6, 1e6 * p * (1 - p)),
    ),
    "standard_gamma_of_small_shapes": (
        [0.01, 0.02, 0.05, 0.1],
        lambda p: (torch._standard_gamma(p) > _THRESHOLD).to(p.dtype),
        lambda p: _of_events(torch.special.gammaincc(p, torch.full_like(p, _THRESHOLD))),
    ),
    "standard_gamma_of_large_shapes": ([100, 1e3, 1e4, 1e5], torch._standard_gamma, lambda p: (p, p)),
    "dirichlet_of_small_concentrations": ([0.05, 0.05, 0.1, 0.2], torch._sample_dirichlet, lambda p: (p / 0.4, p * (0.4 - p) / 0.224)),
    "dirichlet_of_large_concentrations": ([1e3, 2e3, 3e3, 4e3], torch._sample_dirichlet, lambda p: (p / 1e4, p * (1e4 - p) / 1.0001e12)),
    "normal_of_extreme_deviations": ([1e-6, 1e-3, 1e3, 1e6], lambda p: torch.normal(0.0, p), lambda p: (torch.zeros_like(p), p**2)),
    "normal_both": ([-4, 0.5, 2, 10], lambda p: torch.normal(p, p.abs() / 4), lambda p: (p, p**2 / 16)),
}
"""Samplers with a parameter for each element, by name: four values of the parameter, the sampler, and a function that returns the mean and
the variance for each value."""


def _arrangements(row: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield matrices in several memory layouts, each with the name of its layout. Every row of each matrix equals ``row``.

    In float64, there is only a contiguous matrix.
    """
    yield "contiguous", row.repeat(_ROWS, 1)
    if row.dtype is torch.float64:
        return
    yield "expanded", row.expand(_ROWS, len(row))
    yield "transposed", row.repeat(_ROWS, 1).t().contiguous().t()
    yield "strided", torch.stack([torch.full_like(row, 0.5), row], dim=1).flatten().repeat(_ROWS, 1)[:, 1::2]


def check_tensor_parameters(subject: Subject, name: str) -> None:
    """Check that a sampler uses the right parameter for each element, whatever the memory layout of the parameters is.

    For each parameter, the mean and the variance of the elements drawn with it are checked. Failures are recorded in the subject. A sampler
    that the device does not implement is recorded as unsupported.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the sampler in ``TENSOR_PARAMETERS``.
    """
    values, draw, moments = TENSOR_PARAMETERS[name]
    if name in _ONLY_IN_FLOAT64:
        subject.needs("float64")
    for dtype in ("float32", "float64"):
        if name in _ONLY_IN_FLOAT64 if dtype == "float32" else not subject.capabilities.can("dtype.float64"):
            continue
        row = torch.tensor(values, dtype=getattr(torch, dtype))
        expected = [one.tolist() for one in moments(row.double())]
        for layout, parameters in _arrangements(row.to(subject.device)):
            with subject.sample(f"{name} of {layout} parameters in {dtype}", {"layout": layout, "dtype": dtype}):
                try:
                    drawn = draw(parameters)
                except NotImplementedError as error:
                    raise NotSupported(f"the device does not implement {name}: {error}") from error
                subject.assert_on_device(drawn)
                assert drawn.shape == parameters.shape, f"the numbers have the shape {tuple(drawn.shape)}"
                for value, mean, variance, column in zip(values, *expected, drawn.cpu().double().unbind(1), strict=True):
                    check_mean(f"{name} with the parameter {value}", column, mean, variance)
                    found = float(column.var())
                    assert 0.7 < found / variance < 1.3, f"{name} of {value} has the variance {found:.4g}, not {variance:.4g}"


def check_mean(what: str, drawn: torch.Tensor, mean: float, variance: float, error: float = 0.0) -> None:
    """Check that the mean of random numbers is within ``MOST_ERRORS`` standard errors of the expected mean.

    Args:
        what: The description of the numbers in the error message, such as the name of the sampler.
        drawn: The numbers, on the CPU.
        mean: The expected mean.
        variance: The expected variance of one number.
        error: A deviation that is permitted in addition, such as the rounding error of the dtype.

    Raises:
        AssertionError: If the deviation is more than ``MOST_ERRORS`` standard errors plus ``error``.
    """
    found, bound = float(drawn.double().mean()), MOST_ERRORS * math.sqrt(variance / drawn.numel()) + error
    assert abs(found - mean) <= bound, f"{what} has the mean {found:.6g}, not {mean:.6g}"


_FLOAT_SAMPLERS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float, float]] = {
    "uniform_": (lambda x: x.uniform_(-1, 2), 0.5, 0.75),
    "uniform_ of negative numbers": (lambda x: x.uniform_(-5, -2), -3.5, 0.75),
    "normal_": (lambda x: x.normal_(1, 2), 1, 4),
    "normal_ with a negative mean": (lambda x: x.normal_(-7, 0.5), -7, 0.25),
    "cauchy_ with a negative median": (lambda x: (x.cauchy_(-3) < -3).to(x.dtype), 0.5, 0.25),
    "exponential_": (lambda x: x.exponential_(2), 0.5, 0.25),
    "log_normal_": (lambda x: x.log_normal_(0, 0.5), math.exp(0.125), (math.exp(0.25) - 1) * math.exp(0.25)),
    "log_normal_ with a negative mean": (
        lambda x: x.log_normal_(-2, 0.5), math.exp(-1.875), (math.exp(0.25) - 1) * math.exp(-3.75),
    ),
    "geometric_": (lambda x: x.geometric_(0.25), 4, 12),
    "geometric_ of rare events": (lambda x: x.geometric_(1e-3), 1000, 999_000),
    "geometric_ of frequent events": (lambda x: x.geometric_(0.999), 1 / 0.999, 0.001 / 0.999**2),
    "rand_like": (torch.rand_like, 0.5, 1 / 12),
    "randn_like": (torch.randn_like, 0, 1),
    "normal": (lambda x: torch.normal(torch.ones_like(x), 2.0), 1, 4),
    "bernoulli": (lambda x: torch.bernoulli(torch.full_like(x, 0.25)), 0.25, 0.1875),
    "poisson": (lambda x: torch.poisson(torch.full_like(x, 3)), 3, 3),
    "multinomial": (lambda x: torch.multinomial(torch.tensor([1, 0, 2, 1]).to(x), x.numel(), replacement=True).to(x), 1.75, 1.1875),
    "dropout": (lambda x: F.dropout(torch.ones_like(x), 0.5), 1, 1),
}  # fmt: skip
_SAMPLERS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float, float]] = {
    "bernoulli_": (lambda x: x.bernoulli_(0.3), 0.3, 0.21),
    "random_ of 0 and 1": (lambda x: x.random_(0, 2), 0.5, 0.25),
    "randint_like": (lambda x: torch.randint_like(x, 2), 0.5, 0.25),
}
_COMPLEX_SAMPLERS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], complex, float]] = {
    "rand": (lambda x: torch.rand(x.shape, dtype=x.dtype, device=x.device), 0.5 + 0.5j, 1 / 12),
    "rand_like": (torch.rand_like, 0.5 + 0.5j, 1 / 12),
    "uniform_": (lambda x: x.uniform_(-1, 2), 0.5 + 0.5j, 0.75),
    "randn": (lambda x: torch.randn(x.shape, dtype=x.dtype, device=x.device), 0, 0.5),
    "randn_like": (torch.randn_like, 0, 0.5),
    "normal_": (lambda x: x.normal_(0, 2), 0, 2),
    "normal": (lambda x: torch.normal(torch.ones_like(x), 2.0), 1, 2),
}
"""Samplers of complex numbers, by name. With each are the mean of its numbers, and the variance of the real and of the imaginary part."""
_INTEGER_SAMPLERS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float, float]] = {
    "random_": (lambda x: x.random_(3, 103), 52.5, 833.25),
    "randint": (lambda x: torch.randint(3, 103, x.shape, dtype=x.dtype, device=x.device), 52.5, 833.25),
}
_IN_RANGE: dict[str, Callable[[torch.Tensor, int, int], torch.Tensor]] = {
    "random_": lambda x, low, high: x.random_(low, high),
    "randint": lambda x, low, high: torch.randint(low, high, x.shape, dtype=x.dtype, device=x.device),
}
"""Samplers of integers, by name. Each takes a tensor, the first integer, and the integer after the last."""
_SMALL_RANGES = ((-1, 10), (-100, -7), (-5, 0), (-128, 127))
_FAR_RANGES = dict.fromkeys(("float64", "int64"), ((-(2**40), -(2**40) + 8), (2**40, 2**40 + 8)))
"""Ranges of integers: the first integer, and the integer after the last. Each dtype except uint8 and bool can represent every integer of
the small ranges. Dtypes other than float64 and int64 cannot represent every integer of the far ranges."""
_LARGEST = {
    "float32": 2**24, "float16": 2**11, "bfloat16": 2**8, "float64": 2**53, "int64": 2**63 - 1, "int32": 2**31 - 1, "int16": 2**15 - 1,
    "int8": 127, "uint8": 255, "bool": 1,
}  # fmt: skip
"""The largest number that ``random_()`` draws, by dtype."""


def check_dtype_of_samplers(subject: Subject, dtype: str) -> None:
    """Check the means of numbers that samplers draw in a dtype, and the range and the mean of ``random_`` without arguments.

    A failure is recorded in the subject if a tensor is not on the device or has the wrong dtype, if a number is not finite, or if a mean is
    wrong. The same applies if ``random_`` draws a number outside its range, or no number in the top 2 % of its range, or if ``random_`` or
    ``randint``, given one of ``_SMALL_RANGES`` or ``_FAR_RANGES``, does not draw exactly the integers of this range. For complex dtypes,
    see :func:`_check_complex_samplers`.
    """
    if dtype.startswith("complex"):
        _check_complex_samplers(subject, dtype)
        return
    is_float = getattr(torch, dtype).is_floating_point
    calls = {**_SAMPLERS, **(_FLOAT_SAMPLERS if is_float else {}), **(_INTEGER_SAMPLERS if dtype != "bool" else {})}
    for name, (draw, mean, variance) in calls.items():
        if (name == "dropout" and subject.lacks("bool")) or (name == "multinomial" and subject.lacks("int64")):
            continue
        with subject.sample(f"{name} of {dtype}", {"name": name, "dtype": dtype}):
            drawn = _drawn(subject, name, draw, getattr(torch, dtype))
            if drawn is None:
                continue
            values = drawn.cpu().double()
            assert bool(values.isfinite().all()), f"{name} drew numbers that are not finite"
            eps = torch.finfo(drawn.dtype).eps if is_float else 0.0
            check_mean(name, values, mean, variance, error=eps * (abs(mean) + math.sqrt(variance)))
    with subject.sample(f"random_() of {dtype}", {"name": "random_", "dtype": dtype}):
        values = torch.zeros(_NUM_DRAWS, dtype=getattr(torch, dtype), device=subject.device).random_().cpu().double()
        largest = float(_LARGEST[dtype])
        assert float(values.min()) >= 0, f"random_() drew {float(values.min())}"
        assert largest * 0.98 <= float(values.max()) <= largest, f"the largest of {_NUM_DRAWS} numbers of random_() is {values.max():.0f}"
        check_mean("random_()", values, largest / 2, largest * (largest + 2) / 12)
    for low, high in (*_SMALL_RANGES, *_FAR_RANGES.get(dtype, ())) if dtype not in ("uint8", "bool") else ():
        for name, draw_in_range in _IN_RANGE.items():
            with subject.sample(f"{name} of {dtype} from {low} to {high}", {"name": name, "dtype": dtype}):
                zeros = torch.zeros(_NUM_DRAWS, dtype=getattr(torch, dtype), device=subject.device)
                _check_range(f"{name} from {low} to {high}", draw_in_range(zeros, low, high), low, high)


def _check_range(name: str, drawn: torch.Tensor, low: int, high: int) -> None:
    """Check that the numbers are integers, that each integer from ``low`` to ``high - 1`` occurs, and that no other number does.

    Raises:
        AssertionError: If this is not so, or if the mean of the numbers is wrong.
    """
    values = drawn.cpu().double().unique()
    is_right = torch.equal(values, torch.arange(low, high, dtype=torch.float64))
    assert is_right, f"{name} drew {len(values)} different numbers from {values[0]} to {values[-1]}"
    check_mean(name, drawn.cpu().double() - low, (high - low - 1) / 2, ((high - low) ** 2 - 1) / 12)


def _drawn(subject: Subject, name: str, draw: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> torch.Tensor | None:
    """Draw 20,000 numbers on the device, and check their device and dtype. Return None if the sampler is not implemented for the dtype,
    which tests of operators report."""
    try:
        drawn = draw(torch.zeros(_NUM_DRAWS, dtype=dtype, device=subject.device))
    except NotImplementedError:
        return None
    subject.assert_on_device(drawn)
    assert drawn.dtype == dtype, f"{name} drew numbers of {drawn.dtype}"
    return drawn


def _check_complex_samplers(subject: Subject, dtype: str) -> None:
    """Check the mean and the variance of the real and the imaginary parts of random complex numbers, and their correlation.

    A failure is recorded in the subject if a tensor is not on the device or has the wrong dtype, or if the mean, the variance or the
    correlation is wrong.
    """
    for name, (draw, mean, variance) in _COMPLEX_SAMPLERS.items():
        with subject.sample(f"{name} of {dtype}", {"name": name, "dtype": dtype}):
            drawn = _drawn(subject, name, draw, getattr(torch, dtype))
            if drawn is None:
                continue
            parts = torch.view_as_real(drawn.cpu()).double().unbind(1)
            for part, values, expected in zip(("real", "imaginary"), parts, (complex(mean).real, complex(mean).imag), strict=True):
                check_mean(f"the {part} part of {name}", values, expected, variance)
                found = float(values.var())
                assert 0.9 < found / variance < 1.1, f"the {part} part of {name} has the variance {found:.4g}, not {variance:.4g}"
            correlation = float(torch.corrcoef(torch.stack(parts))[0, 1])
            assert abs(correlation) < MOST_ERRORS / math.sqrt(_NUM_DRAWS), f"the parts of {name} are correlated: {correlation:.4f}"


_RANGES = ((-(2**40), 2**40), (0, 2**25), (-(2**62), 2**62), (2**40, 2**40 + 8), (-(2**31), 2**31), (0, 2**33))
"""Ranges of integers whose sizes are powers of 2: the first integer, and the integer after the last."""


def check_wide_ranges(subject: Subject) -> None:
    """Check int64 numbers drawn from wide ranges and from a range far from zero.

    The start of the range is subtracted from each number. Each bit of these differences must be set in about half of the draws. A failure
    is recorded in the subject if a number is outside its range, or if a bit is set too often or too rarely.
    """
    draws: dict[str, Callable[[int, int], torch.Tensor]] = {
        "randint": lambda low, high: torch.randint(low, high, (_NUM_DRAWS,), device=subject.device),
        "random_": lambda low, high: torch.zeros(_NUM_DRAWS, dtype=torch.int64, device=subject.device).random_(low, high),
    }
    for name, draw in draws.items():
        for low, high in _RANGES:
            with subject.sample(f"{name} from {low} to {high}", {"name": name, "low": low}):
                drawn = draw(low, high).cpu()
                assert low <= int(drawn.min()), f"{name} from {low} to {high} drew {int(drawn.min())}"
                assert int(drawn.max()) < high, f"{name} from {low} to {high} drew {int(drawn.max())}"
                for bit in range((high - low).bit_length() - 1):
                    check_mean(f"bit {bit} of {name} from {low} to {high}", ((drawn - low) >> bit) & 1, 0.5, 0.25)


def check_rare_categories(subject: Subject) -> None:
    """Check that ``multinomial`` draws no category whose weight is zero, and draws the other categories with the right frequencies.

    The weights have many rows, and most weights in each row are zero. All floating-point dtypes of the device are tested. In float32 and
    float64, one or two samples of each row are drawn, with and without replacement. In float16 and bfloat16, only two samples with
    replacement are drawn. Pairs of samples from few weights, and samples from very many weights, are checked as well. Failures are recorded
    in the subject.

    Raises:
        NotSupported: If the device lacks int64.
    """
    subject.needs("int64")
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        if dtype != "float32" and not subject.capabilities.can(f"dtype.{dtype}"):
            continue
        weights = torch.zeros(_ROWS, 300)
        weights[::2, [7, 128, 299]] = torch.tensor([8.0, 1.0, 7.0])
        weights[1::2, [0, 255]] = torch.tensor([0.25, 0.75])
        for layout, rows in {"contiguous": weights, "transposed": weights.t().contiguous().t()}.items():
            there = torch.empty_like(rows, dtype=getattr(torch, dtype), device=subject.device).copy_(rows)
            # All other calls divide by exponential random numbers. In half precision, the CPU rounds one in 30 million of these to zero.
            for number, is_repeated in ((2, True), *(((1, False), (1, True), (2, False)) if dtype.endswith(("32", "64")) else ())):
                doing = f"{number} sample{'s' * (number > 1)} of {layout} {dtype} weights, replacement={is_repeated}"
                with subject.sample(doing, {"dtype": dtype, "number": number}):
                    drawn = torch.multinomial(there, number, is_repeated).cpu()
                    assert drawn.shape == (_ROWS, number), f"{doing} have the shape {tuple(drawn.shape)}"
                    assert 0 <= int(drawn.min()) <= int(drawn.max()) < 300, f"{doing} are between {int(drawn.min())} and {int(drawn.max())}"
                    assert bool((weights.gather(1, drawn) > 0).all()), f"{doing} contain categories without weight"
                    check_mean(f"category 7 in {doing}", drawn[::2, 0] == 7, 0.5, 0.25)
                    check_mean(f"category 128 in {doing}", drawn[::2, 0] == 128, 1 / 16, 15 / 256)
                    check_mean(f"category 255 in {doing}", drawn[1::2, 0] == 255, 0.75, 3 / 16)
    _check_pairs(subject)
    _check_many_categories(subject)


def _check_pairs(subject: Subject) -> None:
    """Check the frequency of each pair of samples that ``multinomial`` draws without replacement from rows of four weights.

    After a category of weight w has been drawn, the other categories are drawn in proportion to their weights, whose sum is then 1 - w.
    """
    weights = [0.1, 0.2, 0.3, 0.4]
    with subject.sample("pairs of samples without replacement", {"number": 2}):
        drawn = torch.multinomial(torch.tensor(weights, device=subject.device).repeat(_NUM_DRAWS, 1), 2).cpu()
        for first, second in itertools.permutations(range(len(weights)), 2):
            p = weights[first] * weights[second] / (1 - weights[first])
            check_mean(f"the pair of categories {first} and {second}", (drawn == torch.tensor([first, second])).all(1), p, p * (1 - p))


def _check_many_categories(subject: Subject) -> None:
    """Check the frequencies of a million categories of the same weight, summed over categories with the same first or last digit."""
    count = 1_000_000
    with subject.sample(f"{count} categories", {"number": count}):
        drawn = torch.multinomial(torch.ones(count, device=subject.device), count, replacement=True).cpu()
        for what, digits in {"first": drawn // (count // 10), "last": drawn % 10}.items():
            for digit in range(10):  # a device may add up the weights in float32, which rounds each of them by up to 3 %
                check_mean(f"the {what} digit {digit} of a million categories", digits == digit, 0.1, 0.09, error=0.001)
        distinct, expected = len(drawn.unique()), count * (1 - math.exp(-1))
        assert abs(distinct - expected) < 0.01 * expected, f"{distinct} of {count} categories are drawn, not {expected:.0f}"
