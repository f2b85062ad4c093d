"""Differences between PyTorch's own kernels for the CPU and for CUDA, which every device may have: none of them is a failure."""

import math

import pytest
import torch

import accelkit
from accelkit.discovery.catalog import find
from accelkit.runtime.comparison.tolerance import difference, is_equal_choice
from accelkit_conformance.late_errors import still_computes
from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.changed_arguments import check_inputs
from accelkit_conformance.oracle.factorizations import unique_parts
from accelkit_conformance.oracle.known_differences import are_as_frequent, is_left_out, may_be_missing
from accelkit_conformance.oracle.sample_transfer import has_memory, to_device
from accelkit_conformance.results import NotSupported
from accelkit_conformance.subject import Subject


@pytest.fixture
def subject():
    accelerator = accelkit.select("fake_xpu").accelerator
    accelerator.load()
    found = Subject(find("accelerator", "fake_xpu"), type(accelerator))
    found.use(accelerator)
    return found


@pytest.mark.parametrize(
    ("name", "dtype", "overload"),
    [
        ("histogram", torch.float32, ""),
        ("angle", torch.bfloat16, ""),
        ("matmul", torch.int64, ""),
        ("sparse.mm.reduce", torch.float32, ""),
        ("add", torch.float32, "_add_relu.Tensor"),
    ],
)
def test_what_pytorch_has_only_for_the_cpu_may_be_missing(name, dtype, overload):
    with pytest.raises(NotSupported, match="only for the CPU, and the device raises NotImplementedError: no kernel"):
        missing(name, dtype, overload)


@pytest.mark.parametrize(("name", "dtype"), [("angle", torch.float32), ("add", torch.bfloat16), ("matmul", torch.bfloat16)])
def test_what_pytorch_has_for_cuda_too_may_not_be_missing(name, dtype):
    with pytest.raises(NotImplementedError, match="no kernel"):
        missing(name, dtype)


@pytest.mark.parametrize("cls", [torch.OutOfMemoryError, torch.AcceleratorError, RecursionError])
def test_an_error_that_is_not_about_a_kernel_is_never_allowed(cls):
    with pytest.raises(cls, match="no kernel"):
        missing("histogram", torch.float32, error=cls)


def test_sparse_results_are_compared_element_by_element():
    right, wrong = torch.eye(2), torch.tensor([[1.0, 0.0], [0.5, 1.0]])
    assert difference(right.to_sparse(), right.to_sparse(), right.double().to_sparse()) == ""
    assert "0.5" in difference(wrong.to_sparse(), right.to_sparse(), right.double().to_sparse())
    assert "0.5" in difference(wrong.to_sparse(), right.to_sparse(), None)


def missing(name, dtype, overload="", error=NotImplementedError):
    with may_be_missing(opdb.operators()[name], (torch.ones(2, dtype=dtype), (), {}), overload):
        raise error("no kernel\nand more")


def test_auxiliary_results_may_be_empty_or_of_another_dtype():
    empty, full = torch.empty(0), torch.ones(2)
    assert is_left_out("native_batch_norm", 1, full, empty)
    assert is_left_out("native_batch_norm", 2, full, full.double())
    assert is_left_out("unique_consecutive", 2, empty, full)
    assert not is_left_out("native_batch_norm", 0, full, full.double())
    assert not is_left_out("native_batch_norm", 1, full, full)
    assert not is_left_out("native_batch_norm_backward", 1, full, full.double())
    assert not is_left_out("add", 1, full, empty)


def test_a_mode_may_be_any_of_the_most_frequent_values():
    values = torch.tensor([[1.0, 2.0, 2.0, 3.0, 3.0]])
    assert are_as_frequent(values, torch.tensor([3.0]), torch.tensor([2.0]))
    assert are_as_frequent(values, torch.tensor([[3.0]]), torch.tensor([[2.0]]))
    assert not are_as_frequent(values, torch.tensor([1.0]), torch.tensor([2.0]))


