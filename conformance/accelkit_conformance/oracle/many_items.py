"""Calls with many tensors, matrices or indices."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # the usual name
from torch.nn.utils.rnn import pad_sequence

from accelkit_conformance.oracle.compared_calls import compare_call

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_NUM_TENSORS = 300
_NUM_MATRICES = 65_543
_NUM_INDICES = 70_003
_NUM_ROWS = 11
_NUM_REPEATED = 2**20 + 12
_PADDING = 3


def _tensors() -> list[torch.Tensor]:
    """Return 300 tensors, each with 1 to 7 rows of two elements. No two elements are equal."""
    lengths = [1 + number * 5 % 7 for number in range(_NUM_TENSORS)]
    return list(torch.arange(2.0 * sum(lengths)).view(-1, 2).split(lengths))


def _with_scalars(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the results of foreach operators that take a list with a different number for each tensor."""
    numbers = [1.0 + index for index in range(len(tensors))]
    added, multiplied = torch._foreach_add(tensors, numbers), torch._foreach_mul(tensors, numbers)
    return [*added, *multiplied, *torch._foreach_addcdiv(added, multiplied, added, numbers)]


def _tensors_and_empty_ones() -> tuple[torch.Tensor, ...]:
    """Return 360 tensors with 0 to 5 elements, and one with 300,000 elements in the middle. Half of the tensors are empty, among them the
    first and the last. The sums of the squares of their elements are exact in float32."""
    lengths = [*[0, 3, 0, 5, 2, 0] * 30, 300_000, *[3, 0, 5, 0, 2, 0] * 30]
    return (torch.arange(float(sum(lengths))) % 5 + 1).split(lengths)


def _thousand_empty_tensors() -> tuple[torch.Tensor, ...]:
    """Return 1,000 empty tensors and one that has three elements."""
    return *(torch.empty(0) for _ in range(1000)), torch.arange(3.0)


def _foreach(*given: torch.Tensor) -> list[torch.Tensor]:
    """Return the results of foreach operators whose second argument is a number, a number per tensor or another list of tensors, and of two
    in-place foreach operators."""
    written = [one.clone() for one in given]
    torch._foreach_mul_(written, 0.5)
    torch._foreach_addcmul_(written, given, given, value=2.0)
    return [*torch._foreach_add(given, given, alpha=2), *_with_scalars(given), *torch._foreach_norm(given), *written]


def _clipped(*given: torch.Tensor) -> list[torch.Tensor]:
    """Return the norm of all gradients, and the gradients after their norm and their values were clipped."""
    parameters = [torch.nn.Parameter(torch.zeros_like(one)) for one in given]
    for parameter, one in zip(parameters, given, strict=True):
        parameter.grad = one.clone()
    norm = torch.nn.utils.clip_grad_norm_(parameters, 100.0)
    torch.nn.utils.clip_grad_value_(parameters, 0.125)
    return [norm, *(one.grad for one in parameters if one.grad is not None)]


