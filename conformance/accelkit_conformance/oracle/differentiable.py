"""Differentiable functions with their inputs, and a check that compares their results and gradients on the device with those on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # the usual name

from accelkit.runtime.comparison.cotangents import cotangents
from accelkit.runtime.comparison.tolerance import relative_error
from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes
from accelkit_conformance.oracle.sample_transfer import to_device, to_double
from accelkit_conformance.oracle.tolerance import check_result

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

Function = Callable[..., torch.Tensor]

LENGTH = 65_543
"""The length of the long dimension of ``LONG``. It exceeds both the range of 16-bit integers and the largest number of blocks in the second
dimension of a GPU's grid."""


def random_inputs(*shapes: Sequence[int]) -> list[torch.Tensor]:
    """Return a normally distributed CPU tensor for each shape. Every call with the same shapes returns the same numbers."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(*shape, generator=generator) for shape in shapes]


def check_function(
    subject: Subject,
    name: str,
    function: Function,
    inputs: Sequence[torch.Tensor],
    *,
    wanted: Sequence[int] | None = None,
    change: Callable[[torch.Tensor], torch.Tensor] = lambda values: values,
    num_terms: int = 1,
    num_stages: int = 1,
) -> None:
    """Compare a function's result and gradients on the device with those in double precision on the CPU.

    The gradients are computed and compared twice, in two backward passes through the same graph. The backward passes must not change the
    output gradient. Differences are recorded in the subject.

    If the device lacks a dtype that the function needs, nothing is compared.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the function. The seed of the random output gradient is derived from this name.
        function: The function. It takes the inputs and returns one tensor.
        inputs: The inputs in float32 on the CPU. Their memory layout is kept.
        wanted: The indices of the inputs with respect to which gradients are computed. None means all inputs. If the sequence is empty,
            only the result is compared.
        change: A function that takes a random output gradient and returns the output gradient to use.
        num_terms: The largest number of terms that are summed in one element of a result.
        num_stages: The smallest number of operators that must run one after another to compute a result.
    """
    chosen = range(len(inputs)) if wanted is None else wanted

    def results(given: list[torch.Tensor]) -> list[torch.Tensor]:
        given = [one.requires_grad_(number in chosen) for number, one in enumerate(given)]
        output = function(*given)
        if not chosen:
            return [output.detach()]
        gradient = change(cotangents([output], name)[0])
        before = gradient.detach().cpu().clone()
        gradients = torch.autograd.grad([output], [given[number] for number in chosen], [gradient], retain_graph=True)
        again = torch.autograd.grad([output], [given[number] for number in chosen], [gradient])
        assert torch.equal(gradient.cpu(), before), "backward changed the output gradient"
        return [output.detach(), *gradients, *again]

    cpu = torch.device("cpu")
    if lacking_dtypes(subject, lambda: results(to_device(list(inputs), cpu))):
        return
    with subject.sample(name, {}):
        truth, reference = results(to_double(list(inputs))), results(to_device(list(inputs), cpu))
        found = results(to_device(list(inputs), subject.device))
        others = max(map(relative_error, reference, truth))
        for mine, theirs, true in zip(found, reference, truth, strict=True):
            check_result(mine, theirs, true, subject.device, cancels=True, others=others, num_terms=num_terms, num_stages=num_stages)


def check_with_empty_dimensions(subject: Subject, name: str) -> None:
    """Check the function ``SEVERAL_INPUTS[name]`` with inputs in which dimensions have length 0.

    All dimensions that have the same length are shortened together. Calls that the CPU rejects are left out.
    """
    function, shapes = SEVERAL_INPUTS[name]
    for removed in sorted({length for shape in shapes for length in shape}):
        inputs = random_inputs(*([length * (length != removed) for length in shape] for shape in shapes))
        try:
            function(*inputs)
        except (RuntimeError, IndexError, ValueError):
            continue
        check_function(subject, f"{name} without the dimensions of length {removed}", function, inputs)


COMMON: Mapping[str, Function] = {
    "mul": lambda x, w: x * w,
    "matmul": lambda x, w: x @ w,
    "gelu": lambda x, w: F.gelu(x + w),
    "relu": lambda x, w: F.relu(x + w),
    "sigmoid": lambda x, w: (x + w).sigmoid(),
    "tanh": lambda x, w: (x + w).tanh(),
    "softmax": lambda x, w: (x * w).softmax(-1),
    "log_softmax": lambda x, w: (x * w).log_softmax(-1),
    "layer_norm": lambda x, w: F.layer_norm(x, (8,), w[0], w[1]),
    "batch_norm": lambda x, w: F.batch_norm(x, None, None, w[0, :2], w[1, :2], training=True),
    "conv2d": lambda x, w: F.conv2d(x, w.view(8, 2, 2, 2)),
    "max_pool2d": lambda x, w: F.max_pool2d(x * w, 2),
    "avg_pool2d": lambda x, w: F.avg_pool2d(x * w, 2),
    "interpolate": lambda x, w: F.interpolate(x * w, scale_factor=2, mode="bilinear"),
    "index_select": lambda x, w: (x * w).select(2, 3),
    "sum": lambda x, w: (x * w).sum(1),
}
"""Common functions, to be called with output gradients of several layouts. Each takes inputs of the shapes (4, 2, 8, 8) and (8, 8)."""

SEVERAL_INPUTS: Mapping[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (5,), w, b), ((4, 5), (5,), (5,))),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), ((3, 4, 5), (4,), (4,))),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), ((4, 3, 5), (3,), (3,))),
    "instance_norm": (lambda x, w, b: F.instance_norm(x, None, None, w, b), ((4, 3, 5), (3,), (3,))),
    "rms_norm": (lambda x, w: F.rms_norm(x, (5,), w), ((4, 5), (5,))),
    "linear": (F.linear, ((3, 4, 5), (6, 5), (6,))),
    "bilinear": (F.bilinear, ((3, 4), (3, 5), (2, 4, 5), (2,))),
    "conv1d": (F.conv1d, ((2, 3, 8), (4, 3, 3), (4,))),
    "conv2d": (F.conv2d, ((2, 3, 6, 5), (4, 3, 3, 2), (4,))),
    "conv3d": (F.conv3d, ((2, 3, 4, 5, 4), (4, 3, 2, 2, 2), (4,))),
    "conv_transpose2d": (F.conv_transpose2d, ((2, 3, 6, 5), (3, 4, 3, 2), (4,))),
    "addmm": (torch.addmm, ((3, 5), (3, 4), (4, 5))),
    "bmm": (torch.bmm, ((2, 3, 4), (2, 4, 5))),
    "attention": (F.scaled_dot_product_attention, ((1, 2, 4, 8), (1, 2, 6, 8), (1, 2, 6, 8))),
    "prelu": (F.prelu, ((3, 4, 5), (4,))),
    "addcmul": (torch.addcmul, ((3, 4), (3, 4), (4,))),
    "lerp": (torch.lerp, ((3, 4), (3, 4), (3, 4))),
    "cdist": (torch.cdist, ((3, 4), (5, 4))),
    "conv2d_dilated": (lambda x, w, b: F.conv2d(x, w, b, 2, 1, 2, 2), ((2, 4, 7, 8), (6, 2, 3, 2), (6,))),
    "conv2d_depthwise": (lambda x, w, b: F.conv2d(x, w, b, padding=1, groups=4), ((2, 4, 5, 6), (4, 1, 3, 3), (4,))),
    "conv_transpose1d": (lambda x, w, b: F.conv_transpose1d(x, w, b, 2, 1, 1), ((2, 3, 5), (3, 4, 3), (4,))),
    "conv_transpose3d": (F.conv_transpose3d, ((2, 3, 3, 4, 2), (3, 2, 2, 2, 2), (2,))),
    "batch_norm_evaluation": (
        lambda x, w, b: F.batch_norm(x, torch.zeros_like(w).detach(), torch.ones_like(w).detach() * 2, w, b),
        ((4, 3, 5), (3,), (3,)),
    ),
    "weight_norm": (lambda v, g: torch._weight_norm(v, g, 0), ((3, 4), (3, 1))),
    "linear_of_a_vector": (F.linear, ((5,), (6, 5), (6,))),
    "linear_with_one_weight": (F.linear, ((3, 4, 5), (5,))),
    "tensordot": (lambda x, y: torch.tensordot(x, y, ([2, 1], [0, 1])), ((3, 4, 5), (5, 4, 6))),
    "kron": (torch.kron, ((3, 4), (5, 6))),
    "inner": (torch.inner, ((3, 4, 5), (6, 5))),
    "matmul_broadcast": (torch.matmul, ((2, 1, 3, 4), (3, 4, 2))),
    "matmul_vector": (torch.matmul, ((2, 3, 4), (4,))),
    "baddbmm": (lambda x, y, z: torch.baddbmm(x, y, z, beta=0.5, alpha=2), ((2, 1, 5), (2, 3, 4), (2, 4, 5))),
    "addmv": (torch.addmv, ((3,), (3, 4), (4,))),
    "addr": (torch.addr, ((3, 4), (3,), (4,))),
    "addcdiv": (lambda x, y, z: torch.addcdiv(x, y, z.square() + 0.5), ((3, 4), (3, 4), (4,))),
    "where": (lambda x, y: torch.where(x > y, x, y * 2), ((3, 4), (4,))),
    "power": (lambda x, y: (x.abs() + 0.5).pow(y), ((3, 4), (3, 1))),
    "divide": (lambda x, y: x / (y.square() + 0.5), ((3, 1), (3, 4))),
    "cross": (torch.linalg.cross, ((4, 3), (4, 3))),
    "cosine_similarity": (F.cosine_similarity, ((3, 4), (3, 4))),
    "einsum": (lambda x, y, z: torch.einsum("ij,jk,lk->il", x, y, z), ((3, 4), (4, 5), (2, 5))),
    "grid_sample": (lambda x, grid: F.grid_sample(x, grid.tanh(), align_corners=False), ((2, 3, 5, 6), (2, 4, 3, 2))),
    "attention_with_mask": (
        F.scaled_dot_product_attention,
        ((1, 2, 4, 8), (1, 2, 6, 8), (1, 2, 6, 8), (4, 6)),
    ),
    "embedding_bag_weights": (lambda w, y: F.embedding_bag(_positive(w).view(2, 4), w, per_sample_weights=y, mode="sum"), ((6, 4), (2, 4))),
    "scatter": (lambda x, y: x.scatter(0, _positive(x)[:3].view(1, 3) // 2, y), ((3, 3), (1, 3))),
    "index_put": (lambda x, y: x.index_put((torch.tensor([2, 0]).to(x.device),), y), ((3, 4), (2, 4))),
    "huber_loss": (lambda x, y: F.huber_loss(x, y, delta=0.7), ((3, 4), (3, 4))),
    "kl_div": (lambda x, y: F.kl_div(x.log_softmax(1), y.log_softmax(1), log_target=True), ((3, 4), (3, 4))),
    "triplet_margin_loss": (F.triplet_margin_loss, ((3, 4), (3, 4), (3, 4))),
}
"""Functions of several inputs, each with the shapes of its inputs."""


def _indices(like: torch.Tensor, count: int = 6) -> torch.Tensor:
    """Return eight indices between ``-count`` and ``count - 1``, on the device of ``like``. ``count`` must be at least 6.

    The indices are not sorted. Some are repeated, and some are negative.
    """
    return torch.tensor([-1, count - 1, 0, 5, -count, 2, 2, -1]).to(like.device)


def _positive(like: torch.Tensor) -> torch.Tensor:
    return _indices(like) % 6


def _pairs(like: torch.Tensor) -> torch.Tensor:
    """Return two rows of four indices, on the device of ``like``.

    Every index occurs twice, to avoid a bug in torch 2.13 and earlier: on the CPU, ``embedding_bag`` with ``scale_grad_by_freq`` may divide
    the gradient of an index by the count of another index (pytorch#190063).
    """
    return torch.tensor([[5, 0, 3, 5], [2, 0, 2, 3]]).to(like.device)


PRODUCTS = (
    "linear", "linear_of_a_vector", "linear_with_one_weight", "bilinear", "tensordot", "kron", "inner", "einsum", "addmm", "bmm", "baddbmm",
    "addmv", "addr", "matmul_broadcast", "matmul_vector", "cdist",
)  # fmt: skip
"""The names of the functions in ``SEVERAL_INPUTS`` whose results are also defined if a dimension of the inputs has length 0."""

DISTANCES: Mapping[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "cdist_p1": (lambda x, y: torch.cdist(x, y, p=1.0), ((4, 513, 3), (4, 512, 3))),
    "cdist_p2": (lambda x, y: torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist"), ((1100, 2), (1025, 2))),
    "cdist_p3": (lambda x, y: torch.cdist(x, y, p=3.0), ((102, 1), (70, 1))),
    "cdist_of_many_dimensions": (lambda x, y: torch.cdist(x, y, p=1.5), ((2, 70, 129), (2, 33, 129))),
    "cdist_p_infinity": (lambda x, y: torch.cdist(x, y, p=float("inf")), ((2, 102, 5), (2, 257, 5))),
    "cdist_of_products": (lambda x, y: torch.cdist(x, y, compute_mode="use_mm_for_euclid_dist"), ((102, 40), (130, 40))),
    "pdist": (F.pdist, ((1449, 3),)),
    "pdist_p1": (lambda x: F.pdist(x, 1.0), ((300, 5),)),
}
"""Functions that compute distances between many pairs of vectors, each with the shapes of its inputs."""

INDEXING: Mapping[str, tuple[Function, tuple[int, ...]]] = {
    "getitem": (lambda x, y: x[_indices(x)], (0,)),
    "getitem of columns": (lambda x, y: x[:, _positive(x).view(2, 4) % 4], (0,)),
    "getitem of two": (lambda x, y: x[_indices(x), _indices(x).clamp(-4, 3)], (0,)),
    "index_put": (lambda x, y: x.index_put((_indices(x),), y, accumulate=True), (0, 1)),
    "index_add": (lambda x, y: x.index_add(0, _positive(x), y), (0, 1)),
    "index_select": (lambda x, y: x.index_select(0, _positive(x)), (0,)),
    "gather": (lambda x, y: x.gather(0, _positive(x).view(8, 1).expand(8, 4)), (0,)),
    "scatter_add": (lambda x, y: x.scatter_add(0, _positive(x).view(8, 1).expand(8, 4), y), (0, 1)),
    "take": (lambda x, y: x.take(_indices(x, 24)), (0,)),
    "put": (lambda x, y: x.put(_indices(x, 24), y[:, 0], accumulate=True), (0, 1)),
    "embedding": (lambda x, y: F.embedding(_positive(x), x), (0,)),
    "embedding_bag": (lambda x, y: F.embedding_bag(_positive(x).view(2, 4), x, mode="sum"), (0,)),
    "embedding scaled by frequency": (lambda x, y: F.embedding(_positive(x), x, scale_grad_by_freq=True), (0,)),
    "embedding_bag scaled by frequency": (lambda x, y: F.embedding_bag(_pairs(x), x, mode="sum", scale_grad_by_freq=True), (0,)),
}
"""Indexing functions, in which several indices refer to the same element. Each function takes inputs of the shapes (6, 4) and (8, 4), and
is followed by the positions of the inputs that it uses."""

LONG: Mapping[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "mm_rows": (torch.mm, ((LENGTH, 3), (3, 2))),
    "mm_terms": (torch.mm, ((2, LENGTH), (LENGTH, 3))),
    "mm_columns": (torch.mm, ((2, 3), (3, LENGTH))),
    "bmm": (torch.bmm, ((LENGTH, 2, 1), (LENGTH, 1, 2))),
    "linear": (F.linear, ((LENGTH, 3), (2, 3), (2,))),
    "conv1d_images": (F.conv1d, ((LENGTH, 1, 3), (2, 1, 2))),
    "conv1d_places": (F.conv1d, ((1, 1, LENGTH), (2, 1, 2))),
    "layer_norm": (lambda x, w: F.layer_norm(x, (3,), w), ((LENGTH, 3), (3,))),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w), ((LENGTH, 4), (4,))),
    "prelu": (F.prelu, ((LENGTH, 2), (2,))),
    "conv1d_bias": (F.conv1d, ((LENGTH, 1, 3), (2, 1, 2), (2,))),
    "embedding_rows": (lambda x: F.embedding(torch.arange(LENGTH).remainder(5).to(x.device), x), ((5, 2),)),
    "batch_norm": (lambda x, w: F.batch_norm(x, None, None, w, training=True), ((LENGTH, 2), (2,))),
    "softmax_rows": (lambda x: x.softmax(1), ((LENGTH, 3),)),
    "softmax_columns": (lambda x: x.softmax(0), ((3, LENGTH),)),
    "sum_rows": (lambda x: x.sum(1), ((LENGTH, 3),)),
    "sum_columns": (lambda x: x.sum(0), ((3, LENGTH),)),
    "max": (lambda x: x.max(1).values, ((LENGTH, 3),)),
    "cumsum": (lambda x: x.cumsum(1), ((LENGTH, 3),)),
    "sort": (lambda x: x.sort(1).values, ((LENGTH, 3),)),
    "transpose": (lambda x: x.t().contiguous(), ((LENGTH, 3),)),
    "broadcast": (lambda x, y: x * y, ((LENGTH, 1), (1, 3))),
    "index_select": (lambda x: x.index_select(0, torch.tensor([0, 65_536, LENGTH - 1, 7]).to(x.device)), ((LENGTH, 2),)),
    "cat": (lambda x, y: torch.cat([x, y], 1), ((LENGTH, 1), (LENGTH, 2))),
    "cat_places": (lambda x, y: torch.cat([x, y], 1), ((1, LENGTH), (1, LENGTH))),
    "conv1d_channels": (F.conv1d, ((1, 1, 3), (LENGTH, 1, 2))),
    "conv2d_channels": (F.conv2d, ((1, 1, 3, 2), (LENGTH, 1, 2, 1))),
    "conv_transpose1d": (F.conv_transpose1d, ((1, 1, LENGTH), (1, 2, 3))),
    "pad": (lambda x: F.pad(x, (2, 1)), ((2, LENGTH),)),
    "pad_reflect": (lambda x: F.pad(x, (2, 1), mode="reflect"), ((1, 2, LENGTH),)),
    "linear_rows": (F.linear, ((2, 3), (LENGTH, 3), (LENGTH,))),
    "linear_terms": (F.linear, ((2, LENGTH), (3, LENGTH))),
    "baddbmm": (torch.baddbmm, ((LENGTH, 1, 2), (LENGTH, 1, 2), (LENGTH, 2, 2))),
    "interpolate": (lambda x: F.interpolate(x, size=LENGTH, mode="linear"), ((1, 2, 300),)),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 3, 2), ((1, 2, LENGTH),)),
    "group_norm": (lambda x: F.group_norm(x, 2), ((LENGTH, 4, 2),)),
    "gelu": (F.gelu, ((LENGTH,),)),
    "gather": (lambda x: x.gather(0, torch.tensor([[LENGTH - 1, 0], [65_536, 3]]).to(x.device)), ((LENGTH, 2),)),
    "scatter_add": (lambda x: torch.zeros_like(x).scatter_add(0, torch.arange(LENGTH).flip(0).to(x.device), x), ((LENGTH,),)),
    "embedding": (lambda x: F.embedding(torch.tensor([LENGTH - 1, 0, 65_536]).to(x.device), x), ((LENGTH, 2),)),
    "cumprod": (lambda x: (1 + x * 1e-3).cumprod(0), ((LENGTH,),)),
    "var": (lambda x: x.var(0), ((LENGTH, 2),)),
    "flip": (lambda x: x.flip(0), ((LENGTH, 2),)),
    "roll": (lambda x: x.roll(65_537, 0), ((LENGTH, 2),)),
    "triu": (lambda x: x.triu(65_530), ((2, LENGTH),)),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 1), ((1, LENGTH),)),
    "where": (lambda x, y: torch.where(x > 0, x, y), ((LENGTH, 2), (2,))),
    "nll_loss": (lambda x: F.nll_loss(x, torch.arange(LENGTH).remainder(3).to(x.device)), ((LENGTH, 3),)),
    "topk": (lambda x: x.topk(2, 1).values, ((LENGTH, 3),)),
}
"""Functions whose inputs or results have a dimension of length 65,543, each with the shapes of its inputs."""

OUTPUT_GRADIENTS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "expanded": lambda values: values.flatten()[0].expand(values.shape),
    "transposed": lambda values: values.transpose(-1, -2).contiguous().transpose(-1, -2),
    "strided": lambda values: values.repeat_interleave(2, dim=-1)[..., ::2],
    "zero": lambda values: values * 0,
}
"""Kinds of output gradients, by name. Each function takes a random output gradient and returns the output gradient to use."""
