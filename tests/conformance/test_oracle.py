"""The rule by which results are judged."""

import math

import pytest
import torch

import accelkit
from accelkit.discovery.catalog import find
from accelkit.runtime.comparison.tolerance import relative_error
from accelkit_conformance.oracle import op_compare, opdb, precision_training, sample_transfer
from accelkit_conformance.oracle.tolerance import check_form, check_result, check_values
from accelkit_conformance.results import WrongValues
from accelkit_conformance.subject import Subject

CPU = torch.device("cpu")


def judged(found, reference, truth=None, **options):
    check_values(found, reference, truth, **options)


def test_what_is_as_wrong_as_the_cpu_is_right():
    truth = torch.linspace(0.1, 5, 100, dtype=torch.float64)
    reference = truth.float()
    judged(reference * (1 + 4 * torch.finfo(torch.float32).eps), reference, truth)
    with pytest.raises(AssertionError, match="of the largest magnitude"):
        judged(reference * (1 + 1e-5), reference, truth)


def test_a_large_element_hides_no_small_one():
    truth = torch.cat([torch.linspace(0.5, 1.5, 99, dtype=torch.float64), torch.tensor([1e9], dtype=torch.float64)])
    found = truth.float()
    found[3] *= 1.01
    with pytest.raises(AssertionError, match="an element has a relative error of"):
        judged(found, truth.float(), truth)


def test_an_imprecise_cpu_allows_an_imprecise_device():
    truth = torch.linspace(0.1, 5, 100, dtype=torch.float64)
    judged(truth.float() * 1.004, truth.float() * 1.001, truth)


def test_what_rounding_does_to_other_results_of_the_call_counts_up_to_a_limit():
    truth = torch.tensor([0.3, 0.5], dtype=torch.float64)
    reference = truth.float()
    eps = torch.finfo(torch.float32).eps
    found = reference * (1 + 20 * eps)
    with pytest.raises(AssertionError, match="of the largest magnitude"):
        judged(found, reference, truth)
    judged(found, reference, truth, others=4 * eps)
    with pytest.raises(AssertionError, match="of the largest magnitude"):
        judged(reference * (1 + 100 * eps), reference, truth, others=1.0)


def test_the_errors_of_operators_that_follow_one_another_add_up():
    truth = torch.tensor([1.0, 0.5], dtype=torch.float64)
    reference = truth.float()  # exact
    device = reference + torch.tensor([12 * torch.finfo(torch.float32).eps, 0.0])
    check_values(device, reference, truth, num_stages=2)
    with pytest.raises(AssertionError, match="the error is"):
        check_values(device, reference, truth)


def test_the_cpus_own_error_where_one_is_known():
    truth = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert relative_error((truth * 1.5).float(), truth) == 0.5
    for reference, right in (
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(0), torch.zeros(0, dtype=torch.float64)),
        (torch.ones(2), None),
        (torch.ones(2), torch.tensor([1.0, math.inf], dtype=torch.float64)),
        (torch.ones(2, dtype=torch.int64), torch.ones(2, dtype=torch.int64)),
    ):
        assert relative_error(reference, right) == 0.0


@pytest.mark.parametrize(("value", "says"), [(float("nan"), "NaN: 1 of 3 elements"), (float("inf"), "infinity")])
def test_nan_and_infinity_stand_where_they_stand(value, says):
    right = torch.tensor([1.0, value, 3.0])
    judged(right.clone(), right)
    for wrong in (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([value, value, 3.0])):
        with pytest.raises(AssertionError, match=says):
            judged(wrong, right)


def test_where_the_cpu_gives_nan_by_mistake_the_true_value_is_right_too():
    truth = torch.tensor([1.0, math.inf, 3.0], dtype=torch.float64)
    reference = torch.tensor([1.0, math.nan, math.nan])  # torch's vector code for gelu gives NaN at infinity
    judged(reference.clone(), reference, truth)
    judged(truth.float(), reference, truth)
    with pytest.raises(AssertionError, match="infinity"):
        judged(torch.tensor([1.0, 2.0, 3.0]), reference, truth)
    with pytest.raises(AssertionError, match="of the largest magnitude"):
        judged(torch.tensor([1.0, math.inf, 4.0]), reference, truth)


def test_the_parts_of_a_complex_number_are_judged_by_its_magnitude():
    right = torch.tensor([1e3 + 1e-3j, 1e-3 + 1e-3j], dtype=torch.complex64)
    turned = right * torch.polar(torch.ones(2), torch.full((2,), 1e-7))  # moves 1e-4 into the imaginary part of the first
    judged(turned, right, right.to(torch.complex128))
    with pytest.raises(AssertionError, match="an element has a relative error of"):
        judged(right + torch.tensor([0, 1e-4]), right, right.to(torch.complex128))


def test_the_finite_part_of_a_number_that_is_nan_or_infinite_is_judged_by_itself():
    right = torch.tensor([complex(2.0, math.nan), complex(2.0, math.inf)], dtype=torch.complex64)
    judged(right.clone(), right, right.to(torch.complex128))
    with pytest.raises(AssertionError, match="of the largest magnitude"):
        judged(torch.tensor([complex(3.0, math.nan), complex(2.0, math.inf)]), right, right.to(torch.complex128))