def _heads(*shapes: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Return random queries, keys and values."""
    return tuple(torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype) for seed, shape in enumerate(shapes))


def _attention_gradients(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    leaves = [one.detach().requires_grad_() for one in given]
    output = F.scaled_dot_product_attention(*leaves)
    return output, *torch.autograd.grad(output, leaves, torch.ones_like(output))


def _copied(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return copies that ``_foreach_copy_`` makes of the first tensors. Each copy has another dtype than the one before."""
    targets = [
        torch.zeros_like(one, dtype=dtype) for one, dtype in zip(tensors, (torch.float32, torch.bfloat16, torch.int64) * 3, strict=False)
    ]
    torch._foreach_copy_(targets, list(tensors[: len(targets)]))
    return targets


def _matrices() -> torch.Tensor:
    """Return 65,543 symmetric positive definite matrices of shape (2, 2). No two matrices are equal."""
    places = torch.arange(_NUM_MATRICES, dtype=torch.float32)
    side = (places % 97) / 97
    return torch.stack([torch.stack([2 + side, side], -1), torch.stack([side, 3 + places / _NUM_MATRICES], -1)], -1)


def _rows() -> torch.Tensor:
    """Return 65,543 matrices of shape (2, 3). Their elements are multiples of 1/64, so sums of products are exact in float32."""
    return ((torch.arange(6.0 * _NUM_MATRICES) * 37 % 1021 - 510) / 64).view(-1, 2, 3)


def _layer() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weight, of shape (4, 3), and the bias of a linear layer."""
    return (torch.arange(12.0) % 5 - 2).view(4, 3) / 2, torch.arange(4.0)


def _vectors() -> torch.Tensor:
    return (torch.arange(2.0 * _NUM_MATRICES) % 101 - 50).view(-1, 2, 1) / 50


def _indices() -> torch.Tensor:
    return torch.arange(_NUM_INDICES) * 7 % _NUM_ROWS


def _repeated() -> torch.Tensor:
    """Return integers that have only two different values."""
    return torch.arange(_NUM_REPEATED) * 7 % 2


def _table() -> torch.Tensor:
    """Return a matrix of integers with 131,086 rows, of which each occurs several times."""
    places = torch.arange(2 * _NUM_MATRICES)
    return torch.stack([places * 37 % 101 - 50, places * 11 % 7, places * 13 % 3], -1)


def _weights() -> torch.Tensor:
    return torch.arange(2.0 * _NUM_ROWS).view(-1, 2)


def _values() -> torch.Tensor:
    """Return small integers, whose sums are exact in float32."""
    return (torch.arange(2.0 * _NUM_INDICES) % 7 - 3).view(-1, 2)


def _gradient(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """Return a function that computes the gradient of ``function(weights, indices)`` with respect to ``weights``.

    The returned function takes the weights, the indices and the output gradient. If the output gradient has more rows than the output, the
    additional rows are not used.
    """

    def gradient(weights: torch.Tensor, indices: torch.Tensor, values: torch.Tensor) -> Any:
        leaf = weights.detach().requires_grad_()
        result = function(leaf, indices)
        return torch.autograd.grad(result, leaf, values[: len(result)])

    return gradient


def _transposed_blocks(device: torch.device) -> list[torch.Tensor]:
    """Return contiguous copies of a float16 tensor with its dimensions in every order. Its lengths are multiples of 32."""
    x = (torch.arange(32 * 64 * 128) % 2039).half().view(1, 32, 64, 128).to(device)
    return [x.permute(order).contiguous() for order in itertools.permutations(range(4))]


def _added_wide_rows(device: torch.device) -> tuple[torch.Tensor, ...]:
    """Return tables of 1,024 rows of 130 or 256 small integers, to which 16,384 rows are added at 991 different places."""
    index = (torch.arange(16_384) * 7919 % 991 + 33).to(device)
    found = []
    for width in (130, 256):
        rows, table = (torch.arange(16_384 * width) % 7 - 3.0).view(-1, width).to(device), torch.zeros(1024, width, device=device)
        found += [
            table.index_add(0, index, rows), table.index_put((index,), rows, accumulate=True),
            table.scatter_add(0, index[:, None].expand(-1, width), rows), _gradient(_GRADIENTS["embedding"])(table, index, rows)[0],
        ]  # fmt: skip
    return tuple(found)


def _bags(mode: str) -> Callable[..., torch.Tensor]:
    return lambda w, i: F.embedding_bag(i, w, torch.arange(0, len(i), 2).to(i.device), mode=mode, padding_idx=_PADDING)


_GRADIENTS: Mapping[str, Callable[..., torch.Tensor]] = {
    "embedding": lambda w, i: F.embedding(i, w),
    "embedding_with_padding": lambda w, i: F.embedding(i, w, padding_idx=_PADDING),
    "embedding_bag_sum": _bags("sum"),
    "embedding_bag_max": _bags("max"),
    "index_select": lambda w, i: w.index_select(0, i),
    "index": lambda w, i: w[i],
    "gather": lambda w, i: w.gather(0, i.unsqueeze(1).expand(-1, 2)),
    "take_along_dim": lambda w, i: torch.take_along_dim(w, i.unsqueeze(1), 0),
}

Call = tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]
CALLS: Mapping[str, Call] = {
    "cat": (lambda *given: torch.cat(given), lambda: tuple(_tensors())),
    "cat_columns": (lambda *given: torch.cat(given, 1), lambda: tuple(one.t().contiguous() for one in _tensors())),
    "stack": (lambda *given: torch.stack([one[0] for one in given], 1), lambda: tuple(_tensors())),
    "hstack": (lambda *given: torch.hstack(given), lambda: tuple(one.flatten() for one in _tensors())),
    "block_diag": (torch.block_diag, lambda: tuple(_tensors()[:150])),
    "pad_sequence": (lambda *given: pad_sequence(list(given), batch_first=True), lambda: tuple(_tensors())),
    "split": (lambda x: x.split([1 + number % 3 for number in range(_NUM_TENSORS)]), lambda: (torch.arange(600.0),)),
    "unbind": (lambda x: x.unbind(1), lambda: (torch.arange(900.0).view(3, 300),)),
    "foreach_add": (
        lambda *given: (*torch._foreach_add(given, given, alpha=2), *_with_scalars(given), *_copied(given)), lambda: tuple(_tensors()),
    ),
    "foreach_norm": (lambda *given: torch._foreach_norm(given), lambda: tuple(_tensors())),
    "foreach_with_empty_tensors": (_foreach, _tensors_and_empty_ones),
    "foreach_of_empty_tensors": (_foreach, _thousand_empty_tensors),
    "clipping_with_empty_tensors": (_clipped, _tensors_and_empty_ones),
    "vector": (lambda *given: torch.nn.utils.parameters_to_vector(given), lambda: tuple(_tensors())),
    "linalg.inv": (torch.linalg.inv, lambda: (_matrices(),)),
    "linalg.det": (torch.linalg.det, lambda: (_matrices(),)),
    "linalg.solve": (torch.linalg.solve, lambda: (_matrices(), _vectors())),
    "linalg.cholesky": (torch.linalg.cholesky, lambda: (_matrices(),)),
    "linalg.eigvalsh": (torch.linalg.eigvalsh, lambda: (_matrices(),)),
    "linalg.svdvals": (torch.linalg.svdvals, lambda: (_matrices(),)),
    "linalg.solve_triangular": (lambda a, b: torch.linalg.solve_triangular(a.tril(), b, upper=False), lambda: (_matrices(), _vectors())),
    "linalg.matrix_power": (lambda x: torch.linalg.matrix_power(x, 3), lambda: (_matrices(),)),
    "linalg.lu_factor": (lambda x: torch.linalg.lu_factor(x)[0], lambda: (_matrices(),)),
    "linear": (F.linear, lambda: (_rows(), *_layer())),
    "linear_without_bias": (F.linear, lambda: (_rows(), _layer()[0])),
    "linear_of_one_row": (F.linear, lambda: (_rows()[:, 0], *_layer())),
    "linear_of_few_batches": (F.linear, lambda: (_rows()[None], *_layer())),
    "linear_of_many_batches": (F.linear, lambda: (_rows()[:, None], *_layer())),
    "linear_of_columns": (F.linear, lambda: (_rows().transpose(0, 1).contiguous(), *_layer())),
    "layer_norm": (lambda x: F.layer_norm(x, (3,)), lambda: (_rows(),)),
    "softmax": (lambda x: x.softmax(-1), lambda: (_rows(),)),
    "softmax_of_columns": (lambda x: x.softmax(0), lambda: (_rows()[:, 0],)),
    "sum_of_rows": (lambda x: x.sum(-1), lambda: (_rows(),)),
    "argmax_of_rows": (lambda x: x.argmax(-1), lambda: (_rows(),)),
    "sort_of_rows": (lambda x: x.sort(-1), lambda: (_rows(),)),
    "topk_of_rows": (lambda x: x.topk(2, -1), lambda: (_rows(),)),
    "cumsum_of_rows": (lambda x: x.cumsum(-1), lambda: (_rows(),)),
    "conv1d": (lambda x, w, b: F.conv1d(x.transpose(1, 2), w[..., None], b), lambda: (_rows(), *_layer())),
    "conv2d": (lambda x, w, b: F.conv2d(x.transpose(1, 2)[..., None], w[..., None, None], b), lambda: (_rows(), *_layer())),
    "conv1d_of_long_signals": (lambda x, w: F.conv1d(x.view(1, 1, -1), w.view(1, 1, -1)), lambda: (_rows(), _layer()[0])),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), lambda: (_rows(),)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x[:, None], 2), lambda: (_rows(),)),
    "interpolate": (lambda x: F.interpolate(x, 5), lambda: (_rows(),)),
    "batch_norm": (lambda x: F.batch_norm(x.transpose(1, 2), None, None, training=True), lambda: (_rows(),)),
    "group_norm": (lambda x: F.group_norm(x.transpose(1, 2), 1), lambda: (_rows(),)),
    "pad": (lambda x: F.pad(x, (1, 1), "reflect"), lambda: (_rows(),)),
    "pad_of_five_dimensions": (lambda x: F.pad(x, (0, 0, 0, 0, 1, 2)), lambda: (torch.arange(1.0, 270_401).view(1, 1, 4, 260, 260),)),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x), lambda: (_rows(),)),
    "attention_of_many_heads": (F.scaled_dot_product_attention, lambda: _heads(*[(8193, 8, 2, 16)] * 3, dtype=torch.float16)),
    "attention_over_many_keys": (
        _attention_gradients,
        lambda: _heads((1, 1, 1, 16), *[(1, 1, _NUM_MATRICES, 16)] * 2, dtype=torch.bfloat16),
    ),
    "cdist": (lambda x: torch.cdist(x, x), lambda: (_rows(),)),
    "bmm": (lambda x: torch.bmm(x, x.transpose(1, 2)), lambda: (_rows(),)),
    "baddbmm": (lambda x: torch.baddbmm(x[:1, :, :1], x, x.transpose(1, 2)), lambda: (_rows(),)),
    "flip": (lambda x: (x.flip(0), x.flip(-1), x.roll(1, 0)), lambda: (_rows(),)),
    "transpose": (
        lambda x: (x.transpose(0, 1).contiguous(), x.permute(2, 1, 0).contiguous(), *_transposed_blocks(x.device)), lambda: (_rows(),),
    ),
    "tril": (torch.tril, lambda: (_rows(),)),
    "cross_entropy": (lambda x: F.cross_entropy(x[:, 0], x[:, 0].argmax(-1), reduction="none"), lambda: (_rows(),)),
    "unfold": (lambda x: F.unfold(x[:, None], 2), lambda: (_rows(),)),
    "matmul": (torch.matmul, lambda: (_matrices(), _vectors()[:1])),
    "linalg.cross": (torch.linalg.cross, lambda: ((torch.arange(3.0 * _NUM_MATRICES) % 11).view(-1, 3), torch.tensor([[1.0, 2.0, 3.0]]))),
    "index_add": (lambda w, i, v: (w.index_add(0, i, v), *_added_wide_rows(w.device)), lambda: (_weights(), _indices(), _values())),
    "index_put": (
        lambda w, i, v: (w.index_put((i,), v, accumulate=True), w.index_put((i,), v[:1, :1], accumulate=True)),
        lambda: (_weights(), _indices(), _values()),
    ),
    "scatter_add": (lambda w, i, v: w.scatter_add(0, i[:, None].expand(-1, 2), v), lambda: (_weights(), _indices(), _values())),
    "scatter_amax": (
        lambda w, i, v: w.scatter_reduce(0, i[:, None].expand(-1, 2), v, "amax"), lambda: (_weights() - 9, _indices(), _values()),
    ),
    "bincount": (
        lambda i: (i.bincount(), i.bincount(minlength=100_003), i.float().histc(8192), i.float().histc(100_003)), lambda: (_indices(),),
    ),
    "unique": (lambda i: torch.unique(i, return_inverse=True, return_counts=True), lambda: (_repeated(),)),
    "unique_rows": (lambda x: torch.unique(x, dim=0, return_inverse=True, return_counts=True), lambda: (_table(),)),
    "unique_consecutive": (
        lambda i: torch.unique_consecutive(i, return_inverse=True, return_counts=True),
        lambda: (torch.arange(_NUM_REPEATED) // 1000 % 2,),
    ),
    "histc_of_two_values": (lambda i: torch.histc(i.float(), 2), lambda: (_repeated(),)),
    "bincount_of_two_values": (torch.bincount, lambda: (_repeated(),)),
    "index_add_of_two_values": (lambda i: i.new_zeros(2).index_add(0, i, i + 3), lambda: (_repeated(),)),
    "index_put_of_two_values": (lambda i: i.new_zeros(2).index_put((i,), i + 3, accumulate=True), lambda: (_repeated(),)),
    "scatter_add_of_two_values": (lambda i: i.new_zeros(2).scatter_add(0, i, i + 3), lambda: (_repeated(),)),
    "scatter_prod_of_two_values": (
        lambda i: i.new_ones(2).scatter_reduce(0, i, (torch.arange(len(i), device=i.device) % 50_000 == 0) + 1, "prod"),
        lambda: (_repeated(),),
    ),
    "one_hot": (lambda i: (F.one_hot(i).sum(0), F.one_hot(i[:9] * 9973, 100_003)), lambda: (_indices(),)),
    "searchsorted": (
        lambda edges, x: (torch.searchsorted(edges, x), torch.bucketize(x, edges, right=True), torch.isin(x, edges)),
        lambda: (torch.arange(0.0, 2 * _NUM_INDICES, 2), torch.arange(-3.0, 2 * _NUM_INDICES, 1001)),
    ),
    "quantile": (lambda x, q: x.quantile(q), lambda: (_values()[:1001, 0] + torch.arange(1001.0), torch.linspace(0, 1, 1001))),
    "embedding_bag": (lambda w, i: F.embedding_bag(i[:, None], w, mode="sum"), lambda: (_weights(), _indices())),
    "tensor_split": (lambda x: (x.tensor_split(1000), x.tensor_split(range(3, 2000, 2)), x.chunk(999)), lambda: (torch.arange(2003.0),)),
    "repeat_interleave": (lambda i: i.repeat_interleave(i % 3), lambda: (_indices(),)),
    **{
        f"backward_of_{name}": (_gradient(function), lambda: (_weights(), _indices(), _values()))
        for name, function in _GRADIENTS.items()
    },
}  # fmt: skip
"""Calls by name, with 150 to 1,001 tensors, 65,543 matrices, vectors, heads or keys, 70,003 indices, 131,086 rows of integers, or 1,048,588
integers of only two different values. Each call consists of a function and another function, which returns the arguments of the first."""


def check_many_items(subject: Subject, name: str) -> None:
    """Compare the results of the call ``CALLS[name]`` on the device with the results of the same call on the CPU.

    Raises:
        AssertionError: If a result differs, if an argument has changed, or if the device and the CPU disagree on whether a result shares
            memory with the arguments. One disagreement is allowed: if the CPU returns one of the arguments, the device may return a copy.
    """
    call, arguments = CALLS[name]
    compare_call(subject, call, arguments())
