"""Random matrices that are well conditioned by construction, so that correct algorithms give nearly equal results.

The matrices are computed on the CPU in double precision. In the docstrings of this module, U and V are random orthonormal matrices, and S
and D are diagonal matrices. Each function takes the shape (..., m, n) of the matrices and a dtype, float64 or complex128. It returns the
same numbers on every call.
"""

from __future__ import annotations

import functools

import torch

Shape = tuple[int, ...]


def random_numbers(shape: Shape, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Return normally distributed numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def _orthonormal(shape: Shape, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.linalg.qr(random_numbers(shape, dtype, seed)).Q


def _diagonal(first: float, last: float, length: int) -> torch.Tensor:
    return torch.linspace(first, last, length, dtype=torch.float64)


@functools.cache
def general(shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """Return matrices whose condition number is at most 2 sqrt(2), and whose singular values have gaps.

    A square matrix is A = U S V^H, where the elements of S decrease from 2 to 1 in equal steps. A wide matrix is U S [V^H | P], where P
    consists of the first columns of the identity. Because [V^H | P] [V^H | P]^H is diagonal, the singular values are S, with the first
    multiplied by sqrt(2). The first m columns alone have the condition number 2. A tall matrix is the adjoint of a wide matrix.
    """
    *batch, m, n = shape
    short = min(m, n)
    square = (*batch, short, short)
    scaled = _orthonormal(square, dtype, 1) * _diagonal(2, 1, short)
    first_columns = torch.eye(short, dtype=dtype)[:, : abs(m - n)].expand(*batch, -1, -1)
    wide = scaled @ torch.cat([_orthonormal(square, dtype, 2), first_columns], -1)
    return (wide.mH if m > n else wide).resolve_conj().contiguous()


@functools.cache
def with_small_singular_values(shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """Return matrices U S V^H. Half of the elements of S are between 1 and 2, and the others are between 0.001 and 0.002.

    Without the smaller singular values, the condition number is 2.
    """
    *batch, m, n = shape
    short = min(m, n)
    large = _diagonal(2, 1, short - short // 2)
    values = torch.cat([large, large[: short // 2] / 1000])
    return (_orthonormal((*batch, m, short), dtype, 1) * values @ _orthonormal((*batch, n, short), dtype, 2).mH).resolve_conj().contiguous()


@functools.cache
def positive_definite(shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """Return Hermitian matrices U D U^H with eigenvalues between 1 and 2. Their condition number is 2."""
    return _hermitian(shape, dtype, 1.0)


@functools.cache
def half_of_positive_definite(shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """Return matrices whose lower triangle is that of ``positive_definite``. The elements above the diagonal are unrelated random
    numbers."""
    return _with_others_above(positive_definite(shape, dtype))


@functools.cache
def half_of_hermitian(shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """Return matrices whose lower triangle is that of a Hermitian matrix U D U^H with eigenvalues between -1 and 2.

    The elements above the diagonal are unrelated random numbers. Each eigenvalue of a Hermitian matrix has condition number 1.
    """
    return _with_others_above(_hermitian(shape, dtype, -1.0))


def _with_others_above(matrices: torch.Tensor) -> torch.Tensor:
    return matrices.tril() + random_numbers(matrices.shape, matrices.dtype, 3).triu(1)


def _hermitian(shape: Shape, dtype: torch.dtype, least: float) -> torch.Tensor:
    u = _orthonormal(shape, dtype, 1)
    product = u * _diagonal(least, 2, shape[-1]) @ u.mH
    return (product + product.mH) / 2


@functools.cache
def lower_triangular(shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """Return matrices whose lower triangle is D + N, where D increases from 1 to 3/2, and the Frobenius norm of N is 1/4.

    The condition number of D + N is at most (3/2 + 1/4) / (1 - 1/4) < 2.4. If D is replaced with ones, it is less than 1.7. The elements
    above the diagonal are unrelated random numbers.
    """
    below = random_numbers(shape, dtype, 1).tril(-1)
    norm = torch.linalg.matrix_norm(below, keepdim=True)
    return _with_others_above(torch.diag_embed(_diagonal(1, 1.5, shape[-1])) + below / (4 * norm.clamp(min=1e-30)))


@functools.cache
def with_known_eigenvalues(shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """Return matrices X B X^-1, where the condition number of X is 2 and that of the eigenvalues is therefore at most 2.

    B is block diagonal. Each block is ((a, 2), (-2, a)), with the eigenvalues a + 2i and a - 2i, where a increases from 1 to 2. If the
    number of rows is odd, the last block has one element, 3/2. If the dtype is complex, i is added to all eigenvalues, so that they differ
    from those of the conjugate matrix.
    """
    count = shape[-1]
    blocks = [torch.tensor([[float(a), 2.0], [-2.0, float(a)]]) for a in _diagonal(1, 2, count // 2)]
    b = torch.block_diag(*blocks, *[torch.tensor([[1.5]])] * (count % 2)).to(dtype)
    if dtype.is_complex:
        b += 1j * torch.eye(count)
    x = general(shape, dtype)
    return x @ b @ torch.linalg.inv(x)
