"""Checks of factory functions with various arguments, and of functions whose results may depend on the default dtype."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes
from accelkit_conformance.oracle.tolerance import check_result

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_BIG = 2**53 + 1
_NESTED = [[1, 2], [3, 4]]

_OF_DTYPES: dict[str, Callable[[Any, torch.dtype], torch.Tensor]] = {
    "arange": lambda d, dtype: torch.arange(-3, 5, 0.75, dtype=dtype, device=d),
    "linspace": lambda d, dtype: torch.linspace(-1, 2, 97, dtype=dtype, device=d),
    "logspace": lambda d, dtype: torch.logspace(-2, 2, 33, dtype=dtype, device=d),
    "eye": lambda d, dtype: torch.eye(5, 3, dtype=dtype, device=d),
    "full": lambda d, dtype: torch.full((3,), 1 / 3, dtype=dtype, device=d),
    "hann_window": lambda d, dtype: torch.hann_window(33, dtype=dtype, device=d),
    "fftfreq": lambda d, dtype: torch.fft.fftfreq(33, dtype=dtype, device=d),
}
"""Functions by name. Each takes a device and a dtype."""


def _gaps(device: Any, dtype: torch.dtype, length: int = 9) -> torch.Tensor:
    """Return a tensor with other elements between its elements."""
    return torch.zeros(2 * length, dtype=dtype, device=device)[::2]


FACTORIES: dict[str, Callable[[Any], torch.Tensor]] = {
    "arange_of_one_number": lambda d: torch.arange(5, device=d),
    "arange_of_floats": lambda d: torch.arange(0.5, 3, 0.3, device=d),
    "arange_downwards": lambda d: torch.arange(5, -4, -2, device=d),
    "arange_of_a_dtype": lambda d: torch.arange(1, 9, 2, dtype=torch.float32, device=d),
    "arange_to_int32": lambda d: torch.arange(0, 4, dtype=torch.int32, device=d),
    "arange_of_float_bounds_to_int64": lambda d: torch.arange(1.5, 6.5, dtype=torch.int64, device=d),
    "arange_without_numbers": lambda d: torch.arange(3, 3, device=d),
    "arange_of_large_integers": lambda d: torch.arange(_BIG, _BIG + 9, 3, device=d),
    "arange_of_large_bounds": lambda d: torch.arange(2**24 + 1.0, 2**24 + 8.0, device=d, dtype=torch.float64),
    "arange_of_many": lambda d: torch.arange(0, 1, 1 / 3000, device=d),
    "arange_into_a_tensor": lambda d: torch.arange(4, out=torch.zeros(4, dtype=torch.float32, device=d)),
    "linspace": lambda d: torch.linspace(-3, 7, 11, device=d),
    "linspace_downwards": lambda d: torch.linspace(2, -5, 7, device=d),
    "linspace_of_integers": lambda d: torch.linspace(4.3, -3, 50, dtype=torch.int8, device=d),
    "linspace_of_one": lambda d: torch.linspace(3, 9, 1, device=d),
    "linspace_of_none": lambda d: torch.linspace(3, 9, 0, device=d),
    "linspace_of_two": lambda d: torch.linspace(-1, 1, 2, device=d),
    "linspace_of_tensors": lambda d: torch.linspace(torch.tensor(1.0, device=d), torch.tensor(2.0, device=d), 4, device=d),
    "linspace_to_a_tenth": lambda d: torch.linspace(0, 0.1, 301, device=d),
    "linspace_of_large_integers": lambda d: torch.linspace(2**40, 2**40 + 8, 9, dtype=torch.int64, device=d),
    "linspace_of_negative_integers": lambda d: torch.linspace(-(2**52), 8 - 2**52, 5, dtype=torch.int64, device=d),
    "linspace_down_from_large_integers": lambda d: torch.linspace(2**24 + 9, 2**24 + 1, 9, dtype=torch.int32, device=d),
    "linspace_to_the_largest_integers": lambda d: torch.linspace(2**30 + 1, 2**30 + 17, 9, dtype=torch.int32, device=d),
    "linspace_of_float64": lambda d: torch.linspace(2**24 + 0.1, 2**24 + 9.1, 1001, dtype=torch.float64, device=d),
    "linspace_of_many": lambda d: torch.linspace(-1, 1, 70_001, device=d),
    "linspace_into_gaps": lambda d: torch.linspace(2**40, 2**40 + 8, 9, out=_gaps(d, torch.int64)),
    "arange_into_gaps": lambda d: torch.arange(_BIG, _BIG + 9, out=_gaps(d, torch.int64)),
    "arange_of_many_integers": lambda d: torch.arange(70_001, device=d),
    "logspace_into_gaps": lambda d: torch.logspace(0, 8, 9, base=2, out=_gaps(d, torch.float32)),
    "full_into_gaps": lambda d: torch.full((9,), _BIG, out=_gaps(d, torch.int64)),
    "eye_into_gaps": lambda d: torch.eye(3, out=_gaps(d, torch.int64).view(3, 3)),
    "eye_of_many": lambda d: torch.eye(300, 257, device=d),
    "tril_indices_of_many": lambda d: torch.tril_indices(400, 300, 5, device=d),
    "triu_indices_of_many": lambda d: torch.triu_indices(300, 400, -5, device=d),
    "hann_window_of_many": lambda d: torch.hann_window(70_001, device=d),
    "logspace": lambda d: torch.logspace(-2, 3, 6, device=d),
    "logspace_of_base_2": lambda d: torch.logspace(0, 8, 9, base=2, device=d),
    "logspace_of_one": lambda d: torch.logspace(1, 2, 1, device=d),
    "full_of_an_integer": lambda d: torch.full((2, 3), 7, device=d),
    "full_of_a_bool": lambda d: torch.full((2,), True, device=d),
    "full_of_a_float": lambda d: torch.full((2,), 0.1, device=d),
    "full_of_a_complex_number": lambda d: torch.full((2,), 1 + 2j, device=d),
    "full_of_a_large_integer": lambda d: torch.full((2,), _BIG, device=d),
    "full_of_a_dtype": lambda d: torch.full((2,), 3, dtype=torch.bfloat16, device=d),
    "full_of_infinity": lambda d: torch.full((2,), -float("inf"), device=d),
    "full_without_numbers": lambda d: torch.full((0, 3), 1.5, device=d),
    "full_of_one_number": lambda d: torch.full((), 1.5, device=d),
    "eye_of_rows": lambda d: torch.eye(4, 2, device=d),
    "eye_of_columns": lambda d: torch.eye(2, 5, dtype=torch.int64, device=d),
    "eye_of_none": lambda d: torch.eye(0, device=d),
    "tril_indices": lambda d: torch.tril_indices(4, 3, -1, device=d),
    "triu_indices": lambda d: torch.triu_indices(3, 5, 2, dtype=torch.int32, device=d),
    "tensor_of_integers": lambda d: torch.tensor(_NESTED, device=d),
    "tensor_of_integers_and_floats": lambda d: torch.tensor([1, 2.5, True], device=d),
    "tensor_of_bools": lambda d: torch.tensor([True, False], device=d),
    "tensor_of_nothing": lambda d: torch.tensor([], device=d),
    "tensor_of_a_number": lambda d: torch.tensor(3, device=d),
    "tensor_of_a_large_number": lambda d: torch.tensor([_BIG, -_BIG], device=d),
    "tensor_of_a_dtype": lambda d: torch.tensor(_NESTED, dtype=torch.float16, device=d),
    "tensor_that_requires_a_gradient": lambda d: torch.tensor([1.0], device=d, requires_grad=True),
    "tensor_of_an_array": lambda d: torch.tensor(torch.arange(6).view(2, 3).t().numpy(), device=d),
    "as_tensor_of_an_array": lambda d: torch.as_tensor(torch.arange(6.0).view(2, 3).numpy(), device=d),
    "asarray": lambda d: torch.asarray([1, 2], dtype=torch.float32, device=d),
    "ones_that_require_a_gradient": lambda d: torch.ones(2, device=d, requires_grad=True),
    "zeros_of_bool": lambda d: torch.zeros(3, dtype=torch.bool, device=d),
    "empty_strided": lambda d: torch.empty_strided((2, 3), (1, 4), device=d).fill_(1),
    "empty_permuted": lambda d: torch.empty_permuted((2, 3, 4), (2, 0, 1), device=d).fill_(1),
    "empty_in_channels_last": lambda d: torch.empty(2, 3, 4, 5, device=d, memory_format=torch.channels_last).fill_(1),
    "zeros_like_of_another_dtype": lambda d: torch.zeros_like(torch.ones(2, 3, device=d).t(), dtype=torch.int64),
    "full_like_of_integers": lambda d: torch.full_like(torch.ones(2, dtype=torch.int64, device=d), 3),
    "full_like_of_a_bool": lambda d: torch.full_like(torch.ones(2, device=d), True),
    "ones_like_contiguous": lambda d: torch.ones_like(torch.ones(2, 3, device=d).t(), memory_format=torch.contiguous_format),
    "new_tensor": lambda d: torch.ones(2, dtype=torch.int32, device=d).new_tensor([1, 2]),
    "new_full": lambda d: torch.ones(2, dtype=torch.bfloat16, device=d).new_full((2, 2), 3),
    "new_zeros": lambda d: torch.ones(2, dtype=torch.int64, device=d).new_zeros(2, 0, 3),
    "new_ones_of_another_dtype": lambda d: torch.ones(2, device=d).new_ones((2,), dtype=torch.bool),
    "complex": lambda d: torch.complex(torch.ones(2, device=d), torch.arange(2.0, device=d)),
    "polar": lambda d: torch.polar(torch.ones(2, device=d), torch.arange(2.0, device=d)),
    "meshgrid": lambda d: torch.meshgrid(torch.arange(2, device=d), torch.arange(3, device=d), indexing="xy")[0],
    "cartesian_prod": lambda d: torch.cartesian_prod(torch.arange(2, device=d), torch.arange(3, device=d)),
    "combinations": lambda d: torch.combinations(torch.arange(4, device=d), 3, with_replacement=True),
    "vander": lambda d: torch.vander(torch.arange(1, 4, device=d), 4, increasing=True),
    "kaiser_window": lambda d: torch.kaiser_window(7, periodic=False, beta=5.0, device=d),
    "hann_window": lambda d: torch.hann_window(6, periodic=False, device=d),
    "fftfreq": lambda d: torch.fft.fftfreq(6, 0.5, device=d),
    **{
        f"{name}_of_{dtype}": lambda d, make=make, dtype=dtype: make(d, getattr(torch, dtype))  # type: ignore[misc]
        for name, make in _OF_DTYPES.items()
        for dtype in ("float16", "bfloat16")
    },
}
"""Functions that create a tensor on a device, by name."""

DEFAULTS: dict[str, Callable[[Any], torch.Tensor]] = {
    "division of integers": lambda d: torch.arange(1, 5, device=d) / 3,
    "division of integers by a tensor": lambda d: torch.arange(1, 5, device=d) / torch.tensor([3], device=d),
    "exp of integers": lambda d: torch.arange(4, device=d).exp(),
    "sqrt of integers": lambda d: torch.arange(4, device=d).sqrt(),
    "sigmoid of bools": lambda d: torch.tensor([True, False], device=d).sigmoid(),
    "atan2 of integers": lambda d: torch.atan2(torch.arange(4, device=d), torch.tensor(3, device=d)),
    "integers and a float": lambda d: torch.arange(4, device=d) + 0.1,
    "integers times a float": lambda d: 0.1 * torch.arange(4, device=d),
    "bools and a float": lambda d: torch.tensor([True, False], device=d) * 0.1,
    "where of numbers": lambda d: torch.where(torch.tensor([True, False], device=d), 0.1, 0.7),
    "tensor": lambda d: torch.tensor([0.1, 0.2], device=d),
    "full": lambda d: torch.full((2,), 0.1, device=d),
    "arange": lambda d: torch.arange(0, 0.5, 0.1, device=d),
    "linspace": lambda d: torch.linspace(0, 0.1, 3, device=d),
    "logspace": lambda d: torch.logspace(0, 0.1, 3, device=d),
    "zeros": lambda d: torch.zeros(2, device=d),
    "eye": lambda d: torch.eye(2, device=d),
    "empty": lambda d: torch.empty(2, device=d).fill_(0.1),
    "scalar_tensor": lambda d: torch.scalar_tensor(0.1, device=d),
    "hann_window": lambda d: torch.hann_window(5, device=d),
    "fftfreq": lambda d: torch.fft.fftfreq(5, device=d),
    "new_tensor of floats": lambda d: torch.ones(2, dtype=torch.int64, device=d).new_tensor([0.1]),
    "tensor of float32 and a float": lambda d: torch.ones(2, dtype=torch.float32, device=d) * 0.1,
    "reciprocal of integers": lambda d: torch.arange(1, 4, device=d).reciprocal(),
    "expit of integers": lambda d: torch.special.expit(torch.arange(3, device=d)),
}
"""Functions by name. Most of them return a tensor of the default dtype. The others must not depend on the default dtype."""


def check_factory_arguments(subject: Subject, name: str) -> None:
    """Compare the tensor that ``FACTORIES[name]`` creates on the device with the tensor that it creates on the CPU. The values, dtypes,
    strides and ``requires_grad`` must be equal.

    The tensors are created and compared twice. Differences are recorded in the subject. Does nothing if the device lacks a dtype that
    ``FACTORIES[name]`` uses.
    """
    _compare(subject, name, FACTORIES[name])
    _compare(subject, name, FACTORIES[name])


def check_default_dtype(subject: Subject, dtype: str) -> None:
    """Compare the results of the functions in ``DEFAULTS`` on the device with those on the CPU. Each function is called with the default
    dtype float32, then with the default dtype ``dtype``, and then with float32 again. Differences are recorded in the subject."""
    for name, function in DEFAULTS.items():
        for chosen in (torch.float32, getattr(torch, dtype), torch.float32):
            with _default_dtype(chosen):
                _compare(subject, f"{name}, default dtype {chosen}", function)


def _compare(subject: Subject, name: str, function: Callable[[Any], torch.Tensor]) -> None:
    cpu = torch.device("cpu")
    if lacking_dtypes(subject, lambda: function(cpu)):
        return
    with subject.sample(name, {"name": name}):
        found, expected = function(subject.device), function(cpu)
        check_result(found, expected, None, subject.device, strides=True)
        assert found.requires_grad == expected.requires_grad, f"requires_grad is {found.requires_grad}, not {expected.requires_grad}"


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