def test_an_8_bit_number_may_saturate_instead_of_becoming_nan():
    nan, largest = (torch.tensor([value]).to(torch.float8_e4m3fn) for value in (math.nan, 448.0))
    assert difference(largest, nan, None) == ""
    assert "NaN" in difference(torch.ones(1).to(torch.float8_e4m3fn), nan, None)


def test_full_singular_vectors_are_compared_as_far_as_they_are_unique():
    u, s, vh = torch.linalg.svd(torch.arange(6.0).view(2, 3))
    found = unique_parts("linalg.svd", [u, s, vh])
    assert [one.shape for one in found] == [(2, 2), (2,), (2, 3)]
    assert [one.shape for one in unique_parts("svd", [u, s, vh.mT])] == [(2, 2), (2,), (3, 2)]
    assert unique_parts("linalg.qr", [u, s, vh])[2] is vh


def test_indices_may_be_those_of_equal_elements_whether_or_not_the_dimension_is_kept():
    values = torch.full((2, 3), math.nan)
    first, last = torch.zeros(2, dtype=torch.int64), torch.full((2,), 2)
    assert is_equal_choice(values, first, last)
    assert is_equal_choice(values, first.unsqueeze(1), last.unsqueeze(1))
    assert not is_equal_choice(torch.arange(6.0).view(2, 3), first, last)


def test_an_updated_argument_may_have_another_nan():
    nan = torch.tensor([math.nan, 1.0])
    other = torch.tensor([0x7FC00001, 0x3F800000], dtype=torch.int32).view(torch.float32)
    check_inputs(other, nan.clone(), nan)
    with pytest.raises(AssertionError, match="the call changed an argument"):
        check_inputs(torch.tensor([math.nan, 2.0]), nan.clone(), nan)
    with pytest.raises(AssertionError, match="the call changed an argument"):
        check_inputs(torch.tensor([-0.0]), torch.tensor([0.0]), torch.tensor([0.0]))


@pytest.mark.parametrize(("dtype", "bits"), [(torch.complex64, torch.int32), (torch.float8_e5m2, torch.uint8)])
def test_a_nan_with_other_bits_is_no_change_in_any_dtype(dtype, bits):
    nan = torch.tensor([math.nan, 1.0], dtype=torch.complex64 if dtype.is_complex else torch.float32).to(dtype)
    other = nan.clone()
    other.view(bits)[0] ^= 1
    assert not torch.equal(nan.view(torch.uint8), other.view(torch.uint8))
    check_inputs(other, nan.clone(), nan)
    check_inputs(nan, other, nan)
    changed = other.clone()
    changed[1] = 2.0
    for reference in (nan, other):
        with pytest.raises(AssertionError, match="the call changed an argument"):
            check_inputs(changed, reference.clone(), nan)


class Opaque(torch.Tensor):
    def untyped_storage(self):
        raise NotImplementedError("Cannot access storage of OpaqueTensorImpl")


def test_an_argument_with_a_nan_and_without_an_address_is_compared():
    nan = torch.tensor([[math.nan, 1.0], [0.0, 3.0]]).t()
    opaque = nan.clone().as_subclass(Opaque)
    assert not has_memory(opaque)
    check_inputs(opaque, nan.clone(), nan)
    opaque[1, 1] = 2.0
    with pytest.raises(AssertionError, match="the call changed an argument"):
        check_inputs(opaque, nan.clone(), nan)


def test_a_sample_that_is_on_a_device_already_is_moved(subject):
    there = torch.arange(6.0, device=subject.device).view(2, 3).t()
    (back,) = to_device([there], torch.device("cpu"))
    assert torch.equal(back, there.cpu())
    assert back.stride() == there.stride()


def test_a_device_on_which_nothing_works_any_more_is_noticed(subject):
    assert still_computes(subject)
    subject.device = torch.device("meta")  # its tensors cannot be copied to the CPU
    assert not still_computes(subject)
