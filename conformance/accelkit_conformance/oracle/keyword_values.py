"""Calls with combinations of keyword arguments that do not occur in the samples of torch's ``op_db``.

For each function, the calls with the same shapes follow one another. A device that keeps a compiled kernel for these shapes must not use
this kernel for another value of a keyword argument.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.oracle.compared_calls import compare_call
from accelkit_conformance.oracle.differentiable import OUTPUT_GRADIENTS, check_function, random_inputs
from accelkit_conformance.oracle.function_keywords import FUNCTIONS, Call, embedding, product
from accelkit_conformance.oracle.layouts import all_arranged, channels_last, strided
from accelkit_conformance.oracle.number_arguments import FUNCTIONS_OF_NUMBERS
from accelkit_conformance.oracle.sample_transfer import tensors

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def _resampling() -> Iterator[Call]:
    for lengths in ((1,), (3,), (4,)):
        x = random_inputs((2, 2, *lengths))
        yield from product(F.interpolate, x, size=[1, 3, 4, 7], mode=["linear"], align_corners=[True, False])
        yield from product(F.interpolate, x, size=[1, 3, 7], mode=["nearest", "nearest-exact", "area"])
    for lengths in ((1, 3), (4, 1), (3, 5)):
        x = random_inputs((2, 3, *lengths))
        sizes = [(1, 1), (1, 4), (5, 1), lengths, (6, 7), (2, 9)]
        yield from product(F.interpolate, x, size=sizes, mode=["bilinear", "bicubic"], align_corners=[True, False])
        yield from product(F.interpolate, x, size=sizes, mode=["bilinear", "bicubic"], align_corners=[True, False], antialias=[True])
        yield from product(F.interpolate, x, size=sizes, mode=["nearest", "nearest-exact", "area"])
    x = random_inputs((1, 2, 5, 7))
    factors = [0.5, 0.6, 1.0, 1.1, 1.3, 2.0, (0.4, 1.7)]
    recomputed = [None, True, False]
    yield from product(
        F.interpolate, x, scale_factor=factors, mode=["bilinear", "bicubic"], align_corners=[True, False], recompute_scale_factor=recomputed
    )
    yield from product(F.interpolate, x, scale_factor=factors, mode=["nearest", "nearest-exact"], recompute_scale_factor=recomputed)
    for length in (2, 5, 20):
        x, targets = random_inputs((1, 2, length)), [2, 3, 5, 7, 10, 11, 20, 27]
        yield from product(F.interpolate, x, size=targets, mode=["linear"], align_corners=[True, False])
        yield from product(F.interpolate, x, size=targets, mode=["nearest", "nearest-exact", "area"])
    x = random_inputs((1, 2, 1, 3, 4))
    yield from product(F.interpolate, x, size=[(1, 1, 1), (3, 3, 4), (2, 5, 1)], mode=["trilinear"], align_corners=[True, False])


def _grids() -> Iterator[Call]:
    values: dict[str, Any] = {"padding_mode": ["zeros", "border", "reflection"], "align_corners": [True, False]}
    for lengths in ((1, 4), (3, 1), (4, 5)):
        x, grid = random_inputs((2, 3, *lengths), (2, 5, 4, 2))
        yield from product(F.grid_sample, (x, grid * 1.3), mode=["bilinear", "nearest", "bicubic"], **values)
    x, grid = random_inputs((1, 2, 3, 1, 4), (1, 2, 3, 2, 3))
    yield from product(F.grid_sample, (x, grid * 1.3), mode=["bilinear", "nearest"], **values)
    # Pixels are at multiples of 1/2 in one dimension if corners are aligned, and at odd multiples of 1/4 in the other if they are not.
    steps = torch.arange(-5, 6) / 4
    exact = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), -1)[None]
    yield from product(F.grid_sample, (*random_inputs((1, 2, 5, 4)), exact), mode=["bilinear", "bicubic"], **values)
    far = torch.tensor([[[[1e20, 0.0], [-1e20, 0.3], [0.2, 3e9], [-5e9, -1e20]]]])
    yield from product(F.grid_sample, (x[:, :, 0], far), mode=["bilinear", "nearest"], padding_mode=["zeros"], align_corners=[True, False])
    theta = random_inputs((2, 2, 3))
    yield from product(F.affine_grid, theta, size=[(2, 3, 1, 4), (2, 3, 4, 5)], align_corners=[True, False])


def _pooling() -> Iterator[Call]:
    x = random_inputs((2, 3, 7, 6))
    shape: dict[str, Any] = {
        "kernel_size": [2, 3, (3, 2)],
        "stride": [None, 1, (2, 3)],
        "padding": [0, 1, (1, 0)],
        "ceil_mode": [True, False],
    }
    yield from product(F.max_pool2d, x, **shape, dilation=[1, (1, 2)], return_indices=[True])
    yield from product(F.avg_pool2d, x, **shape, count_include_pad=[True, False], divisor_override=[None, 3])
    unbatched: dict[str, Any] = {"kernel_size": [2], "stride": [None, 1], "ceil_mode": [True, False]}
    yield from product(F.max_pool2d, [x[0][0]], **unbatched, return_indices=[True])
    yield from product(F.avg_pool2d, [x[0][0]], **unbatched)
    line = random_inputs((2, 3, 9))
    shape = {"kernel_size": [2, 3], "stride": [None, 1, 2], "padding": [0, 1], "ceil_mode": [True, False]}
    yield from product(F.max_pool1d, line, **shape, dilation=[1, 2])
    yield from product(F.max_pool1d, [line[0][0]], **unbatched, return_indices=[True])
    yield from product(F.avg_pool1d, line, **shape, count_include_pad=[True, False])
    volume = random_inputs((1, 2, 4, 5, 6))
    yield from product(F.max_pool3d, volume, kernel_size=[2, (2, 3, 2)], stride=[None, (1, 2, 3)], padding=[0, 1], ceil_mode=[True, False])
    yield from product(F.max_pool3d, [volume[0][0]], **unbatched, return_indices=[True])
    yield from product(F.adaptive_max_pool2d, [x[0][0]], output_size=[1, (3, 2)], return_indices=[True])
    yield from product(F.avg_pool3d, volume, kernel_size=[2, (2, 3, 2)], stride=[None, 1], padding=[0, 1], count_include_pad=[True, False])
    sizes = [1, 2, 5, 7, (3, 2), (None, 4), (1, 6)]
    yield from product(F.adaptive_avg_pool2d, x, output_size=sizes)
    yield from product(F.adaptive_max_pool2d, x, output_size=sizes, return_indices=[True])
    positive = [random_inputs((2, 3, 7, 6))[0].abs() + 0.1]
    yield from product(F.lp_pool2d, positive, norm_type=[1.0, 2.0, 3.0], kernel_size=[2, 3], stride=[None, 1], ceil_mode=[True, False])


def _convolutions() -> Iterator[Call]:
    x, w, bias = random_inputs((2, 4, 7, 6), (4, 4, 3, 2), (4,))
    shape: dict[str, Any] = {"stride": [1, 2, (1, 3)], "padding": [0, 1, (2, 1)], "dilation": [1, (2, 1)]}
    yield from product(F.conv2d, (x, w), bias=[None, bias], **shape)
    yield from product(F.conv2d, (x, w), padding=["same", "valid"], dilation=[1, 2, (1, 3)])
    for groups in (2, 4):
        w = random_inputs((8, 4 // groups, 3, 2))[0]
        yield from product(F.conv2d, (x, w), **shape, groups=[groups])
    w = random_inputs((4, 2, 3, 2))[0]
    shape |= {"output_padding": [0, (0, 1)]}
    for groups in (1, 2, 4):
        yield from product(F.conv_transpose2d, (x, w), **shape, groups=[groups])
    line, w = random_inputs((2, 4, 9), (6, 4, 3))
    shape = {"stride": [1, 3], "padding": [0, 2], "dilation": [1, 2]}
    yield from product(F.conv1d, (line, w), **shape)
    yield from product(F.conv1d, (line[0], w), **shape)
    yield from product(F.conv_transpose1d, (line, w.transpose(0, 1)), **shape)
    volume, w = random_inputs((1, 4, 4, 5, 3), (4, 2, 2, 3, 1))
    yield from product(F.conv3d, (volume, w), stride=[1, (2, 1, 3)], padding=[0, (1, 0, 2)], dilation=[1, (1, 2, 1)], groups=[2])
    yield from product(F.conv_transpose3d, (volume, w), stride=[1, (2, 1, 3)], padding=[0, (1, 0, 0)], groups=[1, 2])
    for long in ((300,), (300, 1), (1, 300)):  # the kernels have 257 elements, rows or columns, too many for an 8-bit counter
        ones = len(long) - 1
        x, w = random_inputs((3, 2, *(one + 3 * (one > 1) for one in long)), (4, 1, *(257 if one > 1 else 1 for one in long)))
        yield (F.conv2d if ones else F.conv1d), (x, w), {"groups": 2}


def _padding() -> Iterator[Call]:
    pads = [(1, 0), (0, 2), (2, 1), (-1, 2), (-1, -2)]
    line, image, volume = random_inputs((2, 3, 5), (2, 3, 4, 5), (1, 2, 3, 4, 5))
    for x, dims in ((line, 1), (image, 2), (volume, 3)):
        chosen = [pad * dims for pad in pads] + ([(1, 2, 0, 3), (0, 0, 2, 1)] if dims == 2 else [])
        yield from product(F.pad, (x,), pad=chosen, mode=["constant"], value=[0.0, -1.5, float("inf"), float("nan")])
        yield from product(F.pad, (x,), pad=chosen, mode=["reflect", "replicate", "circular"])


def _losses() -> Iterator[Call]:
    reductions = ["none", "mean", "sum"]
    for shape in ((6, 5), (2, 5, 3), (2, 5, 3, 1), (2, 5, 3, 2)):
        x, weight = random_inputs(shape, (5,))
        target = torch.randint(0, 5, (shape[0], *shape[2:]), generator=torch.Generator().manual_seed(2))
        target[0] = 2
        yield from product(
            F.cross_entropy,
            (x, target),
            weight=[None, weight.abs()],
            ignore_index=[-100, 2],
            reduction=reductions,
            label_smoothing=[0.0, 0.3],
        )
        yield from product(F.nll_loss, (x, target), weight=[None, weight], ignore_index=[-100, 2, 4], reduction=reductions)
        yield from product(
            F.cross_entropy, (x, x.softmax(1)), weight=[None, weight.abs()], reduction=reductions, label_smoothing=[0.0, 0.3]
        )
    x, y, weight = random_inputs((4, 3, 1), (4, 3, 1), (3, 1))
    both: dict[str, Any] = {"reduction": reductions}
    yield from product(F.binary_cross_entropy, (x.sigmoid(), y.sigmoid()), weight=[None, weight.abs()], **both)
    yield from product(
        F.binary_cross_entropy_with_logits, (x, y.sigmoid()), weight=[None, weight.abs()], pos_weight=[None, weight.abs() + 1], **both
    )
    for loss in (F.mse_loss, F.l1_loss):
        yield from product(loss, (x, y), **both)
    yield from product(F.smooth_l1_loss, (x, y), beta=[0.0, 0.3, 1.0, 2.0], **both)
    yield from product(F.huber_loss, (x, y), delta=[0.3, 1.0, 2.0], **both)
    yield from product(F.kl_div, (x, y), log_target=[True, False], reduction=[*reductions, "batchmean"])
    yield from product(F.poisson_nll_loss, (x, y.abs() + 1), log_input=[True, False], full=[True, False], eps=[1e-8, 0.1], **both)
    yield from product(F.gaussian_nll_loss, (x, y, weight.abs()), full=[True, False], eps=[1e-6, 0.5], **both)
    yield from product(F.soft_margin_loss, (x, y.sign()), **both)
    yield from product(F.hinge_embedding_loss, (x, y.sign()), margin=[0.5, 1.0], **both)


def _selection() -> Iterator[Call]:
    x = [random_inputs((3, 40))[0][:, torch.randperm(40, generator=torch.Generator().manual_seed(1))]]
    yield from product(torch.topk, x, k=[1, 3, 17, 33, 40], dim=[-1], largest=[True, False])
    yield from product(torch.topk, x, k=[1, 2, 3], dim=[0], largest=[True, False])
    yield from product(torch.sort, x, dim=[0, 1, -1], descending=[True, False])
    yield from product(torch.kthvalue, x, k=[1, 2, 20, 40], dim=[1], keepdim=[True, False])
    edges, values = torch.tensor([-1.0, -0.5, 0.0, 0.0, 0.5, 2.0]), torch.tensor([[-2.0, -1.0, 0.0], [0.25, 2.0, 3.0]])
    yield from product(torch.bucketize, (values, edges), right=[True, False], out_int32=[True, False])
    yield from product(
        lambda edges, value, **how: torch.bucketize(value, edges, **how), (edges,), value=[0.0, 2.0, -3.0], right=[True, False]
    )
    yield from product(torch.searchsorted, (edges, values), right=[True, False], out_int32=[True, False])
    yield from product(torch.searchsorted, (edges, values), side=["left", "right"])
    yield from product(
        lambda edges, **how: torch.searchsorted(edges, 0.0, **how), (edges,), side=["left", "right"], out_int32=[True, False]
    )
    numbers = torch.tensor([3, 1, 1, 4, 3, 3, 0])
    options: dict[str, Any] = {"return_inverse": [True, False], "return_counts": [True, False]}
    yield from product(torch.unique, (numbers,), sorted=[True], **options)
    yield from product(torch.unique_consecutive, (numbers,), **options)
    yield from product(torch.isin, (numbers, torch.tensor([1, 4, 9])), invert=[True, False], assume_unique=[False])
    bags = (torch.tensor([0, 2, 1, 3, 2, 4]), *random_inputs((5, 3)), torch.tensor([0, 2, 6]))
    yield from product(F.embedding_bag, bags, mode=["sum", "mean", "max"], include_last_offset=[True, False])
    rows = (*random_inputs((5, 3)), torch.tensor([0, 2, 1, 4, 1]))
    norms: dict[str, Any] = {"max_norm": [None, 0.5], "norm_type": [1.0, 2.0, float("inf")]}
    yield from product(embedding, rows, **norms, padding_idx=[None, 1])
    yield from product(lambda x, **how: (x > 0).repeat(1, 20).cumsum(**how), x, dim=[0, 1], dtype=[None, torch.int32])
    yield from product(torch.bincount, (numbers,), weights=[None, torch.linspace(0, 1, 7)], minlength=[0, 3, 9])
    yield from product(torch.histc, (torch.linspace(-1, 3, 9),), bins=[1, 4, 7], min=[0.0, -1.0], max=[0.0, 2.0])
    for diagonal in range(-3, 4):
        yield from product(torch.tril, random_inputs((2, 3, 4)), diagonal=[diagonal])
        yield from product(torch.triu, random_inputs((2, 3, 4)), diagonal=[diagonal])
        yield from product(torch.diagonal_copy, random_inputs((2, 3, 4)), offset=[diagonal], dim1=[0, 1], dim2=[2])
        yield from product(torch.diag_embed, random_inputs((2, 3)), offset=[diagonal])


KEYWORDS: Mapping[str, Callable[[], Iterator[Call]]] = {
    "resampling": _resampling,
    "grids": _grids,
    "pooling": _pooling,
    "convolutions": _convolutions,
    "padding": _padding,
    "losses": _losses,
    "selection": _selection,
    **FUNCTIONS,
    **FUNCTIONS_OF_NUMBERS,
}
"""Functions by name. Each yields calls."""


_LAYOUTS = (
    "contiguous", "channels_last", "channels_last offset", "strided", "offset", "channels_last slice", "narrowed", "reversed",
    "first channels_last",
)  # fmt: skip
"""The memory layouts of inputs for which gradients are computed. The inputs of each call have one of these layouts."""
_OF_IMAGES = ("resampling", "grids", "pooling", "convolutions", "padding")
"""The groups of functions that are also called with unusual output gradients. The other groups contain functions that normalize: for a
constant output gradient, the gradients of these functions are zero, apart from rounding errors."""
_OUTPUT_GRADIENTS: Sequence[Callable[[torch.Tensor], torch.Tensor]] = (
    lambda values: values,
    OUTPUT_GRADIENTS["expanded"],
    channels_last,
    strided,
)


def check_keyword_values(subject: Subject, name: str) -> None:
    """Make the calls that ``KEYWORDS[name]()`` yields, and compare the results on the device with those on the CPU.

    Differences are recorded in the subject.
    """
    for title, call, given in calls(name):
        with subject.sample(title, {"name": title.partition(" ")[0]}):
            compare_call(subject, call, given, num_stages=STAGES[name])


def check_keyword_gradients(subject: Subject, name: str) -> None:
    """Compare the results and gradients of the calls that ``KEYWORDS[name]()`` yields, for tensors in various memory layouts. For functions
    of images, the output gradients also have various memory layouts.

    The results and gradients on the device are compared with those on the CPU. If a call has several results, the first floating-point one
    is used. Calls that the CPU rejects are left out, and so are calls without a floating-point result. Differences are recorded in the
    subject.
    """
    for number, (title, call, given) in enumerate(calls(name)):
        layout = _LAYOUTS[number * 5 // 3 % len(_LAYOUTS)]  # neighbouring calls, which differ in few arguments, have different layouts
        arranged = all_arranged(given, layout)
        first = functools.partial(_first_result, call)
        # A checksum, because keywords repeat with a period that a remainder of the number would follow.
        change = _OUTPUT_GRADIENTS[zlib.crc32(title.encode()) % len(_OUTPUT_GRADIENTS) if name in _OF_IMAGES else 0]
        wanted = _differentiable(first, arranged, change)
        if wanted is not None:
            check_function(subject, f"{title}, {layout}", first, arranged, wanted=wanted, change=change, num_stages=STAGES[name])


def _differentiable(
    call: Callable[..., Any], given: Sequence[torch.Tensor], change: Callable[[torch.Tensor], torch.Tensor]
) -> list[int] | None:
    """Return the positions of the tensors for which the CPU can compute a gradient of the call's result.

    ``change`` returns an output gradient in the memory layout with which the gradient is to be computed. Return None if the CPU rejects the
    call or the backward pass, or if the result is None or empty.
    """
    wanted = [number for number, one in enumerate(given) if one.is_floating_point()]
    leaves = [one.detach().requires_grad_(number in wanted) for number, one in enumerate(given)]
    try:
        result = call(*leaves)
        if result is None or not result.numel():
            return None
        if result.requires_grad:
            torch.autograd.grad(result, [leaves[number] for number in wanted], change(torch.ones_like(result)))
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return None
    return wanted if result.requires_grad else []


STAGES = dict.fromkeys(KEYWORDS, 2) | {"losses": 8, "norms": 8, "distances": 8, "attention": 5}
"""The number of operators that must run one after another in a call, by name in ``KEYWORDS``."""


def calls(name: str) -> Iterator[tuple[str, Callable[..., Any], list[Any]]]:
    """Yield a description, a function of tensors, and the tensors, for each call that ``KEYWORDS[name]()`` yields."""
    for function, inputs, keywords in KEYWORDS[name]():
        described = ", ".join(f"{key}={_described(value)}" for key, value in keywords.items())
        title = getattr(function, "__name__", name).strip("<>")
        shapes = " ".join(str(list(one.shape)) for one in tensors(inputs))
        given = {key: value for key, value in keywords.items() if isinstance(value, torch.Tensor)}
        others = {key: value for key, value in keywords.items() if key not in given}
        call = functools.partial(_call, function, len(inputs), list(given), others)
        yield f"{title} of {shapes}, {described}", call, [*inputs, *given.values()]


def _described(value: object) -> object:
    return "..." if isinstance(value, torch.Tensor) else getattr(value, "__name__", value)


def _call(function: Callable[..., Any], count: int, names: Sequence[str], keywords: Mapping[str, Any], *given: Any) -> Any:
    return function(*given[:count], **dict(zip(names, given[count:], strict=True)), **keywords)


def _first_result(call: Callable[..., Any], *given: Any) -> Any:
    """Return the first floating-point tensor among the results of a call, or None if there is none."""
    return next((one for one in tensors(call(*given)) if one.is_floating_point()), None)