def test_elements_that_underflow_have_no_relative_error():
    truth = torch.tensor([1.0, 1e-60, 1e-80, 1e-100], dtype=torch.float64)
    judged(torch.tensor([1.0, 1e-45, 1e-45, 0.0]), truth.float(), truth)
    with pytest.raises(AssertionError, match="an element has a relative error of"):
        judged(torch.tensor([1.0, 1e-36, 0.0, 0.0]), truth.float(), truth)


def test_overflow_may_go_either_way_where_rounding_decides():
    largest = torch.finfo(torch.float16).max
    truth = torch.tensor([1.0, largest * 0.999], dtype=torch.float64)
    judged(torch.tensor([1.0, math.inf]).half(), truth.half(), truth)
    with pytest.raises(AssertionError, match="infinity"):
        judged(torch.tensor([1.0, math.inf]).half(), torch.tensor([1.0, 100.0]).half(), torch.tensor([1.0, 100.0]).double())


@pytest.mark.parametrize(("part", "wrong"), [(1.01, 3.0), (0.99, -math.inf), (1.01, -65504.0)])
def test_where_rounding_decides_anything_else_is_wrong(part, wrong):
    truth = torch.tensor([1.0, 65504.0 * part], dtype=torch.float64)
    reference = torch.tensor([1.0, math.inf if part > 1 else 65504.0]).half()
    with pytest.raises(AssertionError, match="infinity"):
        judged(torch.tensor([1.0, wrong]).half(), reference, truth)


def test_where_the_true_value_is_far_too_large_only_infinity_is_right():
    truth = torch.tensor([1.0, 1e6], dtype=torch.float64)
    right = truth.half()
    for wrong in ([1.0, 3.0], [1.0, 65504.0], [1.0, -math.inf]):
        with pytest.raises(AssertionError, match="infinity: 1 of 2"):
            judged(torch.tensor(wrong).half(), right, truth)
    judged(right.clone(), torch.tensor([1.0, 65504.0]).half(), truth)


def test_eight_bits_may_saturate():
    infinite = torch.tensor([math.inf]).to(torch.float8_e5m2)
    judged(torch.tensor([57344.0]).to(torch.float8_e5m2), infinite)
    for wrong in (49152.0, -57344.0):
        with pytest.raises(AssertionError, match="infinity"):
            judged(torch.tensor([wrong]).to(torch.float8_e5m2), infinite)


def test_integers_are_equal_or_wrong():
    for dtype in (torch.int64, torch.bool, torch.uint16):
        right = torch.tensor([0, 1, 1]).to(dtype)
        judged(right.clone(), right)
        with pytest.raises(AssertionError, match="1 of 3 elements differ"):
            judged(torch.tensor([1, 1, 1]).to(dtype), right)


def test_zero_is_zero():
    judged(torch.zeros(3), torch.zeros(3), torch.zeros(3, dtype=torch.float64))
    with pytest.raises(AssertionError, match="where 0 is expected"):
        judged(torch.full((3,), 1e-5), torch.zeros(3), torch.zeros(3, dtype=torch.float64))


def test_what_is_left_of_a_cancellation_is_judged_absolutely():
    truth = torch.full((3,), 1e-9, dtype=torch.float64)
    judged(torch.full((3,), 3e-7), torch.full((3,), 1e-7), truth, cancels=True)
    with pytest.raises(AssertionError, match="all terms cancel"):
        judged(torch.full((3,), 1e-4), torch.full((3,), 1e-7), truth, cancels=True)


def test_form_is_judged_before_values():
    right = torch.ones(2, 3)
    for wrong, says in {
        torch.ones(3, 2): "shape",
        torch.ones(2, 3, dtype=torch.float64): "float64",
        torch.ones(2, 3, device="meta"): "is on meta",
        torch.ones(3, 2).t(): "strides",
    }.items():
        with pytest.raises(AssertionError, match=says):
            check_form(wrong, right, CPU, strides=True)
    with pytest.raises(AssertionError, match="not a tensor"):
        check_form(3, right, CPU)


def test_numbers_and_other_leaves():
    check_result(float("nan"), float("nan"), None, CPU)
    check_result(1.0000001, 1.0, None, CPU)
    with pytest.raises(AssertionError, match="gave 2"):
        check_result(2, 1, None, CPU)


def test_up_to_phase():
    right = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
    judged(-right, right, right.double(), phase=True)
    with pytest.raises(AssertionError):
        judged(-right, right, right.double())


