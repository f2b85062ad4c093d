"""Calls on tensors with more than 2**24 elements or more than 2**23 rows or columns, and calls that move millions of elements.

A float32 counter cannot count beyond 2**24, and 65,535 blocks of 256 threads cover fewer than 2**24 elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # the usual name
from torch.utils._pytree import tree_leaves, tree_map

from accelkit_conformance.oracle.lacking_dtypes import require_dtypes
from accelkit_conformance.oracle.tolerance import check_form, check_values

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

LENGTH = 2**24 + 12
_LAST = LENGTH - 1
_NUM_ROWS = 2**23 + 64


def _indices(device: Any) -> torch.Tensor:
    return torch.tensor([0, 65_535 * 256, 2**24 - 1, 2**24 + 1, _LAST]).to(device)


def _numbers(device: Any) -> torch.Tensor:
    return torch.arange(LENGTH, dtype=torch.int32, device=device)


def _marked(device: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a tensor of zeros, with ones at the indices that ``_indices`` returns."""
    zeros = torch.zeros(LENGTH, dtype=dtype, device=device)
    zeros[-1] = zeros[2**24 + 1] = zeros[2**24 - 1] = zeros[65_535 * 256] = zeros[0] = 1
    return zeros


def _ones(device: Any) -> torch.Tensor:
    """Return as many matrices with one element as ``_marked`` returns numbers."""
    return torch.ones(1, 1, 1, device=device).expand(LENGTH, 1, 1)


def _ends(result: torch.Tensor) -> torch.Tensor:
    """Return the first and the last elements of a one-dimensional result, and the elements around the index 2**24."""
    return torch.cat([result[:4], result[2**24 - 2 : 2**24 + 3], result[-4:]])


def _scattered(device: Any) -> torch.Tensor:
    indices = _indices(device)
    return torch.zeros(LENGTH, device=device).index_add_(0, indices, torch.ones(len(indices), device=device))


def _rows(device: Any) -> torch.Tensor:
    """Return a matrix with more than 2**23 rows of length 3, which repeat 64 different rows."""
    return ((torch.arange(192.0) * 37 % 101 - 50) / 16).view(64, 3).to(device, torch.bfloat16).repeat(_NUM_ROWS // 64, 1)


def _row_ends(result: torch.Tensor) -> torch.Tensor:
    """Return the first and the last rows of a result, and the rows around index 2**23."""
    return torch.cat([result[:4], result[2**23 - 2 : 2**23 + 3], result[-64:]])


def _columns(device: Any) -> torch.Tensor:
    """Return the transpose of ``_rows``, with contiguous rows."""
    return _rows(device).t().contiguous()


def _column_ends(result: torch.Tensor) -> torch.Tensor:
    """Return the first and the last columns of a result, and the columns around index 2**23."""
    return _row_ends(result.movedim(-1, 0))


def _few(device: Any) -> torch.Tensor:
    """Return int32 numbers of which all but the first five and the last are 1. The others are 0."""
    ones = torch.ones(LENGTH, dtype=torch.int32, device=device)
    ones[:5] = ones[-1] = 0
    return ones


def _weight(device: Any) -> torch.Tensor:
    return ((torch.arange(6.0) - 2) / 4).view(2, 3).to(device, torch.bfloat16)


_ROW_CALLS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "cross_entropy": lambda x, device: F.cross_entropy(x, x.argmax(1), reduction="none"),
    "cumsum": lambda x, device: x.cumsum(1),
    "embedding": lambda x, device: F.embedding(x[:, 0].abs().clamp(max=2).long(), _weight(device).t()),
    "layer_norm": lambda x, device: F.layer_norm(x, (3,)),
    "linear": lambda x, device: F.linear(x, _weight(device)),
    "log_softmax": lambda x, device: x.log_softmax(1),
    "max": lambda x, device: x.max(1),
    "rms_norm": lambda x, device: F.rms_norm(x, (3,)),
    "softmax": lambda x, device: x.softmax(1),
    "sort": lambda x, device: x.sort(1),
    "sum": lambda x, device: x.sum(1),
    "vector_norm": lambda x, device: torch.linalg.vector_norm(x, dim=1),
}
"""Functions by name. Each takes the result of ``_rows`` and a device."""

_COLUMN_CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "cumsum": lambda x: x.cumsum(0),
    "max": lambda x: x.max(0),
    "softmax": lambda x: x.softmax(0),
    "sort": lambda x: x.sort(dim=0, stable=True),
    "sort_of_float32": lambda x: x[:, -(2**22) - 64 :].float().sort(dim=0, stable=True),
    "sum": lambda x: x.sum(0),
}
"""Functions by name. Each takes the result of ``_columns``."""


