"""The functions of matrices that ``matrices`` tests: factorizations, solutions of linear equations, eigenvalues, norms and others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import linalg
from torch.utils._pytree import tree_leaves

from accelkit.runtime.comparison.cotangents import cotangents
from accelkit_conformance.oracle import matrix_equations as equations
from accelkit_conformance.oracle import well_conditioned

Call = Callable[..., Any]
Shape = tuple[int, ...]
_ORDERS = ("fro", "nuc", 2, -2, 1, -1, float("inf"), -float("inf"))


@dataclasses.dataclass(frozen=True, slots=True)
class Function:
    """A function of matrices.

    Attributes:
        calls: The calls to test, by description. Each takes the matrix, and a right side B if ``has_right_side`` is True.
        forms: The forms that the matrix may have.
        matrices: A function of ``well_conditioned`` that returns the matrices.
        has_right_side: Whether the calls take a right side.
        equations: The equations that the results of each call must solve. If None, the results are unique, and the CPU's are expected.
    """

    calls: Mapping[str, Call]
    forms: Literal["square", "any"] = "square"
    matrices: Callable[[Shape, torch.dtype], torch.Tensor] = well_conditioned.general
    has_right_side: bool = False
    equations: equations.Equations | None = None


def _gradients(function: Call) -> Call:
    """Return a function that computes the gradients of ``function`` with respect to its arguments."""

    def compute(*given: torch.Tensor) -> Any:
        leaves = [one.detach().requires_grad_() for one in given]
        outputs = tree_leaves(function(*leaves))
        return torch.autograd.grad(outputs, leaves, cotangents(outputs, "matrices"))

    return compute


def _unique_qr(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the factors Q and R for which the diagonal of R is positive. These factors are unique."""
    q, r = linalg.qr(a)
    phases = r.diagonal(dim1=-2, dim2=-1).sgn().detach()
    return q * phases.unsqueeze(-2), r * phases.conj().unsqueeze(-1)


def _gradient_of_cholesky(a: torch.Tensor) -> torch.Tensor:
    """Return twice the Hermitian part of the gradient. The rest is not unique, because only Hermitian matrices have this factor."""
    (gradient,) = _gradients(linalg.cholesky)(a)
    return gradient + gradient.mH


def _first(matrices: torch.Tensor) -> torch.Tensor:
    """Return the first matrix of a batch, which a call then broadcasts, or the matrix itself if there is no batch."""
    return matrices[(0,) * (matrices.ndim - 2)]


_SOLVE: Mapping[str, Call] = {
    "solve(A, B)": linalg.solve,
    "solve(A, column of B)": lambda a, b: linalg.solve(a, b[..., 0]),
    "solve(A, B.mT, left=False)": lambda a, b: linalg.solve(a, b.mT, left=False),
    "solve(A, first of B)": lambda a, b: linalg.solve(a, _first(b)),
    "solve(first of A, B)": lambda a, b: linalg.solve(_first(a), b),
}
_LU_SOLVE: Mapping[str, Call] = {
    "lu_solve(*lu_factor(A), B)": lambda a, b: linalg.lu_solve(*linalg.lu_factor(a), b),
    "lu_solve(*lu_factor(A), B, adjoint=True)": lambda a, b: linalg.lu_solve(*linalg.lu_factor(a), b, adjoint=True),
    "lu_solve(*lu_factor(A), B.mT, left=False)": lambda a, b: linalg.lu_solve(*linalg.lu_factor(a), b.mT, left=False),
    "lu_solve(*lu_factor(A), first of B)": lambda a, b: linalg.lu_solve(*linalg.lu_factor(a), _first(b)),
}
_CHOLESKY: Mapping[str, Call] = {
    "cholesky(A)": linalg.cholesky,
    "cholesky(A.mH, upper=True)": lambda a: linalg.cholesky(a.mH, upper=True),
}
_CHOLESKY_INVERSE: Mapping[str, Call] = {
    "cholesky_inverse(A)": torch.cholesky_inverse,
    "cholesky_inverse(A.mH, upper=True)": lambda a: torch.cholesky_inverse(a.mH, upper=True),
}
_CHOLESKY_SOLVE: Mapping[str, Call] = {
    "cholesky_solve(B, A)": lambda a, b: torch.cholesky_solve(b, a),
    "cholesky_solve(B, A.mH, upper=True)": lambda a, b: torch.cholesky_solve(b, a.mH, upper=True),
    "cholesky_solve(first of B, A)": lambda a, b: torch.cholesky_solve(_first(b), a),
}
_SOLVE_TRIANGULAR: Mapping[str, Call] = {
    "solve_triangular(A, B, upper=False)": lambda a, b: linalg.solve_triangular(a, b, upper=False),
    "solve_triangular(A.mH, B, upper=True)": lambda a, b: linalg.solve_triangular(a.mH, b, upper=True),
    "solve_triangular(A, B.mT, upper=False, left=False)": lambda a, b: linalg.solve_triangular(a, b.mT, upper=False, left=False),
    "solve_triangular(A, B, upper=False, unitriangular=True)": lambda a, b: linalg.solve_triangular(a, b, upper=False, unitriangular=True),
    "solve_triangular(A, first of B, upper=False)": lambda a, b: linalg.solve_triangular(a, _first(b), upper=False),
}

