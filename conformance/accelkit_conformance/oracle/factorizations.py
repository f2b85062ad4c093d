"""Check that the product of the factors of a matrix equals the matrix.

The factors of a matrix are unique only up to the signs or phases of vectors. If only the absolute values of the factors' elements were
compared with the CPU's, wrong signs would not be detected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from accelkit_conformance.results import WrongValues

_MOST_EPSILONS = 100.0
"""The error that is allowed, in machine epsilons of the Frobenius norm of the matrix."""


def check_factors(name: str, matrix: object, factors: Sequence[object]) -> None:
    """Check that the product of the factors of a matrix equals the matrix.

    For ``eig``, the check is that the matrix times the eigenvectors equals the eigenvectors times the eigenvalues. Does nothing if the
    operator does not factorize, if the matrix is empty or contains NaN or infinity, or if the call returned only some of the factors.

    Args:
        name: The name of the operator in torch's ``op_db`` or in ATen.
        matrix: The first argument of the call, of shape (..., m, n).
        factors: The results of the call on the device.

    Raises:
        WrongValues: If an element of the product of the factors differs from the matrix by more than ``_MOST_EPSILONS`` allows.
    """
    multiply = _PRODUCTS.get(name)
    if multiply is None or not isinstance(matrix, torch.Tensor) or not matrix.numel() or not bool(torch.isfinite(matrix).all()):
        return
    there = [one.detach().cpu() for one in factors if isinstance(one, torch.Tensor) and one.numel()]
    if len(there) != 2 + (name in _THREE):
        return
    double = torch.complex128 if any(one.is_complex() for one in there) else torch.float64
    original = matrix.detach().cpu().to(double)
    found, right = multiply(original, [one.to(double) for one in there])
    error, norm = float((found - right).abs().max()), float(torch.linalg.matrix_norm(original).max())
    bound = _MOST_EPSILONS * torch.finfo(there[0].dtype).eps * norm
    if not error <= bound:
        raise WrongValues(f"the factors do not give the matrix: the product is off by {error:.3g}; at most {bound:.3g} is allowed")


def unique_parts(name: str, results: Sequence[Any]) -> list[Any]:
    """Return the results of an operator without the parts that are not unique.

    In a full singular value decomposition, singular vectors that belong to no singular value are not unique.

    Args:
        name: The name of the operator in torch's ``op_db`` or in ATen.
        results: The results; each may be None.
    """
    if name not in _SINGULAR or len(results) != 3 or not all(isinstance(one, torch.Tensor) for one in results):
        return list(results)
    u, s, v = results
    if u.ndim < 2:  # only the singular values were asked for
        return list(results)
    num = s.shape[-1]
    return [u[..., :num], s, v[..., :num] if name == "svd" else v[..., :num, :]]


Product = tuple[torch.Tensor, torch.Tensor]
"""The product of the factors, and the matrix that it must equal."""


def _qr(matrix: torch.Tensor, factors: list[torch.Tensor]) -> Product:
    return factors[0] @ factors[1], matrix


def _householder(matrix: torch.Tensor, factors: list[torch.Tensor]) -> Product:
    reflectors, tau = factors
    num = tau.shape[-1]
    q = torch.linalg.householder_product(reflectors[..., :num], tau)
    return q @ reflectors[..., :num, :].triu(), matrix


def _svd(matrix: torch.Tensor, factors: list[torch.Tensor]) -> Product:
    u, s, vh = factors
    num = s.shape[-1]
    return u[..., :num] * s.unsqueeze(-2) @ vh[..., :num, :], matrix


def _eigenvectors(matrix: torch.Tensor, factors: list[torch.Tensor]) -> Product:
    values, vectors = factors
    return matrix.to(vectors.dtype) @ vectors, vectors * values.unsqueeze(-2)


_PRODUCTS: Mapping[str, Callable[[torch.Tensor, list[torch.Tensor]], Product]] = {
    "linalg.qr": _qr,
    "linalg_qr": _qr,
    "geqrf": _householder,
    "linalg.svd": _svd,
    "_linalg_svd": _svd,
    "linalg.eig": _eigenvectors,
    "linalg_eig": _eigenvectors,
}
_SINGULAR = ("svd", "linalg.svd", "_linalg_svd")
_THREE = ("linalg.svd", "_linalg_svd")
