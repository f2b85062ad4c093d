"""The memory layout of an input changes no result: transposed, strided, offset and expanded inputs give the same results as contiguous
inputs, and operators write nothing outside their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from accelkit_conformance.areas.operators import forward_overloads, names_of
from accelkit_conformance.checks import Case, check
from accelkit_conformance.profiles.operators import CORE, SMOKE

if TYPE_CHECKING:
    import torch

    from accelkit_conformance.subject import Subject

_GUARD = 17  # odd, so that slices are not aligned as vector instructions require
_CANARY = -7.25
# Operators whose result depends on the layout of the input.
ABOUT_STORAGE = ("as_strided", "as_strided_copy", "as_strided_scatter", "set_", "resize_", "resize_as_", "contiguous", "is_contiguous")


def _operators() -> Iterator[Case]:
    from accelkit.runtime.comparison.tolerance import UNINITIALIZED
    from accelkit_conformance.oracle import opdb

    for name, op in opdb.operators().items():
        if op.name not in (*ABOUT_STORAGE, *UNINITIALIZED):
            yield "smoke" if name in SMOKE[:40] else "training" if name in CORE else "full", (name,)


def _in_inference_mode() -> Iterator[Case]:
    yield from (("full" if profile == "full" else "training", names) for profile, names in _operators())


@check("full", requires=["dtype.float32"], over=_operators)
def noncontiguous_inputs(subject: Subject, name: str) -> None:
    """For at most four samples of the operator, the results for strided, offset and transposed copies of the float32 inputs are the same as
    on the CPU. The samples are the first two and, among those with the most dimensions, the first one and the first one that has no
    arguments other than its input. For the first sample, the results are also the same if all inputs, or all except the first, are copies
    with gaps between their rows, if each input is a view that was made by indexing a larger tensor twice, or if the inputs are in
    channels_last and begin inside their storages or are some channels of larger tensors. If an operator is right for contiguous inputs in
    int64, int16, bool, bfloat16 or complex64, the results for one sample are the same if the inputs are strided, or if all inputs except
    the first are copies with gaps between their rows. If the call on the CPU leaves an argument and the memory around it unchanged, the
    call on the device leaves both unchanged too."""
    from accelkit_conformance.oracle.noncontiguous import check_noncontiguous

    check_noncontiguous(subject, name)


@check("full", requires=["dtype.float32"], over=_in_inference_mode)
def views_in_inference_mode(subject: Subject, name: str) -> None:
    """Under ``torch.inference_mode``, the results of the operator for transposed float32 inputs that were made outside of it are the same
    as on the CPU. The samples are those of ``noncontiguous_inputs``."""
    from accelkit_conformance.oracle.noncontiguous import check_in_inference_mode

    check_in_inference_mode(subject, name)


@check("full", requires=["dtype.float32"], over=forward_overloads, seconds=180)
def conditions(subject: Subject, overload: str) -> None:
    """A call to the overload gives the same results as on the CPU even if its arguments are strided, offset, transposed or channels last in
    memory. The results are also the same if there are gaps between the rows of an argument, or if dimensions of length 1 have unusual
    strides. In some calls, the result is written, in place or with ``out=``, into a strided tensor, a tensor with gaps between its rows, or
    a tensor that has its dimensions in the opposite order in memory. The calls also vary the other conditions of the check
    ``operators/conditions``, such as the gradient mode and the thread.
    """
    from accelkit_conformance.oracle.condition_rows import rows
    from accelkit_conformance.oracle.conditions import check_under_conditions

    check_under_conditions(subject, overload, rows(is_contiguous=False))


@check("full", requires=["dtype.float32"], over=forward_overloads)
def views_on_the_device(subject: Subject, overload: str) -> None:
    """A recorded call to an ATen overload, and its in-place form, give the same results as on the CPU if every tensor argument is a view
    that was made on the device. The view is a reshaped row of a matrix, the first elements of a longer vector, a slice of a transposed
    slice of a larger tensor, or a single element of a vector, as a 0-d tensor. The call changes no other elements of the tensors that the
    views belong to. Calls that the CPU rejects are left out. So are overloads that only torch itself calls, and overloads of linear
    algebra.
    """
    from accelkit_conformance.oracle.views_on_the_device import check_views_on_the_device

    check_views_on_the_device(subject, overload)


def _pointwise() -> Iterator[Case]:
    from accelkit_conformance.oracle import opdb

    for name, op in opdb.operators().items():
        if opdb.is_pointwise(op) and opdb.supports(op, "float32") and not op.variant_test_name:
            yield "smoke" if name in SMOKE[:40] else "full", (name,)


@check("full", requires=["dtype.float32"], over=_pointwise)
def expanded(subject: Subject, name: str) -> None:
    """For inputs with a stride of zero, a pointwise operator gives results with the same values and strides as on the CPU."""
    import torch

    from accelkit_conformance.oracle import opdb
    from accelkit_conformance.oracle.lacking_dtypes import require_dtypes
    from accelkit_conformance.oracle.op_compare import compare_forward
    from accelkit_conformance.oracle.reproducer import facts_of

    op = opdb.operators()[name]
    sample = next(opdb.samples(op, "float32", 1))
    low, high = 0.3, 0.9
    row = torch.linspace(low, high, 5).expand(3, 5)
    column = torch.linspace(high, low, 3).unsqueeze(1).expand(3, 5)
    given: Any = (row, (), sample.kwargs) if opdb.num_arguments(op) == 1 else (row, (column,), sample.kwargs)
    require_dtypes(subject, lambda: op(given[0], *given[1], **given[2]))
    with subject.sample("expanded inputs", facts_of(given, "float32")):
        compare_forward(subject, op, given, is_variant=True)


def _products() -> Iterator[Case]:
    from accelkit_conformance.oracle.products import PRODUCTS

    for name in PRODUCTS:
        yield "training" if name in ("mm", "gradients_of_linear") else "full", (name,)


@check("full", requires=["dtype.float32"], over=_products)
def products(subject: Subject, name: str) -> None:
    """For small integers in float32 and bfloat16, products of matrices and vectors, and the gradients of ``linear``, are exactly the same
    as on the CPU. ``linear`` is called with and without a bias, with inputs of one to three dimensions, and with weights of one and two
    dimensions. Each dimension has length 1 or 5, except the batch dimension; in further calls, one dimension has length 0. Each operand is
    a contiguous or transposed tensor, a view with an offset, a view with gaps between its elements, or a tensor that is expanded from one
    element, one row, one column or one matrix. All combinations are tested."""
    from accelkit_conformance.oracle.products import check_product

    check_product(subject, name)


def _narrow_views() -> Iterator[Case]:
    from accelkit_conformance.oracle.narrow_views import DTYPES, WIDE_DTYPES, accepted_calls

    for dtype in (*DTYPES, *WIDE_DTYPES):
        for name in accepted_calls(dtype):
            yield "training" if name in ("fill_", "copy_") else "full", (dtype, name)


@check("full", requires=["dtype.{0}"], over=_narrow_views)
def narrow_views(subject: Subject, dtype: str, name: str) -> None:
    """A call with a contiguous view of a tensor gives the same result as on the CPU. The elements of the tensor around the view stay
    unchanged. The view has 1 to 1,029 elements, and begins at element 1, 2, 3 or 5 of the tensor. Its dtype has one or two bytes. The calls
    fill, change, copy, sort and count elements, take, accumulate and scatter them by index, or multiply rows of them as matrices.
    Functions that accumulate get each index up to three times. Calls that the CPU rejects are left out. Ten functions that write into the
    view, such as ``zero_``, ``copy_`` and ``mul_``, are also called with a 0-d view of a single element, and with views of wider dtypes.
    """
    from accelkit_conformance.oracle.narrow_views import check_narrow_views

    check_narrow_views(subject, dtype, name)


@check(
    "smoke",
    requires=["dtype.float32"],
    over=["add_", "mul_", "fill_", "zero_", "copy_", "sigmoid_", "clamp_", "index_fill_", "masked_fill_"],
)
def guard_bands(subject: Subject, name: str) -> None:
    """An operator that writes into a slice of a tensor writes the same values as on the CPU, within a tolerance, and returns the slice. The
    elements of the tensor that are not in the slice stay unchanged."""
    import torch

    subject.needs(*{"index_fill_": ("int64",), "masked_fill_": ("bool",)}.get(name, ()))

    for step in (1, 2):
        buffer = torch.full((_GUARD + 33 * step + _GUARD,), _CANARY, device=subject.device)
        inside = buffer[_GUARD : _GUARD + 33 * step : step]
        inside.copy_(torch.linspace(-3, 3, 33))
        numbers = torch.arange(33)
        calls: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
            "add_": lambda x: x.add_(1),
            "mul_": lambda x: x.mul_(2),
            "fill_": lambda x: x.fill_(5),
            "zero_": lambda x: x.zero_(),
            "copy_": lambda x: x.copy_(numbers.float().to(x.device)),  # noqa: B023
            "sigmoid_": lambda x: x.sigmoid_(),
            "clamp_": lambda x: x.clamp_(-1, 1),
            "index_fill_": lambda x: x.index_fill_(0, numbers[::2].to(x.device), 9.0),  # noqa: B023
            "masked_fill_": lambda x: x.masked_fill_((numbers > 10).to(x.device), 4.0),  # noqa: B023
        }
        result = calls[name](inside)
        assert result is inside, f"{name} did not return its argument"
        expected = calls[name](torch.linspace(-3, 3, 33))
        torch.testing.assert_close(inside.cpu(), expected, msg=lambda text: f"a slice with step {step}: {text}")  # noqa: B023
        beside = torch.ones(buffer.shape, dtype=torch.bool)  # created on the host, so that no operator of the device is used
        beside[_GUARD : _GUARD + 33 * step : step] = False
        kept = buffer.cpu()[beside]
        assert bool((kept == _CANARY).all()), f"{int((kept != _CANARY).sum())} elements beside a slice with step {step} were written"


@check("smoke")
def views_share_memory(subject: Subject) -> None:
    """A value that is written through a view appears in the base of the view, and vice versa. The ``_base`` of a view is the base
    tensor."""
    import torch

    base = torch.zeros(4, 6, device=subject.device)
    views = {"slice": base[1:3, ::2], "transpose": base.t(), "view": base.view(24), "select": base[2], "diagonal": base.diagonal()}
    for name, view in views.items():
        view.fill_(1)
        assert base.cpu().sum() == view.numel(), f"writing through a {name} wrote {base.cpu().sum().item():g} elements of the base"
        assert view._base is base, f"_base of a {name} is not the tensor"
        base.zero_()
        assert not bool(view.cpu().any()), f"what was written to the base is not in a {name}"


@check("smoke")
def channels_last(subject: Subject) -> None:
    """``to`` converts a tensor to the memory format channels_last without changing its values. The results of ``clone``, ``add`` and
    ``relu`` have this format too, and the right values. ``contiguous`` returns a tensor with contiguous strides."""
    import torch

    here = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).view(2, 3, 4, 5)
    there = here.to(subject.device).to(memory_format=torch.channels_last)
    for name, result in {"to": there, "clone": there.clone(), "add": there + 0, "relu": there.relu()}.items():
        assert result.is_contiguous(memory_format=torch.channels_last), f"{name} did not keep channels_last: strides {result.stride()}"
        assert torch.equal(result.cpu(), here), f"{name} of a channels_last tensor changed values"
    assert there.contiguous().stride() == here.stride()


_PRESERVING = [
    *(f"{name},float32" for name in ("clone", "to", "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like")),
    *(f"to,{dtype}" for dtype in ("float64", "float16", "bfloat16", "int64", "int32", "bool")),
    "zeros_like,float16",
]


@check("training", requires=["dtype.float32", "dtype.{1}"], over=_PRESERVING)
def preserved_strides(subject: Subject, name: str, dtype: str) -> None:
    """For a tensor that is dense in memory but transposed, permuted or in channels_last, ``clone``, ``to`` and functions such as
    ``zeros_like`` return a tensor with the same strides and the requested dtype. ``clone`` and ``to`` give the same values as on the CPU.
    ``to`` is tested with conversions from float32 to the tested dtype, and from the tested dtype to float32."""
    import torch

    from accelkit_conformance.oracle.layouts import PRESERVING, permuted_tensors
    from accelkit_conformance.oracle.sample_transfer import to_device
    from accelkit_conformance.oracle.tolerance import check_form

    there = getattr(torch, dtype)
    for source, target in dict.fromkeys([(torch.float32, there), (there, torch.float32)][: 2 if name == "to" else 1]):
        for layout, here in permuted_tensors(source):
            with subject.sample(f"{name}, {layout}, from {source} to {target}", {"dtype": dtype}):
                expected, found = (PRESERVING[name](one, target) for one in (here, to_device(here, subject.device)))
                check_form(found, expected, subject.device, strides=True)
                if name in ("clone", "to"):
                    assert torch.equal(found.cpu(), expected), "the values differ from those on the CPU"


@check("training", requires=["dtype.float32"], over=names_of("image_functions", "IMAGES", "training"))
def memory_formats(subject: Subject, name: str) -> None:
    """Results and gradients have the same values as on the CPU in these cases: all inputs are in channels_last; all inputs are in
    channels_last, and their first elements are not the first ones in their storages; all inputs are some channels of larger tensors in
    channels_last; dimensions of length 1 have unusual strides; of several inputs, only the first is in channels_last; or only the first is
    contiguous, and the others are in channels_last. The gradient of ``conv_transpose2d`` with one channel is not tested with unusual
    strides, because torch's CPU raises an error. With all inputs in channels_last, the functions other than normalizations are also tested
    with an output gradient that is expanded from a single number.
    """
    from accelkit_conformance.oracle.differentiable import OUTPUT_GRADIENTS, check_function, random_inputs
    from accelkit_conformance.oracle.image_functions import IMAGES
    from accelkit_conformance.oracle.layouts import MIXED_LAYOUTS, all_arranged

    function, shapes = IMAGES[name]
    inputs = random_inputs(*shapes)
    alike = ("channels_last", "channels_last offset", "channels_last slice", "odd strides", "ambiguous strides")
    for layout in alike if len(inputs) == 1 else (*alike, *MIXED_LAYOUTS):
        if (name, layout) == ("conv_transpose2d_one_channel", "ambiguous strides"):
            continue  # torch's own gradient of the weight raises an error on the CPU
        check_function(subject, f"{name}, {layout}", function, all_arranged(inputs, layout))
    if "norm" not in name:  # a constant output gradient gives gradients that are zero, apart from rounding errors
        given = all_arranged(inputs, "channels_last")
        check_function(subject, f"{name}, expanded output gradient", function, given, change=OUTPUT_GRADIENTS["expanded"])


@check("full", requires=["dtype.float32"], over=names_of("convolutions", "CONVOLUTIONS", "full"))
def convolutions(subject: Subject, name: str) -> None:
    """The result of a convolution and its three gradients match those on the CPU, whatever the layout of the weight. The elements are small
    integers, and each result must differ from that on the CPU by less than 0.1. The input and the output gradient have various layouts:
    contiguous, channels_last, transposed, with reversed dimensions in memory, strided, with an offset, with gaps between rows, or with
    unusual strides in dimensions of length 1. There are 1 or 3 channels. The images and the kernels have 1 x 1, 1 x 3 or 3 x 3 elements, or
    1 or 3 elements in one dimension. The padding is 0 or 1, except that it is 0 for a transposed convolution. Calls that the CPU rejects
    are left out."""
    from accelkit_conformance.oracle.convolutions import check_convolution

    check_convolution(subject, name)


@check("training")
def overlapping_copies(subject: Subject) -> None:
    """Copying between overlapping slices of one tensor raises RuntimeError or copies the values that the source had before the
    copy."""
    import torch

    base = torch.arange(8.0, device=subject.device)
    source = base[:-2].clone().cpu()
    try:
        base[2:].copy_(base[:-2])
    except RuntimeError:
        return
    found = base[2:].cpu()
    assert torch.equal(found, source), f"gave {found.tolist()}, not {source.tolist()}"


def _common_in_training() -> Iterator[Case]:
    yield from (("full" if profile == "full" else "training", case) for profile, case in _pointwise())


@check("full", requires=["dtype.float32"], over=_common_in_training)
def result_strides(subject: Subject, name: str) -> None:
    """For operands that are transposed, permuted or in channels_last, and for pairs of operands with different layouts, a pointwise
    operator gives results with the same values and strides as on the CPU."""
    from accelkit_conformance.oracle.result_strides import check_result_strides

    check_result_strides(subject, name)


@check("full", requires=["dtype.float32"], over=names_of("storage_calls", "STORAGES", "training"))
def storages(subject: Subject, name: str) -> None:
    """``resize_``, ``set_``, ``as_strided_``, assignments to ``data``, views with another dtype, and writing through views of views give
    the same values and shapes as on the CPU. The strides and offsets of some results are compared, too. ``resize_`` keeps the old
    elements. If a tensor gets other memory by ``set_`` or an assignment to ``data``, or fewer elements by ``resize_``, views that were made
    before keep their elements. Later writes to the tensor and to its views have the same effect as on the CPU. If bytes are viewed as bool,
    each byte other than 0 is True. If there is a second device, all this is also true of tensors on this device while the first is
    current."""
    from accelkit_conformance.oracle.places import on_each_device
    from accelkit_conformance.oracle.storage_calls import check_storages

    for one in on_each_device(subject):
        check_storages(one, name)


@check("full", requires=["dtype.int32", "dtype.int64", "dtype.float32"], over=names_of("huge_views", "CALLS"))
def huge_views(subject: Subject, name: str) -> None:
    """Reading and writing a few elements of a view with 2,800,000,000 elements gives the same results as on the CPU. The elements overlap
    in memory: ``as_strided`` makes the view from a tensor of 110,000 elements. The elements are selected by numbers, slices, or a tensor
    of indices, and many of them have a linear index of more than 2^31. No call has a large result. Devices whose tensors have no storage
    with an address are not tested, because their views may be copies."""
    from accelkit_conformance.oracle.huge_views import check_huge_views

    check_huge_views(subject, name)


def _conjugate_views() -> Iterator[Case]:
    from accelkit_conformance.oracle.conjugate_views import CALLS

    for name in CALLS:
        yield "training" if name in ("resolving", "reading") else "full", (name,)


@check("full", requires=["dtype.complex64", "dtype.float32"], over=_conjugate_views, seconds=180)
def conjugate_views(subject: Subject, name: str) -> None:
    """Calls with a tensor that has the conjugate or the negative bit set, such as the result of ``conj()`` or ``conj().imag``, give exactly
    the same results as on the CPU. After the call, the values of the tensor and of its base are also the same as on the CPU. After
    ``resolve_conj``, ``resolve_neg`` and ``conj_physical``, no bit is set. The tensors are whole, transposed, sliced, strided, 0-d or
    empty. Their elements are small integers in complex64, complex128 and the real dtypes of the same precision. There are groups of calls
    that resolve the tensor, read it on the host, convert it to other dtypes, copy between it and tensors on the device or on the CPU, index
    it, write into it, multiply matrices and vectors, save and duplicate it, and compute gradients. Calls that the CPU rejects are left out.
    """
    from accelkit_conformance.oracle.conjugate_views import check_conjugate_views

    check_conjugate_views(subject, name)


@check("training", requires=["dtype.float32"], over=names_of("host_scalars", "CALLS", "training"))
def scalars_on_the_cpu(subject: Subject, name: str) -> None:
    """Called with a tensor on the device and a 0-d tensor on the CPU, a function gives the same results as if both tensors were on the CPU.
    Most functions are also called with the 0-d tensor as the first argument. The tensor on the device is float32, float16, int64, int32 or
    bool. The 0-d tensor is float32 or int64, and is a number from -1 to 3. It has its own storage, or it is an element of a matrix, such as
    ``scales[1, 1]``. Calls that the CPU rejects are left out."""
    from accelkit_conformance.oracle.host_scalars import check_host_scalars

    check_host_scalars(subject, name)