def _blocks(device: Any) -> torch.Tensor:
    """Return a five-dimensional tensor of 7,558,656 small integers. Most of its lengths are odd."""
    count = 16 * 7 * 57 * 32 * 37 + 16 * 7 * 57 * 32
    return (torch.arange(count, dtype=torch.int32) % 32_749).to(torch.int16).view(16, 7, 57, 32, 38)[..., :37].to(device)


def _halves(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a four-dimensional tensor of small integers. Neither of its last two lengths is a multiple of 32."""
    return (x[:, :, 0] % 251).to(dtype)[..., :31, :]


def _dense_mask(device: Any) -> torch.Tensor:
    """Return a mask of ``_NUM_MASKED`` elements. Slightly more than half of them, which are spread irregularly, are True."""
    return (torch.arange(_NUM_MASKED) * 7919 % _NUM_MASKED < _NUM_MASKED // 2 + 5).to(device)


def _masked(x: torch.Tensor, mask: torch.Tensor) -> Any:
    """Select the masked elements several times, and change the tensor between the selections. Return the selected elements."""
    found = []
    for _ in range(8):
        found.append(x[mask].view(-1, 1)[:, 0])
        x += 1
    return found


_NUM_MASKED = 1_842_339
_MOVING: dict[str, Callable[[torch.Tensor], Any]] = {
    "chunk": lambda x: [one.clone() for one in x.chunk(3, 2)],
    "constant_pad": lambda x: F.pad(x, (1, 2, 0, 1)),
    "flip_of_blocks": lambda x: x.flip(0, 2),
    "index_copy": lambda x: x.index_copy(2, torch.arange(3, 50).to(x.device), x[:, :, :47].clone()),
    "index_select_of_blocks": lambda x: x.index_select(1, torch.tensor([6, 0, 3, 3, 1, 5, 2]).to(x.device)),
    "masked_fill_of_blocks": lambda x: x.masked_fill(x % 3 == 0, -1),
    "permute": lambda x: x.permute(4, 0, 2, 1, 3).contiguous(),
    "repeat": lambda x: x[:, :3].repeat(1, 2, 1, 1, 1),
    "repeat_of_bfloat16": lambda x: _halves(x, torch.bfloat16).repeat(1, 1, 3, 2),
    "repeat_of_float16": lambda x: _halves(x, torch.float16).tile(3, 2),
    "repeat_interleave": lambda x: x[:, :4].repeat_interleave(2, 0),
    "roll": lambda x: x.roll((5, 11), (2, 4)),
    "rot90": lambda x: x.rot90(1, (2, 4)),
    "stack": lambda x: torch.stack([x[0], x[3], x[9]], 2),
    "tril": lambda x: x.tril(-3),
    "unfold": lambda x: x[:3].unfold(2, 5, 3).contiguous(),
    "where_of_blocks": lambda x: torch.where(x[:1] % 2 == 0, x, x[..., :1]),
}
"""Functions by name that move elements. Each takes the result of ``_blocks``. All elements of their results are compared."""
_MASKED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "getitem": _masked,
    "masked_scatter": lambda x, mask: x.masked_scatter(mask, x.flip(0)),
    "masked_select": lambda x, mask: [x.masked_select(mask), (x + 1).masked_select(mask)],
    "nonzero": lambda x, mask: [mask.nonzero(), mask.view(3, -1).nonzero()],
    "setitem": lambda x, mask: x.__setitem__(mask, x[mask] * 2) or x,  # type: ignore[func-returns-value]
    "unique": lambda x, mask: (x * 1000 % 1_000_003).unique(),
}
"""Functions by name. Each takes a tensor of as many numbers as the result of ``_dense_mask`` has elements, and this mask. All elements of
their results are compared."""

CALLS: dict[str, Callable[[Any], Any]] = {
    "add": lambda device: _ends(_numbers(device) + 1),
    "any": lambda device: (_marked(device)[1 : 65_535 * 256] != 0).any(),
    "arange": lambda device: _ends(_numbers(device)),
    "bmm_of_many_matrices": lambda device: _ends(torch.bmm(_ones(device), _marked(device).view(-1, 1, 1)).view(-1)),
    "argmax": lambda device: (_marked(device)[1:] * _numbers(device)[1:]).argmax(),
    "bincount": lambda device: _few(device).bincount(),
    "cat": lambda device: _ends(torch.cat([_numbers(device)[: 2**23], _numbers(device)[2**23 :]])),
    "clone": lambda device: _ends(_numbers(device).clone()),
    "copy_transposed": lambda device: _ends(_numbers(device).view(4, -1).t().contiguous().view(-1)),
    "count_nonzero": lambda device: torch.ones(LENGTH, dtype=torch.bool, device=device).count_nonzero(),
    "cumsum": lambda device: _ends(torch.ones(LENGTH, dtype=torch.int32, device=device).cumsum(0)),
    "fill": lambda device: torch.empty(LENGTH, device=device).fill_(2.0).min(),
    "flip": lambda device: _ends(_numbers(device).flip(0)),
    "gather": lambda device: _numbers(device).gather(0, _indices(device)),
    "histc": lambda device: _few(device).float().histc(2),
    "index_add": lambda device: _ends(_scattered(device)),
    "index_add_of_few": lambda device: torch.zeros(2, dtype=torch.int32, device=device).index_add_(0, _few(device), _few(device) + 1),
    "index_select": lambda device: _numbers(device).index_select(0, _indices(device)),
    "masked_fill": lambda device: _ends(_numbers(device).masked_fill(_marked(device) != 0, -1)),
    "masked_select": lambda device: _numbers(device).masked_select(_marked(device) != 0),
    "max_dim": lambda device: _numbers(device).view(2, -1).max(1),
    "mean": lambda device: torch.ones(LENGTH, device=device).mean(),
    "nonzero": lambda device: _marked(device).nonzero(),
    "scatter_add_of_few": lambda device: torch.zeros(2, dtype=torch.int32, device=device).scatter_add_(
        0, _few(device).long(), _few(device)
    ),
    "softmax": lambda device: _ends(torch.zeros(LENGTH, device=device).softmax(0)),
    "sum": lambda device: torch.ones(LENGTH, device=device).sum(),
    "sum_bool": lambda device: torch.ones(LENGTH, dtype=torch.bool, device=device).sum(),
    "sum_rows": lambda device: _ends(torch.ones(LENGTH, 2, dtype=torch.uint8, device=device).sum(1)),
    "take": lambda device: _numbers(device).take(_indices(device)),
    "to": lambda device: _ends(_numbers(device).to(torch.float32)),
    "topk": lambda device: _numbers(device).topk(3).indices,
    "unique_consecutive": lambda device: _few(device).unique_consecutive(return_counts=True),
    "where": lambda device: _ends(torch.where(_marked(device) != 0, _numbers(device), 7)),
    **{
        f"{name}_of_many_rows": lambda device, call=call: tree_map(_row_ends, call(_rows(device), device))  # type: ignore[misc]
        for name, call in _ROW_CALLS.items()
    },
    **{
        f"{name}_of_many_columns": lambda device, call=call: tree_map(_column_ends, call(_columns(device)))  # type: ignore[misc]
        for name, call in _COLUMN_CALLS.items()
    },
    **{name: lambda device, call=call: call(_blocks(device)) for name, call in _MOVING.items()},  # type: ignore[misc]
    **{
        f"{name}_of_a_dense_mask": lambda device, call=call: call(  # type: ignore[misc]
            torch.arange(_NUM_MASKED, dtype=torch.int32, device="cpu").to(device), _dense_mask(device)
        )
        for name, call in _MASKED.items()
    },
}
"""Functions by name. Each takes a device. The functions from ``_MOVING`` and ``_MASKED`` return whole results. The others return a few
elements. Most of these depend on elements of a tensor near or beyond index 2**24, or on rows or columns of a matrix near or beyond index
2**23. Others are counts or sums of more than 2**24 elements that have only two values."""


def check_large_tensors(subject: Subject, name: str) -> None:
    """Compare the results of the call ``CALLS[name]`` on the device with the results of the same call on the CPU.

    Raises:
        AssertionError: If a result differs.
        NotSupported: If the device lacks a dtype that the call needs.
    """
    call = CALLS[name]
    require_dtypes(subject, lambda: call("cpu"))
    for mine, theirs in zip(tree_leaves(call(subject.device)), tree_leaves(call("cpu")), strict=True):
        check_form(mine, theirs, subject.device)
        if theirs.is_floating_point():
            check_values(mine.cpu(), theirs, None)
            continue
        wrong = (mine.cpu() != theirs).flatten().nonzero().flatten()
        assert not len(wrong), f"{len(wrong)} of {theirs.numel()} elements differ, the first at the linear index {wrong[0]}"
