"""Equations that the results of functions of matrices must solve.

Unique results must equal those on the CPU. Factors are unique only up to signs, phases or permutations, so that correct algorithms may give
different factors. These factors must solve the equations that define them.

Except for ``check_equations`` and ``equal_results``, each function takes a matrix and the results for it, on the CPU and in double
precision. It yields equations. Each equation consists of a message to report if it does not hold, its left side, and its right side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from accelkit.runtime.comparison.tolerance import C
from accelkit_conformance.results import WrongValues

Equation = tuple[str, torch.Tensor, torch.Tensor]
Equations = Callable[..., Iterator[Equation]]


def check_equations(equations: Iterable[Equation], matrix: torch.Tensor) -> None:
    """Check that both sides of each equation are equal, except for rounding errors.

    The error of each element may be at most C n eps times the Frobenius norm of the right side, where eps is that of the matrix's dtype,
    and n is the larger dimension of the matrix. Algorithms apply about n reflections, rotations or eliminations one after another, each of
    which may add an error of about eps times the norm (N. J. Higham, "Accuracy and Stability of Numerical Algorithms", SIAM 2002, theorems
    9.3 and 19.4). Unique results, such as inverses, may have errors that are larger by the condition number of the problem. C is 8, the
    factor that the suite's other comparisons allow, and exceeds the condition numbers of the matrices in ``well_conditioned``. Infinite
    elements must be equal.

    Args:
        equations: The equations. Both sides are on the CPU and in double precision.
        matrix: The matrix in the dtype under test.

    Raises:
        WrongValues: If an equation does not hold.
    """
    tolerance = C * max(matrix.shape[-2:]) * torch.finfo(matrix.dtype).eps
    for description, left, right in equations:
        finite = torch.where(right.isfinite(), right, 0)
        norm = torch.linalg.vector_norm(finite, dim=(-2, -1) if right.ndim > 1 else None).max()
        error, bound = float(torch.where(left == right, 0, left - right).abs().max()), tolerance * float(norm)
        if not error <= bound:
            raise WrongValues(f"{description}: an element is off by {error:.3g}; at most {bound:.3g} is allowed")


def equal_results(found: Iterable[torch.Tensor], expected: Iterable[torch.Tensor]) -> Iterator[Equation]:
    """Yield an equation for each result: it is equal to the expected result."""
    for one, other in zip(found, expected, strict=True):
        yield "the result is not the CPU's", one, other


def svd(a: torch.Tensor, u: torch.Tensor, s: torch.Tensor, vh: torch.Tensor) -> Iterator[Equation]:
    """Yield the equations of the singular value decomposition A = U S V^H.

    The singular values S are not negative and are in descending order, and the columns of U and V are orthonormal.
    """
    count = s.shape[-1]
    yield "the product of the factors is not A", u[..., :count] * s.unsqueeze(-2) @ vh[..., :count, :], a
    yield "the columns of U are not orthonormal", u.mH @ u, _identity(u)
    yield "the rows of Vh are not orthonormal", vh @ vh.mH, _identity(vh.mH)
    yield "the singular values are negative or do not descend", s, s.abs().sort(descending=True).values


def qr(a: torch.Tensor, q: torch.Tensor, r: torch.Tensor) -> Iterator[Equation]:
    """Yield the equations of the decomposition A = Q R, where R is upper triangular and the columns of Q are orthonormal.

    If Q is empty, A^H A = R^H R is checked instead of the equations that contain Q.
    """
    yield "R is not upper triangular", r, r.triu()
    if not q.numel():
        yield "R^H R is not A^H A", r.mH @ r, a.mH @ a
        return
    yield "the product of the factors is not A", q @ r, a
    yield "the columns of Q are not orthonormal", q.mH @ q, _identity(q)


def lu(a: torch.Tensor, factors: torch.Tensor, pivots: torch.Tensor) -> Iterator[Equation]:
    """Yield the equation A = P L U.

    The matrix ``factors`` holds L below its diagonal, and U on and above its diagonal. P exchanges rows as ``pivots`` says.
    """
    permutation, lower, upper = torch.lu_unpack(factors, pivots)
    yield "the product of the factors is not A", permutation @ lower @ upper, a


def eigh(a: torch.Tensor, values: torch.Tensor, vectors: torch.Tensor) -> Iterator[Equation]:
    """Yield the equations of the eigenvalues D and the eigenvectors V of a Hermitian matrix A: A V = V D.

    Only the lower triangle of ``a`` is used. The eigenvalues are in ascending order, and the columns of V are orthonormal.
    """
    hermitian = a.tril() + a.tril(-1).mH
    yield "A times the eigenvectors is not the eigenvectors times the eigenvalues", vectors * values.unsqueeze(-2), hermitian @ vectors
    yield "the eigenvectors are not orthonormal", vectors.mH @ vectors, _identity(vectors)
    yield "the eigenvalues do not ascend", values, values.sort().values


def eigvals(a: torch.Tensor, values: torch.Tensor) -> Iterator[Equation]:
    """Yield one equation: the eigenvalues equal those on the CPU. Both are sorted by the sum of the real and the imaginary part."""
    left, right = (one.take_along_dim((one.real + one.imag).argsort(-1), -1) for one in (values, torch.linalg.eigvals(a)))
    yield "the eigenvalues are not those on the CPU", left, right


def _identity(columns: torch.Tensor) -> torch.Tensor:
    return torch.eye(columns.shape[-1], dtype=torch.float64)
