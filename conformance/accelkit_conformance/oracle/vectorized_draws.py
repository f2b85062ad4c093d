"""Random functions under ``torch.vmap``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.oracle.lacking_dtypes import require_dtypes

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_SEED = 11
_SETS = 3
_LENGTH = 64

FUNCTIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rand_like": torch.rand_like,
    "randn": lambda x: torch.randn(x.shape, device=x.device),
    "randint": lambda x: torch.randint(0, 1000, x.shape, device=x.device),
    "randperm": lambda x: torch.randperm(len(x), device=x.device),
    "uniform_": lambda x: torch.empty_like(x).uniform_(),
    "exponential_": lambda x: torch.empty_like(x).exponential_(),
    "normal": lambda x: torch.normal(x, 1.0),
    "bernoulli": torch.bernoulli,
    "bernoulli_of_a_number": lambda x: torch.bernoulli(x, 0.4),
    "multinomial": lambda x: torch.multinomial(x, 20),
    "multinomial_with_replacement": lambda x: torch.multinomial(x, 40, replacement=True),
    "poisson": lambda x: torch.poisson(50 * x),
    "dropout": lambda x: F.dropout(x, 0.5),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, training=True),
    "dropout1d": lambda x: F.dropout1d(x.view(1, -1, 1), 0.5),
    "gumbel_softmax": F.gumbel_softmax,
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(1, 1, 8, 8)] * 3, dropout_p=0.5),
}
"""Functions of a vector of ``_LENGTH`` numbers between 0 and 1, by name."""


def check_vectorized_draws(subject: Subject, name: str) -> None:
    """Call a random function under ``torch.vmap`` with three equal inputs, and with one input for all three calls.

    Raises:
        AssertionError: If a value of ``randomness`` does not have the effect that torch documents.
    """
    require_dtypes(subject, torch.float32)
    for is_stacked in (True, False):
        places = "three equal inputs" if is_stacked else "one input for three calls"
        for randomness, number in {"different": _SETS, "same": 1}.items():
            if _rows(subject, torch.device("cpu"), name, randomness, is_stacked=is_stacked) is None:
                continue  # torch has no such call
            with subject.sample(f"{name} under vmap with randomness={randomness!r} and {places}", {"randomness": randomness}):
                rows = _rows(subject, subject.device, name, randomness, is_stacked=is_stacked)
                assert rows is not None, "the call raises an error, but not on the CPU"
                distinct = len(rows.unique(dim=0))
                assert distinct == number, f"the {_SETS} results contain {distinct} distinct rows instead of {number}"
                again = _rows(subject, subject.device, name, randomness, is_stacked=is_stacked)
                assert again is not None, "the second call raises an error"
                assert torch.equal(rows, again), "the same seed gives another result"
        with subject.sample(f"{name} under vmap with randomness='error' and {places}", {"randomness": "error"}):
            rows = _rows(subject, subject.device, name, "error", is_stacked=is_stacked)
            assert rows is None, "a random function raises no error with randomness='error'"


def _rows(subject: Subject, device: torch.device, name: str, randomness: str, *, is_stacked: bool) -> torch.Tensor | None:
    """Return the three results, each as a row of a matrix on the CPU. Return None if the call raises RuntimeError."""
    x = torch.linspace(0.2, 0.8, _LENGTH)
    given = (x.expand(_SETS, -1).contiguous() if is_stacked else x).to(device)
    numbers = torch.zeros(_SETS, device=device)
    torch.default_generator.manual_seed(_SEED)
    if device.type != "cpu":
        subject.accelerator.manual_seed(_SEED)
    try:
        function = torch.vmap(lambda x, _: FUNCTIONS[name](x), in_dims=(0 if is_stacked else None, 0), randomness=randomness)
        return function(given, numbers).detach().cpu().view(_SETS, -1)
    except RuntimeError:
        return None