def test_a_sample_moves_with_its_layout_and_its_aliases():
    base = torch.arange(24.0).view(4, 6)
    first, second, again = sample_transfer.to_device([base.t()[1:], base[:, ::2], base], CPU)
    assert (first.stride(), first.storage_offset()) == ((1, 6), 1)
    assert second.stride() == (6, 2)
    again.zero_()
    assert not bool(first.any())
    assert base.sum() > 0, "the original is untouched"
    assert sample_transfer.to_double([base, torch.float32, 3])[0].dtype == torch.float64


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo, torch.sparse_csr])
def test_a_leaf_stays_a_leaf_that_gets_a_gradient(layout):
    leaf = torch.eye(3).to_sparse(layout=layout) if layout is not torch.strided else torch.eye(3)
    for move in (sample_transfer.to_double, lambda one: sample_transfer.to_device(one, CPU)):
        copied = move(leaf.requires_grad_())
        assert copied.is_leaf
        copied.to_dense().sum().backward()
        assert torch.equal(copied.grad.to_dense(), torch.ones(3, 3) if layout is torch.strided else torch.eye(3))
        assert not move(leaf.detach()).requires_grad


@pytest.mark.parametrize(("name", "is_random"), [("nn.functional.dropout", True), ("bernoulli", True), ("add", False)])
def test_draws_are_seen_whoever_seeds(name, is_random):
    """torch's entry of dropout seeds the CPU's generator and puts it back; that of bernoulli does not."""
    op = opdb.operators()[name]
    seen = {op_compare._on_cpu(op, op, (one.input, one.args, one.kwargs))[1] for one in opdb.samples(op, "float32", 8)}
    assert is_random in seen
    assert is_random or seen == {False}


def test_strides_of_nothing_say_nothing():
    check_form(torch.empty_strided((1, 0, 3), (0, 3, 1)), torch.empty(1, 0, 3), CPU, strides=True)
    with pytest.raises(AssertionError, match="the result has strides"):
        check_form(torch.empty_strided((2, 3), (1, 2)), torch.empty(2, 3), CPU, strides=True)


def reflected(vectors, scales):
    """Return the product of Householder matrices, like ``torch.linalg.householder_product``, with other rounding errors."""
    rows, columns = vectors.shape[-2:]
    product = torch.eye(rows, dtype=vectors.dtype)
    for i in range(scales.shape[-1]):
        vector = torch.cat([torch.zeros_like(vectors[..., :i, i]), torch.ones_like(vectors[..., :1, i]), vectors[..., i + 1 :, i]], -1)
        scaled = scales[..., i, None, None] * vector[..., :, None]
        product = product @ (torch.eye(rows, dtype=vectors.dtype) - scaled * vector.conj()[..., None, :])
    return product[..., :columns]


def in_single_precision(vectors, scales):
    return torch.linalg.householder_product(vectors.to(torch.complex64), scales.to(torch.complex64)).to(vectors.dtype)


@pytest.fixture
def subject():
    accelerator = accelkit.select("cpu").accelerator
    accelerator.load()
    found = Subject(find("accelerator", "cpu"), type(accelerator))
    found.use(accelerator)
    return found


def test_in_double_precision_an_ill_conditioned_gradient_has_the_error_that_rounding_its_inputs_makes(subject):
    op = opdb.operators()["linalg.householder_product"]
    for sample in opdb.samples(op, "complex128", 8, requires_grad=True):
        if not sample.args[0].numel():
            continue  # the result does not depend on the input
        given = (sample.input, sample.args, sample.kwargs)
        assert op_compare.compare_backward(subject, op, sample, given, variant=reflected)
        with pytest.raises(WrongValues, match="of the largest magnitude"):
            op_compare.compare_backward(subject, op, sample, given, variant=in_single_precision)


def test_a_step_that_rounding_crosses_allows_no_error(subject):
    op = opdb.operators()["mul"]
    sample = next(opdb.samples(op, "float64", 1, requires_grad=True))
    given = (torch.ones(64, dtype=torch.float64, requires_grad=True), (), {})
    with pytest.raises(WrongValues, match=r"the error is 0\.5 of the largest magnitude"):
        op_compare.compare_backward(subject, op, sample, given, expected=lambda x: torch.where(x > 1, x * 2, x), variant=lambda x: x * 1.5)


def test_creating_samples_neither_searches_the_stack_nor_seeds_devices(monkeypatch):
    """Both take longer than most operators do."""
    op, called = opdb.operators()["mul"], []
    monkeypatch.setattr("inspect.stack", lambda *args: called.append("inspect.stack") or [])
    monkeypatch.setattr("torch.manual_seed", lambda seed: called.append("torch.manual_seed"))
    first, second = (list(opdb.samples(op, "float32", 3)) for _ in range(2))
    assert called == []
    assert all(torch.equal(one.input, other.input) for one, other in zip(first, second, strict=True))


def test_parameters_of_wrapped_and_compiled_models_are_found_in_the_bare_model():
    model, *_ = precision_training.model_and_data()
    names = [name for name, _ in model.named_parameters()]

    def compiled(module):
        return torch.compile(module, backend="eager")

    for wrapped in (
        torch.nn.DataParallel(model),
        compiled(model),
        compiled(torch.nn.DataParallel(model)),
        torch.nn.DataParallel(compiled(model)),
    ):
        assert [precision_training.bare_name(name) for name, _ in wrapped.named_parameters()] == names
