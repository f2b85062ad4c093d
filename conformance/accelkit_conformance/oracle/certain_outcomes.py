"""Calls to samplers and to dropout that can have only one result."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes
from accelkit_conformance.oracle.sample_transfer import tensors

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def _pattern(device: torch.device) -> torch.Tensor:
    return (torch.arange(1000) % 3 == 0).float().to(device)


def _hot(device: torch.device, categories: int, dtype: torch.dtype) -> torch.Tensor:
    """Return 16 rows of weights. In each row, exactly one weight is not zero."""
    weights = torch.zeros(16, categories)
    weights[torch.arange(16), (torch.arange(16) * 7919) % categories] = torch.logspace(-3, 4, 16)
    return weights.to(device, dtype)


_OF_NO_NUMBERS: dict[str, Callable[[torch.device], Any]] = {
    "rand": lambda device: (torch.rand(3, 0, device=device), torch.rand_like(torch.rand(0, 2, device=device))),
    "randn": lambda device: (torch.randn(0, device=device), torch.randn_like(torch.rand(0, 2, device=device))),
    "randint": lambda device: torch.randint(9, (0, 3), device=device),
    "randint_like": lambda device: torch.randint_like(torch.zeros(0, 3, device=device), 9),
    "randperm": lambda device: torch.randperm(0, device=device),
    "normal": lambda device: torch.normal(2.0, 3.0, (0, 3), device=device),
    "normal of tensors": lambda device: [
        torch.normal(torch.zeros(3, 0, device=device), 1.0),
        torch.normal(0.0, torch.ones(3, 0, device=device)),
        torch.normal(torch.zeros(0, 3, device=device), torch.ones(0, 3, device=device)),
        torch.normal(torch.zeros(0, 3, device=device), torch.ones(3, device=device)),
    ],
    **{
        name: lambda device, name=name, arguments=arguments: getattr(torch.zeros(2, 0, device=device), name)(*arguments)  # type: ignore[misc]
        for name, arguments in {
            "normal_": (), "uniform_": (), "exponential_": (), "cauchy_": (), "log_normal_": (), "geometric_": (0.5,), "bernoulli_": (0.5,),
            "random_": (2, 9),
        }.items()
    },
    "bernoulli": lambda device: torch.bernoulli(torch.zeros(0, 2, device=device)),
    "bernoulli_ of a tensor": lambda device: torch.zeros(0, 2, device=device).bernoulli_(torch.zeros(0, 2, device=device)),
    "poisson": lambda device: torch.poisson(torch.zeros(0, 3, device=device)),
    "binomial": lambda device: torch.binomial(torch.ones(0, 3, device=device), torch.ones(0, 3, device=device)),
    "standard_gamma": lambda device: torch._standard_gamma(torch.ones(0, 3, device=device)),
    "dirichlet": lambda device: torch._sample_dirichlet(torch.ones(0, 3, device=device)),
    "multinomial with replacement": lambda device: torch.multinomial(torch.ones(0, 128, device=device), 64, replacement=True),
    "multinomial without replacement": lambda device: torch.multinomial(torch.ones(0, 128, device=device), 64),
    "one sample of multinomial": lambda device: torch.multinomial(torch.ones(0, 128, device=device), 1),
    "dropout": lambda device: F.dropout(torch.zeros(0, 4, device=device)),
    "dropout2d": lambda device: F.dropout2d(torch.zeros(0, 4, 2, 2, device=device)),
    "rrelu": lambda device: F.rrelu(torch.zeros(0, 4, device=device), training=True),
}  # fmt: skip
"""Calls to samplers that draw no numbers, by name. Each takes a device."""

CERTAIN: dict[str, tuple[Callable[[torch.device], Any], Callable[[], Any]]] = {
    "bernoulli": (lambda device: torch.bernoulli(_pattern(device)), lambda: _pattern(torch.device("cpu"))),
    "bernoulli of a slice": (lambda device: torch.bernoulli(_pattern(device)[1::2]), lambda: _pattern(torch.device("cpu"))[1::2]),
    "bernoulli_ of a tensor": (
        lambda device: torch.full((1000,), 5.0, device=device).bernoulli_(_pattern(device)),
        lambda: _pattern(torch.device("cpu")),
    ),
    "bernoulli_(0)": (lambda device: torch.ones(99, device=device).bernoulli_(0.0), lambda: torch.zeros(99)),
    "bernoulli_(1)": (lambda device: torch.zeros(99, device=device).bernoulli_(1.0), lambda: torch.ones(99)),
    "poisson of zeros": (lambda device: torch.poisson(torch.zeros(99, device=device)), lambda: torch.zeros(99)),
    "binomial of certain events": (
        lambda device: torch.binomial(torch.arange(60.0, device=device), (torch.arange(60, device=device) % 2).float()),
        lambda: torch.arange(60.0) * (torch.arange(60) % 2),
    ),
    "normal without deviation": (lambda device: torch.normal(torch.arange(99.0, device=device), 0.0), lambda: torch.arange(99.0)),
    "normal of tensors without deviation": (
        lambda device: torch.normal(torch.arange(99.0, device=device), torch.zeros(99, device=device)),
        lambda: torch.arange(99.0),
    ),
    "uniform_ of one number": (lambda device: torch.zeros(99, device=device).uniform_(2, 2), lambda: torch.full((99,), 2.0)),
    "random_ of one number": (lambda device: torch.zeros(99, device=device).random_(3, 4), lambda: torch.full((99,), 3.0)),
    "randint of one number": (lambda device: torch.randint(5, 6, (99,), device=device), lambda: torch.full((99,), 5)),
    "randperm of one number": (lambda device: torch.randperm(1, device=device), lambda: torch.zeros(1, dtype=torch.int64)),
    **{
        f"multinomial of {categories} categories in {dtype}, with {number} draws": (
            lambda device, categories=categories, number=number, dtype=dtype: torch.multinomial(  # type: ignore[misc]
                _hot(device, categories, dtype), number, number > 1
            ),
            lambda categories=categories, number=number: ((torch.arange(16) * 7919) % categories).view(16, 1).repeat(1, number),  # type: ignore[misc]
        )
        for categories in (1, 5, 1000, 65_537)
        for number in (1, 3)
        for dtype in (torch.float32, torch.float16, torch.bfloat16)
    },
    "dropout of nothing": (lambda device: F.dropout(torch.arange(99.0, device=device), 0.0), lambda: torch.arange(99.0)),
    "dropout of everything": (lambda device: F.dropout(torch.arange(99.0, device=device), 1.0), lambda: torch.zeros(99)),
    "dropout2d of everything": (lambda device: F.dropout2d(torch.ones(2, 3, 4, 5, device=device), 1.0), lambda: torch.zeros(2, 3, 4, 5)),
    "alpha_dropout of nothing": (
        lambda device: F.alpha_dropout(torch.arange(99.0, device=device), 0.0, training=True),
        lambda: torch.arange(99.0),
    ),
    "dropout outside training": (
        lambda device: F.dropout(torch.arange(99.0, device=device), 0.9, training=False),
        lambda: torch.arange(99.0),
    ),
    "rrelu of one slope": (
        lambda device: F.rrelu(torch.arange(-4.0, 4, device=device), 0.25, 0.25, training=True),
        lambda: F.leaky_relu(torch.arange(-4.0, 4), 0.25),
    ),
    **{
        f"{name} of no numbers": (call, lambda call=call: call(torch.device("cpu")))  # type: ignore[misc]
        for name, call in _OF_NO_NUMBERS.items()
    },
}
"""Calls that can have only one result, by name: a function that makes the call on a device, and a function that returns the result."""


def check_certain_outcomes(subject: Subject) -> None:
    """Check the results of the calls in ``CERTAIN``: calls to samplers and to dropout that can have only one result.

    A failure is recorded in the subject if a result has a wrong device, dtype, shape or value. Calls whose dtypes the device lacks, and
    calls that raise NotImplementedError, are skipped.
    """
    for name, (call, result) in CERTAIN.items():
        if lacking_dtypes(subject, lambda call=call: call(torch.device("cpu"))):  # type: ignore[misc]
            continue
        with subject.sample(name, {"name": name}):
            try:
                found = call(subject.device)
            except NotImplementedError:  # tests of operators report this
                continue
            for mine, theirs in zip(tensors(found), tensors(result()), strict=True):
                subject.assert_on_device(mine)
                assert mine.dtype == theirs.dtype, f"{name} gave {mine.dtype}"
                assert mine.shape == theirs.shape, f"{name} gave the shape {tuple(mine.shape)}, not {tuple(theirs.shape)}"
                wrong = int((mine.cpu() != theirs).sum())
                assert not wrong, f"{name}: {wrong} of {theirs.numel()} numbers are wrong"
