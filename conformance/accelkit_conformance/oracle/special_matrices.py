"""Linear algebra on singular matrices and on other matrices with a special structure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from accelkit_conformance.late_errors import raises
from accelkit_conformance.oracle.matrices import check_call, expected_results
from accelkit_conformance.oracle.matrix_functions import FUNCTIONS
from accelkit_conformance.oracle.sample_transfer import to_device
from accelkit_conformance.oracle.well_conditioned import random_numbers

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_OF_HERMITIAN = ("eigh", "eigvalsh", "cholesky")
_SENSITIVE = ("pinv", "matrix_rank", "slogdet")
"""Functions whose results for ``_HUGE_AND_TINY`` depend on the dtype: they treat small singular values as zeros, or their terms cancel."""
_WITH_ERRORS = ("cholesky", "inv", "solve")
"""Functions that raise an error for some of the matrices."""
_OF_LARGE = ("svd", "svdvals", "qr", "eigh", "eigvalsh", "pinv", "matrix_rank")
NAMES = (*_OF_LARGE, "det", "slogdet", *_WITH_ERRORS)
"""The names of the tested functions in ``FUNCTIONS``."""

_ROTATION = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
_FULL = 3 * torch.eye(5) + torch.arange(25).view(5, 5) % 3
_HUGE_AND_TINY = "a diagonal matrix with huge and tiny elements"
_HERMITIAN: Mapping[str, torch.Tensor] = {
    "zeros": torch.zeros(5, 5),
    "the identity": torch.eye(5),
    "the negative identity": -torch.eye(5),
    "ones": torch.ones(5, 5),
    "a diagonal matrix with repeated elements": torch.tensor([2.0, -1, 2, 2, -1]).diag(),
    "rows in the opposite order": torch.eye(5).flip(0),
    "two equal blocks and a zero": torch.block_diag(*[torch.tensor([[2.0, 1.0], [1.0, 2.0]])] * 2, torch.zeros(1, 1)),
    _HUGE_AND_TINY: torch.tensor([1e-15, 1, 1e15, 1, 1]).diag(),
}
_OTHER: Mapping[str, torch.Tensor] = {
    "a permutation": torch.eye(5).roll(2, 0),
    "a matrix with a row of zeros": _FULL * (torch.arange(5)[:, None] != 2),
    "a matrix with a column of zeros": _FULL * (torch.arange(5) != 2),
    "an upper triangular matrix": torch.ones(5, 5).triu(),
    "a lower triangular matrix": torch.ones(5, 5).tril(),
    "a nilpotent matrix": torch.ones(5, 5).triu(1),
    "blocks that rotate": torch.block_diag(_ROTATION, -_ROTATION, torch.eye(1)),
}


def check_special_matrices(subject: Subject, name: str) -> None:
    """Call a function with special matrices, and check the results as ``matrices.check_matrices`` does.

    If the CPU raises an error, the device must raise a RuntimeError. Differences are recorded in the subject.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the function, one of ``NAMES``.
    """
    function = FUNCTIONS[name]
    for dtype in ("float32", "complex64"):
        if subject.lacks(dtype):
            continue
        for what, matrix in _matrices(name, dtype):
            given = [matrix.to(getattr(torch, dtype))]
            if function.has_right_side:
                given.append(random_numbers((5, 3), torch.float64).to(given[0].dtype))
            for description, call in function.calls.items():
                with subject.sample(f"{description} of {what} in {dtype}", {"name": name, "dtype": dtype, "matrix": what}):
                    try:
                        missing, *expected = expected_results(subject, given, call, False)
                    except RuntimeError:
                        with raises(subject, RuntimeError, doing=f"{description} of {what}"):
                            call(*to_device(given, subject.device))
                        continue
                    if not missing:
                        check_call(subject, function, call, given, (expected[0], expected[1]))


def _matrices(name: str, dtype: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the matrices for a function, each preceded by a description. One of them is a batch of several of the others."""
    small = {**_HERMITIAN, **({} if name in _OF_HERMITIAN else _OTHER)}
    if name in _SENSITIVE:
        del small[_HUGE_AND_TINY]
    yield from small.items()
    if name not in _WITH_ERRORS:
        yield "a batch of these matrices", torch.stack(list(small.values()))
    if name in _OF_LARGE and dtype == "float32":
        for length in (300, 784) if name == "eigh" else (300,):
            columns = random_numbers((length, 7), torch.float64).sign()  # the products of these integers are exact in float32
            yield f"a matrix with {length} rows and rank 7", columns @ columns.mT
