"""The check that factors of a matrix give the matrix again."""

from __future__ import annotations

import pytest
import torch

from accelkit_conformance.oracle.factorizations import check_factors
from accelkit_conformance.results import WrongValues

CALLS = {
    "linalg_qr": torch.linalg.qr,
    "geqrf": torch.geqrf,
    "_linalg_svd": torch.linalg.svd,
    "linalg_eig": torch.linalg.eig,
}


def matrices(dtype):
    draw = torch.Generator().manual_seed(3)
    for shape in ((4, 4), (3, 5, 5), (200, 200)):
        yield torch.randn(shape, generator=draw, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("name", CALLS)
def test_right_factors_pass_whatever_their_signs_and_a_wrong_element_fails(name, dtype):
    for matrix in matrices(dtype):
        factors = list(CALLS[name](matrix))
        check_factors(name, matrix, factors)
        if name == "linalg_qr":
            check_factors(name, matrix, [-factors[0], -factors[1]])
        factors[-1] = factors[-1].clone(memory_format=torch.contiguous_format)
        factors[-1].view(-1)[0] += 1
        with pytest.raises(WrongValues, match="the product is off by"):
            check_factors(name, matrix, factors)


def test_calls_that_return_only_some_factors_are_not_judged():
    matrix = torch.randn(4, 4)
    check_factors("linalg_qr", matrix, torch.linalg.qr(matrix, mode="r"))
    check_factors("_linalg_svd", matrix, [torch.linalg.svdvals(matrix)])
    check_factors("linalg_qr", matrix * float("nan"), torch.linalg.qr(matrix))