_HOUSEHOLDER: Mapping[str, Call] = {
    "householder_product(*geqrf(A)) @ R": lambda a: linalg.householder_product(*torch.geqrf(a)) @ torch.geqrf(a)[0].triu(),
    "ormqr(*geqrf(A), R)": lambda a: torch.ormqr(*torch.geqrf(a), torch.geqrf(a)[0].triu()),
}

FUNCTIONS: Mapping[str, Function] = {
    "svd": Function(
        {"svd(A)": linalg.svd, "svd(A, full_matrices=False)": lambda a: linalg.svd(a, full_matrices=False)}, "any", equations=equations.svd
    ),
    "svdvals": Function({"svdvals(A)": linalg.svdvals}, "any"),
    "qr": Function(
        {f"qr(A, {mode!r})": lambda a, mode=mode: linalg.qr(a, mode) for mode in ("reduced", "complete", "r")},
        "any",
        equations=equations.qr,
    ),
    "lstsq": Function({"lstsq(A, B)": lambda a, b: linalg.lstsq(a, b).solution}, "any", has_right_side=True),
    "pinv": Function({"pinv(A)": linalg.pinv}, "any"),
    "pinv_with_tolerance": Function(
        {
            "pinv(A, rtol=0.05)": lambda a: linalg.pinv(a, rtol=0.05),
            "pinv(A, atol=0.05)": lambda a: linalg.pinv(a, atol=0.05),
            "pinv(A, atol=0.05, rtol=1e-5)": lambda a: linalg.pinv(a, atol=0.05, rtol=1e-5),
        },
        "any",
        matrices=well_conditioned.with_small_singular_values,
    ),
    "pinv_of_hermitian": Function(
        {"pinv(A, hermitian=True)": lambda a: linalg.pinv(a, hermitian=True)}, matrices=well_conditioned.half_of_positive_definite
    ),
    "matrix_rank": Function({"matrix_rank(A)": lambda a: linalg.matrix_rank(a).to(a.real.dtype)}, "any"),
    "matrix_rank_with_tolerance": Function(
        {
            "matrix_rank(A, rtol=0.05)": lambda a: linalg.matrix_rank(a, rtol=0.05).to(a.real.dtype),
            "matrix_rank(A, atol=0.05)": lambda a: linalg.matrix_rank(a, atol=0.05).to(a.real.dtype),
        },
        "any",
        matrices=well_conditioned.with_small_singular_values,
    ),
    "matrix_rank_of_hermitian": Function(
        {"matrix_rank(A, hermitian=True)": lambda a: linalg.matrix_rank(a, hermitian=True).to(a.real.dtype)},
        matrices=well_conditioned.half_of_positive_definite,
    ),
    "householder": Function(_HOUSEHOLDER),
    "solve": Function(_SOLVE, has_right_side=True),
    "inv": Function({"inv(A)": linalg.inv}),
    "cholesky": Function(_CHOLESKY, matrices=well_conditioned.positive_definite),
    "cholesky_inverse": Function(_CHOLESKY_INVERSE, matrices=well_conditioned.lower_triangular),
    "cholesky_solve": Function(_CHOLESKY_SOLVE, matrices=well_conditioned.lower_triangular, has_right_side=True),
    "lu_factor": Function({"lu_factor(A)": linalg.lu_factor}, "any", equations=equations.lu),
    "lu_solve": Function(_LU_SOLVE, has_right_side=True),
    "det": Function({"det(A)": linalg.det}),
    "slogdet": Function({"slogdet(A)": linalg.slogdet}),
    "eigh": Function(
        {"eigh(A)": linalg.eigh, "eigh(A.mH, 'U')": lambda a: linalg.eigh(a.mH, "U")},
        matrices=well_conditioned.half_of_hermitian,
        equations=equations.eigh,
    ),
    "eigvalsh": Function(
        {"eigvalsh(A)": linalg.eigvalsh, "eigvalsh(A.mH, 'U')": lambda a: linalg.eigvalsh(a.mH, "U")},
        matrices=well_conditioned.half_of_hermitian,
    ),
    "eigvals": Function({"eigvals(A)": linalg.eigvals}, matrices=well_conditioned.with_known_eigenvalues, equations=equations.eigvals),
    "matrix_exp": Function({"matrix_exp(A)": linalg.matrix_exp}),
    "matrix_power": Function({f"matrix_power(A, {n})": lambda a, n=n: linalg.matrix_power(a, n) for n in (3, -2, 0)}),
    "solve_triangular": Function(_SOLVE_TRIANGULAR, matrices=well_conditioned.lower_triangular, has_right_side=True),
    "matrix_norm": Function({f"matrix_norm(A, {p!r})": lambda a, p=p: linalg.matrix_norm(a, p) for p in _ORDERS}, "any"),
    "cond": Function({f"cond(A, {p!r})": lambda a, p=p: linalg.cond(a, p) for p in (None, *_ORDERS)}),
    "gradients_of_solve": Function({"the gradients of solve(A, B)": _gradients(linalg.solve)}, has_right_side=True),
    "gradients_of_inv": Function({"the gradient of inv(A)": _gradients(linalg.inv)}),
    "gradients_of_det": Function({"the gradient of det(A)": _gradients(linalg.det)}),
    "gradients_of_cholesky": Function({"the gradient of cholesky(A)": _gradient_of_cholesky}, matrices=well_conditioned.positive_definite),
    "gradients_of_svdvals": Function({"the gradient of svdvals(A)": _gradients(linalg.svdvals)}, "any"),
    "gradients_of_qr": Function({"the gradient of qr(A)": _gradients(_unique_qr)}, "any"),
}
"""The functions, by name."""
