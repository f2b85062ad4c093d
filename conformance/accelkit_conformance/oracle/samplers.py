"""Calls that draw random numbers on a device, and the checks of their results."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle.sample_transfer import has_memory

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_COUNT = 500
_SHAPES = ((40, 50), (3, 4, 100), (4, 3, 5, 40), (2, 3, 4, 5, 60), (3, 2, 2, 4, 3, 60))

IN_PLACE: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "uniform_": lambda x, generator: x.uniform_(2, 3, generator=generator),
    "normal_": lambda x, generator: x.normal_(9, 1, generator=generator),
    "exponential_": lambda x, generator: x.exponential_(0.5, generator=generator),
    "bernoulli_": lambda x, generator: x.bernoulli_(0.5, generator=generator),
    "random_": lambda x, generator: x.random_(3, 90, generator=generator),
    "geometric_": lambda x, generator: x.geometric_(0.1, generator=generator),
    "cauchy_": lambda x, generator: x.cauchy_(0, 1, generator=generator),
    "log_normal_": lambda x, generator: x.log_normal_(1, 1, generator=generator),
}
"""Samplers that fill a tensor, by name. Each takes the tensor and a generator."""


def _filled(name: str) -> Callable[[Any, Any], torch.Tensor]:
    return lambda device, generator: IN_PLACE[name](torch.zeros(_COUNT, device=device), generator)


SAMPLERS: dict[str, Callable[[Any, Any], torch.Tensor]] = {
    "rand": lambda device, generator: torch.rand(_COUNT, device=device, generator=generator),
    "randn": lambda device, generator: torch.randn(_COUNT, device=device, generator=generator),
    "randint": lambda device, generator: torch.randint(0, 1000, (_COUNT,), device=device, generator=generator),
    "randperm": lambda device, generator: torch.randperm(_COUNT, device=device, generator=generator),
    "normal": lambda device, generator: torch.normal(torch.zeros(_COUNT, device=device), 2.0, generator=generator),
    "bernoulli": lambda device, generator: torch.bernoulli(torch.full((_COUNT,), 0.5, device=device), generator=generator),
    "poisson": lambda device, generator: torch.poisson(torch.full((_COUNT,), 20.0, device=device), generator=generator),
    "multinomial": lambda device, generator: torch.multinomial(torch.ones(1000, device=device), _COUNT, generator=generator),
    "multinomial_once": lambda device, generator: torch.multinomial(torch.ones(_COUNT, 1000, device=device), 1, generator=generator),
    **{name: _filled(name) for name in IN_PLACE},
}
"""Samplers of 500 numbers, by name. Each takes the device and a generator."""

INTEGER_SAMPLERS = ("randint", "randperm", "multinomial", "multinomial_once")
"""The names of the samplers that draw numbers of the dtype int64."""


def check_generator_argument(subject: Subject, name: str) -> None:
    """Check that the numbers drawn by a sampler depend only on the generator passed as ``generator=``.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the sampler in ``SAMPLERS``.

    Raises:
        AssertionError: If the numbers depend on the default generator, if two successive draws from one generator are equal, or if the
            default generator was advanced.
        NotSupported: If the sampler needs int64, and the device lacks it.
    """
    subject.needs(*(("int64",) if name in INTEGER_SAMPLERS else ()))
    drawn = []
    for default_seed in (1, 2):
        generator = torch.Generator(device=subject.device).manual_seed(12)
        subject.accelerator.manual_seed(default_seed)
        drawn.append(SAMPLERS[name](subject.device, generator))
        after = torch.rand(20, device=subject.device).cpu()
        subject.accelerator.manual_seed(default_seed)
        assert torch.equal(torch.rand(20, device=subject.device).cpu(), after), f"{name} advanced the default generator"
    subject.assert_on_device(*drawn)
    assert torch.equal(drawn[0].cpu(), drawn[1].cpu()), f"{name} drew other numbers with the same seed of its generator"
    again = SAMPLERS[name](subject.device, generator).cpu()
    assert not torch.equal(again, drawn[1].cpu()), f"{name} drew the same numbers twice from one generator"


def check_strided_destinations(subject: Subject, name: str) -> None:
    """Check a sampler that draws into a column of a matrix.

    The sampler must fill the whole column, leave the other columns unchanged, and advance the generator.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the sampler in ``IN_PLACE``.

    Raises:
        AssertionError: If the sampler does not return its argument, if an element of the column is not filled or an element outside it
            changes, if too many numbers are equal, or if the second half of the column or a later draw repeats earlier numbers.
    """
    buffer = torch.full((400, 3), -7.25, device=subject.device)
    result = IN_PLACE[name](buffer[:, 1], None)
    assert not has_memory(result) or result.data_ptr() == buffer[:, 1].data_ptr(), f"{name} did not return its argument"
    here = buffer.cpu()
    assert bool((here[:, [0, 2]] == -7.25).all()), f"{name} wrote between the elements of the slice"
    assert bool((here[:, 1] != -7.25).all()), f"{name} did not fill {int((here[:, 1] == -7.25).sum())} elements of the slice"
    assert len(here[:, 1].unique()) > (1 if name == "bernoulli_" else 20), f"{name} filled the slice with the same numbers"
    assert not torch.equal(here[:200, 1], here[200:, 1]), f"{name} repeats the first half of the slice"
    drawn = {"a column": here[:, 1]}
    for layout, target in {
        "another column": buffer[:, 0],
        "a transposed tensor": torch.zeros(20, 20, device=subject.device).t(),
        "a contiguous tensor": torch.zeros(400, device=subject.device),
    }.items():
        numbers = IN_PLACE[name](target, None).cpu()
        for order, one in {"": numbers, ", transposed": numbers.t()}.items():
            for earlier, other in drawn.items():
                assert not torch.equal(one.flatten(), other), f"{name} into {layout} repeats the numbers of {earlier}{order}"
        drawn |= {layout: numbers.flatten(), f"{layout}, in the order of memory": numbers.t().flatten()}


def check_many_dimensions(subject: Subject, name: str) -> None:
    """Check that the numbers of a draw with two to six dimensions do not repeat along any dimension.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the sampler in ``IN_PLACE``. For ``uniform_`` and ``normal_``, the numbers of ``rand`` and ``randn`` are checked
            as well.

    Raises:
        AssertionError: If two neighbouring slices of a tensor have the same numbers.
    """
    factories = {"uniform_": torch.rand, "normal_": torch.randn}
    for shape in _SHAPES:
        drawn = {name: IN_PLACE[name](torch.zeros(shape, device=subject.device), None)}
        if name in factories:
            drawn[factories[name].__name__] = factories[name](shape, device=subject.device)
        for sampler, numbers in drawn.items():
            here = numbers.cpu()
            for dim, length in enumerate(shape):
                for index in range(1, length):
                    is_new = not torch.equal(here.select(dim, index), here.select(dim, index - 1))
                    assert is_new, f"{sampler} of {shape} gives the same numbers for the indices {index - 1} and {index} of dimension {dim}"


def check_bounds(subject: Subject, dtype: str) -> None:
    """Check that uniform random numbers of the given dtype lie in the requested interval.

    In addition, later numbers must not repeat earlier numbers.

    Raises:
        AssertionError: If a number is outside the interval or equal to its upper end, if the last third of the numbers repeats the first
            third, or if the means of the first and the last third differ by at least 1 % of the length of the interval.
    """
    for low, high, drawn in (
        (0.0, 1.0, torch.rand(300_000, device=subject.device, dtype=getattr(torch, dtype))),
        (-2.0, 3.0, torch.empty(300_000, device=subject.device, dtype=getattr(torch, dtype)).uniform_(-2, 3)),
    ):
        values = drawn.cpu().double()
        assert low <= float(values.min()), f"the smallest of the numbers from {low} to {high} is {float(values.min())!r}"
        is_below = float(values.max()) < high
        assert is_below, f"the largest of the numbers from {low} to {high}, without {high}, is {float(values.max())!r}"
        parts = values.view(3, -1)
        off = float((parts[0].mean() - parts[2].mean()).abs()) / (high - low)
        assert off < 0.01, f"the means of the first and the last third differ by {off:.3f} of the interval"
        assert not torch.equal(parts[0], parts[2]), "the last third repeats the first"


def check_without_replacement(subject: Subject) -> None:
    """Check that ``randperm``, and ``multinomial`` without replacement, draw no number twice.

    Raises:
        AssertionError: If a number is drawn twice, if ``multinomial`` draws a number whose weight is 0, or if a permutation of 33 or more
            numbers is the identity.
    """
    for count in (1, 2, 33, 1000, 70_000):
        drawn = torch.randperm(count, device=subject.device)
        subject.assert_on_device(drawn)
        assert torch.equal(drawn.cpu().sort()[0], torch.arange(count)), f"randperm({count}) is not a permutation"
        assert count < 33 or not torch.equal(drawn.cpu(), torch.arange(count)), f"randperm({count}) is the identity"
    weights = torch.ones(50, 20, device=subject.device)
    weights[:, ::4] = 0
    weights[:, 1] = 1e-17  # drawn nevertheless, because 15 indices have a weight
    rows = torch.multinomial(weights, 15).cpu()
    assert all(len(row.unique()) == 15 for row in rows), "multinomial without replacement drew a number twice in one row"
    assert not bool((rows % 4 == 0).any()), "multinomial drew a number without weight"


def check_dropout_in_attention(subject: Subject) -> None:
    """Check that dropout in ``scaled_dot_product_attention`` depends on the seed, keeps the mean of the results, and has the same mask in
    the forward and the backward pass.

    Raises:
        AssertionError: If two calls with the same seed have different masks, if two successive calls have the same mask, if the mean
            of the results changes, or if the forward and the backward pass have different masks.
        NotSupported: If the device lacks bool.
    """
    subject.needs("bool")
    q, k = (torch.randn(1, 2, 64, 16, device=subject.device) for _ in range(2))
    v = torch.ones(1, 2, 64, 16, device=subject.device, requires_grad=True)

    def attend() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5)

    torch.manual_seed(3)
    first, other = attend(), attend()
    torch.manual_seed(3)
    assert torch.equal(attend().cpu(), first.cpu()), "the same seed gives another mask"
    assert not torch.equal(other.cpu(), first.cpu()), "two calls have the same mask"
    assert abs(float(first.mean()) - 1) < 0.15, f"the mean of the results is {float(first.mean()):.3f}, not 1"
    (gradient,) = torch.autograd.grad(first.sum(), v)
    off = abs(float(gradient.sum()) - float(first.sum())) / float(first.sum())
    assert off < 1e-3, "the gradient does not have the mask of the forward pass"


def check_discrete_draws(subject: Subject, name: str, num_draws: int) -> None:
    """Check that each value of a discrete distribution is drawn with its expected frequency, within five standard deviations.

    Args:
        subject: The plugin under test, with its device.
        name: The distribution.
        num_draws: The number of draws. ``randperm`` is called only 500 times.

    Raises:
        AssertionError: If a value is not drawn with its expected frequency, or if a value outside the distribution is drawn.
        NotSupported: If the device lacks a dtype that the distribution needs.
    """
    subject.needs(*{"randint": ("int64",), "randperm": ("int64",), "multinomial": ("int64",), "dropout": ("bool",)}.get(name, ()))
    device = subject.device
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4], device=device)
    draws: dict[str, tuple[Callable[[], torch.Tensor], list[float]]] = {
        "bernoulli": (lambda: torch.empty(num_draws, device=device).bernoulli_(0.3), [0.7, 0.3]),
        "bernoulli_tensor": (lambda: torch.bernoulli(torch.full((num_draws,), 0.8, device=device)), [0.2, 0.8]),
        "randint": (lambda: torch.randint(0, 5, (num_draws,), device=device), [0.2] * 5),
        "randperm": (lambda: torch.tensor([_first_of_permutation(subject) for _ in range(500)]).to(device), [0.25] * 4),
        "multinomial": (lambda: torch.multinomial(weights, num_draws, replacement=True), [0.1, 0.2, 0.3, 0.4]),
        "dropout": (lambda: torch.nn.functional.dropout(torch.ones(num_draws, device=device), 0.25) * 0.75, [0.25, 0.75]),
        "random_": (
            lambda: torch.cat(
                [torch.empty(num_draws // 2, device=device).random_(4), torch.empty(num_draws // 2, device=device).random_(0, 4)]
            ),
            [0.25] * 4,
        ),
        "poisson": (lambda: torch.poisson(torch.full((num_draws,), 0.7, device=device)).clamp(max=3), [0.49659, 0.34761, 0.12166, 0.03414]),
        "binomial": (
            lambda: torch.binomial(torch.full((num_draws,), 2.0, device=device), torch.tensor(0.3, device=device)),
            [0.49, 0.42, 0.09],
        ),
        "geometric_": (lambda: torch.empty(num_draws, device=device).geometric_(0.5).clamp(max=4) - 1, [0.5, 0.25, 0.125, 0.125]),
    }
    draw, frequencies = draws[name]
    drawn = draw()
    subject.assert_on_device(drawn)
    drawn = drawn.cpu()
    values = drawn.round().long()
    if name == "multinomial":
        rows = torch.multinomial(torch.ones(64, 1000, device=device), 1).cpu()
        assert len(rows.unique()) > 16, f"the 64 rows of a matrix drew only {len(rows.unique())} different numbers of 1000"
    fraction = float((drawn - values).abs().max())
    assert fraction < 1e-3, f"{name} drew a number that differs from an integer by {fraction:.3g}"
    outside = values[(values < 0) | (values >= len(frequencies))]
    assert not len(outside), f"{name} drew {int(outside[0])}"
    counts = torch.bincount(values, minlength=len(frequencies))
    total = int(counts.sum())
    for value, (count, frequency) in enumerate(zip(counts.tolist(), frequencies, strict=True)):
        deviation = abs(count - total * frequency) / math.sqrt(total * frequency * (1 - frequency))
        assert deviation < 5, f"{name} drew {value} {count} times in {total}; {total * frequency:.0f} are expected"


def check_moments(subject: Subject, name: str, num_draws: int) -> None:
    """Check the mean and the variance of a distribution.

    Args:
        subject: The plugin under test, with its device.
        name: The distribution: ``standard_gamma``, ``dirichlet`` or ``normal_of_tensors``.
        num_draws: The number of draws.

    Raises:
        AssertionError: If the mean is off by five standard errors or more, if the variance is off by 10 % or more, or if the numbers are
            not on the device under test.
    """
    device = subject.device
    draws: dict[str, tuple[Callable[[], torch.Tensor], float, float]] = {
        "standard_gamma": (lambda: torch._standard_gamma(torch.full((num_draws,), 2.0, device=device)), 2.0, 2.0),
        "dirichlet": (lambda: torch._sample_dirichlet(torch.ones(num_draws, 4, device=device))[:, 0], 0.25, 0.0375),
        "normal_of_tensors": (lambda: torch.normal(3.0, torch.full((num_draws,), 2.0, device=device)), 3.0, 4.0),
    }
    draw, mean, variance = draws[name]
    drawn = draw()
    subject.assert_on_device(drawn)
    values = drawn.cpu().double()
    error = math.sqrt(variance / num_draws)
    assert abs(values.mean().item() - mean) < 5 * error, f"the mean is {values.mean().item():.4f}, not {mean}"
    assert abs(values.var().item() / variance - 1) < 0.1, f"the variance is {values.var().item():.4f}, not {variance}"


def _first_of_permutation(subject: Subject) -> int:
    drawn = torch.randperm(4, device=subject.device)
    subject.assert_on_device(drawn)
    return int(drawn[0])  # read one by one, because a device that traces lazily would otherwise compile all draws as one graph
