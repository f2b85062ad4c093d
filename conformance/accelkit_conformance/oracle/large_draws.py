"""Checks of large random draws and of ``randperm``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from accelkit_conformance.oracle.distributions import MOST_ERRORS, check_mean
from accelkit_conformance.oracle.lacking_dtypes import require_dtypes

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_MANY = (1 << 24) + 28
_TAIL = 300_000
_LENGTHS = (1_000_000, 1_000_000, 70_001, 70_001, 1000, 1000)
_MOST_REPEATED = 3

SUCCESSIVE: dict[str, tuple[Callable[[int, torch.device], torch.Tensor], int]] = {
    "rand": (lambda length, device: torch.rand(length, device=device), 3),
    "rand_float64": (lambda length, device: torch.rand(length, device=device, dtype=torch.float64), 1),
    "randn": (lambda length, device: torch.randn(length, device=device), 3),
    "exponential": (lambda length, device: torch.empty(length, device=device).exponential_(), 3),
    "randint": (lambda length, device: torch.randint(0, 1000, (length,), device=device), 6),
    "randint_33_bits": (lambda length, device: torch.randint(0, 6_000_000_000, (length,), device=device), 2),
    "randint_62_bits": (lambda length, device: torch.randint(-(2**61), 2**61, (length,), device=device), 1),
    "random_": (lambda length, device: torch.empty(length, device=device, dtype=torch.int64).random_(), 1),
    "random_int32": (lambda length, device: torch.empty(length, device=device, dtype=torch.int32).random_(), 2),
    "bernoulli": (lambda length, device: torch.empty(length, device=device).bernoulli_(), 60),
}
"""Samplers, by name. Each takes the number of random numbers and a device. With each is a number n, such that n successive random numbers
can have at least 2**48 different values."""


def check_large_draws(subject: Subject) -> None:
    """Check that the last numbers of a large draw have the right mean, and that sequences near its end occur nowhere else in the draw.

    Failures of single samplers, such as ``rand`` or ``bernoulli_``, are recorded in the subject.

    Raises:
        AssertionError: If more than two of the integers that ``randint`` draws from 0 to 2**62 repeat an earlier one.
    """
    device = subject.device
    draws: dict[str, tuple[Callable[[], torch.Tensor], float, float]] = {
        "rand": (lambda: torch.rand(_MANY, device=device), 0.5, 1 / 12),
        "randn": (lambda: torch.randn(_MANY, device=device), 0, 1),
        "bernoulli_": (lambda: torch.empty(_MANY, device=device).bernoulli_(0.25), 0.25, 0.1875),
        "randint": (lambda: torch.randint(0, 1000, (_MANY,), device=device), 499.5, 83333.25),
    }
    if not subject.lacks("bool"):
        draws["dropout"] = (lambda: torch.nn.functional.dropout(torch.ones(_MANY, device=device)), 1, 1)
    for name, (draw, mean, variance) in draws.items():
        with subject.sample(name, {"name": name}):
            drawn = draw().cpu()
            check_mean(f"the end of {name}", drawn[-_TAIL:], mean, variance)
            if name in ("rand", "randn", "randint"):
                for start in (_MANY - 4, _MANY - 40_000, _MANY - _TAIL):
                    assert _occurrences(drawn, start) == 1, (
                        f"the four numbers of {name} from index {start} on also occur elsewhere in the draw"
                    )
    count = 2_000_003
    distinct = len(torch.randint(0, 2**62, (count,), device=device).cpu().unique())
    assert distinct > count - 3, f"of {count} numbers from 0 to 2**62, only {distinct} are distinct"


def _occurrences(drawn: torch.Tensor, start: int) -> int:
    """Return how often the sequence of the four numbers at the indices ``start`` to ``start + 3`` occurs in the tensor."""
    places = torch.nonzero(drawn == drawn[start]).flatten()
    places = places[places < len(drawn) - 3]
    return int(torch.stack([drawn[places + offset] == drawn[start + offset] for offset in range(4)]).all(0).sum())


def check_permutations(subject: Subject) -> None:
    """Check that ``randperm`` and ``multinomial`` put each number in each place equally often, and that long permutations are random.

    Raises:
        AssertionError: If a number is in a place too often or too rarely, or if the difference of neighbours is 1 too often or too rarely.
            It is also raised if a long permutation has the wrong dtype, lacks a number, is correlated with the ordered numbers or with
            another permutation, or has too many neighbours that differ by 1.
    """
    device = subject.device
    _check_short_permutations("randperm", lambda size: torch.randperm(size, device=device))
    _check_short_permutations("multinomial", lambda size: torch.multinomial(torch.ones(size, device=device), size))
    length = 100_000
    dtypes = [torch.int64] + ([torch.int32] if not subject.lacks("int32") else [])
    for dtype in dtypes:
        one, other = (torch.randperm(length, device=device, dtype=dtype).cpu() for _ in range(2))
        assert one.dtype == dtype, f"randperm of {dtype} gave {one.dtype}"
        assert torch.equal(one.sort()[0], torch.arange(length, dtype=dtype)), f"randperm({length}) of {dtype} is not a permutation"
        for what, second in {"the order of the numbers": torch.arange(length), "the next permutation": other}.items():
            correlation = float(torch.corrcoef(torch.stack([one.double(), second.double()]))[0, 1])
            assert abs(correlation) < MOST_ERRORS / math.sqrt(length), (
                f"a permutation of {dtype} is correlated with {what}: {correlation:.4f}"
            )
        neighbours = float(((one[1:].long() - one[:-1].long()).abs() == 1).sum())
        assert neighbours < 30, f"{neighbours:.0f} neighbours in a permutation of {length} numbers differ by 1; 2 are expected"


def _check_short_permutations(name: str, draw: Callable[[int], torch.Tensor]) -> None:
    """Check the places and the neighbours of the numbers in many short permutations."""
    size, number = 40, 400
    counts, num_neighbours = torch.zeros(size, size), 0
    for _ in range(number):
        drawn = draw(size).cpu()  # read one by one, as in ``discrete_distributions``
        counts[torch.arange(size), drawn] += 1
        num_neighbours += int((drawn.diff().abs() == 1).sum())
    expected, freedom = number / size, (size - 1) ** 2
    chi_squared = float(((counts - expected) ** 2 / expected).sum()) * (size - 1) / size
    bound = freedom + MOST_ERRORS * math.sqrt(2 * freedom)
    assert chi_squared < bound, f"the chi-squared statistic of the places in {name} is {chi_squared:.0f}, more than {bound:.0f}"
    due = number * 2 * (size - 1) / size
    assert abs(num_neighbours - due) < MOST_ERRORS * math.sqrt(due), (
        f"{num_neighbours} neighbours in {name} differ by 1; {due:.0f} are expected"
    )


def _hashes(numbers: torch.Tensor, width: int) -> torch.Tensor:
    """Return an int64 hash of each sequence of ``width`` successive numbers. ``numbers`` are of dtype int64."""
    last = len(numbers) - width + 1
    hashes = torch.zeros(last, dtype=torch.int64)
    for offset in range(width):
        hashes = (hashes ^ (hashes >> 29) ^ numbers[offset : last + offset]) * 6_364_136_223_846_793_005
    return hashes


def check_successive_draws(subject: Subject, name: str) -> None:
    """Check that sequences of random numbers do not occur again in the same draw or in later draws.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the sampler in ``SUCCESSIVE``.

    Raises:
        AssertionError: If more than a few sequences occur again.
        NotSupported: If the device lacks a dtype that the sampler needs.
    """
    draw, width = SUCCESSIVE[name]
    require_dtypes(subject, lambda: draw(1, torch.device("cpu")))
    codes = []
    for length in _LENGTHS:
        drawn = draw(length, subject.device).cpu()
        numbers = drawn.double().view(torch.int64) if drawn.is_floating_point() else drawn.long()
        codes.append(_hashes(numbers, width))
    every = torch.cat(codes)
    repeated = len(every) - len(every.unique())
    assert repeated <= _MOST_REPEATED, (
        f"in successive draws of {', '.join(map(str, _LENGTHS))} numbers, {repeated} sequences of length {width} occur again"
    )
