"""Calls to ``scaled_dot_product_attention`` with combinations of options. Devices have special kernels for some sizes and head
dimensions."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # the usual name

from accelkit.runtime.comparison.cotangents import cotangents
from accelkit_conformance.oracle.compared_calls import compare_call
from accelkit_conformance.oracle.layouts import LAYOUTS
from accelkit_conformance.oracle.pairwise import covering_rows

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

SIZES: Mapping[str, tuple[int, int, Sequence[str]]] = {
    "one_query": (1, 1040, ("bfloat16",)),
    "few_queries": (8, 1040, ("float32",)),
    "blocks": (192, 192, ("float32", "bfloat16")),
    "cross": (33, 361, ("float32", "float16")),
}
"""The numbers of queries and of keys, and the dtypes that are tested with them, by name."""
_HEADS = 2
_WITHOUT_MASK = ("none", "causal")
_OFFSETS = {"low": -960.0, "high": 960.0}
_SCALES = {"usual": None, "scaled": 0.3, "low": 0.125, "high": 0.125, "nan": None}
AXES: Mapping[str, Sequence[str]] = {
    "mask": (*_WITHOUT_MASK, "left padding", "right padding", "causal and padding", "window", "documents", "per head", "closed rows"),
    "closed": ("False", "-inf", "lowest", "-10000"),
    "key_heads": ("2", "1"),
    "head_size": ("64", "16", "96", "100", "128", "256"),
    "layout": ("contiguous", "queries", "keys", "values", "expanded", "offset"),
    "scores": tuple(_SCALES),
    "gradients": ("none", "inputs", "mask", "saved on the host"),
    "batch": ("2", "0"),
}
"""The options and their values.

``closed`` is the value that a mask has where a query must not attend to a key: False in boolean masks, and otherwise a number that is added
to the score. ``layout`` names the tensors that are permuted in memory, while the others are contiguous. ``expanded`` means that keys and
values have a stride of 0 between heads and between batch entries.
"""


def _is_allowed(row: Mapping[str, str]) -> bool:
    """Return whether a combination has a defined result. If all keys are masked out for some queries, the result is defined only if
    ``closed`` is False or -inf."""
    mask, closed, gradients = (row.get(name) for name in ("mask", "closed", "gradients"))
    if mask in _WITHOUT_MASK and (closed not in (None, "False") or gradients == "mask"):
        return False
    if mask == "closed rows" and closed not in (None, "False", "-inf"):
        return False
    if row.get("scores") == "nan" and gradients not in (None, "none"):
        return False
    return not (gradients == "mask" and closed == "False") and not (row.get("batch") == "0" and row.get("scores", "usual") != "usual")


def check_combinations(subject: Subject, size: str, dtype: str) -> None:
    """Compare attention, and in some calls its gradients, with the CPU, for a pairwise covering array of the options in ``AXES``.
    Differences are recorded in the subject.

    Args:
        subject: The plugin under test, with its device.
        size: A name in ``SIZES``.
        dtype: The name of the dtype of queries, keys and values.
    """
    for row in covering_rows(AXES, _is_allowed):
        description = ", ".join(f"{name}={value}" for name, value in row.items())
        with subject.sample(f"attention, {size}, {description}", {"dtype": dtype, **row}):
            call = functools.partial(_call, row=row)
            compare_call(subject, call, _arguments(row, *SIZES[size][:2], getattr(torch, dtype)), num_stages=5)


def _call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, row: Mapping[str, str]) -> list[torch.Tensor]:
    """Return the result of attention and the gradients of those arguments that require one.

    A tensor of NaN with the size of the queries is freed before the call, so that a result that is not written is noticed.
    """
    offset = _OFFSETS.get(row["scores"])
    query, key = (q, k) if offset is None else (F.pad(q, (1, 0), value=1.0), F.pad(k, (1, 0), value=offset))
    torch.full_like(query, float("nan"))
    is_saved = row["gradients"] == "saved on the host"
    with torch.autograd.graph.save_on_cpu() if is_saved else contextlib.nullcontext():
        output = F.scaled_dot_product_attention(
            query, key, v, mask, is_causal=row["mask"] == "causal", scale=_SCALES[row["scores"]], enable_gqa=k.shape[1] != q.shape[1]
        )
    wanted = [one for one in (q, k, v, mask) if one is not None and one.requires_grad]
    return [output, *(torch.autograd.grad(output, wanted, cotangents([output], "attention")) if wanted else ())]


def _arguments(row: Mapping[str, str], num_queries: int, num_keys: int, dtype: torch.dtype) -> tuple[torch.Tensor | None, ...]:
    """Return queries, keys, values and the mask.

    If the scores have an offset, the numbers are such that each score is a multiple of 0.5, even before it is scaled to about ±120. Any
    dtype then represents the scores exactly. Each query and each key then lacks its first element, which ``_call`` adds.
    """
    batch, size = int(row["batch"]), int(row["head_size"])
    shapes = ((batch, _HEADS, num_queries, size), *((batch, int(row["key_heads"]), num_keys, size),) * 2)
    given = [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed, shape in enumerate(shapes)]
    if row["scores"] in _OFFSETS:
        is_used = torch.arange(size) < 4
        given[:2] = [(given[0].sign() * is_used)[..., 1:], (given[1].sign() * is_used * 4)[..., 1:]]
    if row["scores"] == "nan":
        given[0][-1, 0, -1, 0] = float("nan")
    given = [one.to(dtype) for one in given]
    layout = row["layout"]
    for number, name in enumerate(("queries", "keys", "values")):
        if layout == name:
            given[number] = given[number].transpose(1, 2).contiguous().transpose(1, 2)
        elif layout == "offset":
            given[number] = LAYOUTS["offset"](given[number])
        elif layout == "expanded" and number and batch:
            given[number] = given[number][:1, :1].expand(given[number].shape)
    mask = None if row["mask"] in _WITHOUT_MASK else _mask(row, num_queries, num_keys, dtype)
    if row["gradients"] != "none":
        given = [one.requires_grad_() for one in given]
    return *given, mask.requires_grad_(row["gradients"] == "mask") if mask is not None else None


def _mask(row: Mapping[str, str], num_queries: int, num_keys: int, dtype: torch.dtype) -> torch.Tensor:
    batch = int(row["batch"])
    queries, keys = (torch.arange(num_queries) + num_keys - num_queries)[:, None], torch.arange(num_keys)
    padding = torch.tensor([num_keys * 2 // 3, 0])[:batch, None, None, None]
    numbers = torch.rand(batch, _HEADS, num_queries, num_keys, generator=torch.Generator().manual_seed(5))
    is_random = (numbers > 0.4) | (keys == num_keys - 1)
    masks: Mapping[str, Callable[[], torch.Tensor]] = {
        "left padding": lambda: keys >= padding,
        "right padding": lambda: keys < num_keys - padding,
        "causal and padding": lambda: ((keys <= queries) & (keys >= padding)) | (keys == queries),
        "window": lambda: (keys - queries).abs() < 9,
        "documents": lambda: queries * 3 // num_keys == keys * 3 // num_keys,
        "per head": lambda: is_random,
        "closed rows": lambda: is_random & ((keys[:num_queries, None] * 2 > num_queries) | (padding == 0)),
    }
    is_open = masks[row["mask"]]()
    if row["closed"] == "False":
        return is_open
    value = torch.finfo(dtype).min if row["closed"] == "lowest" else float(row["closed"])
    return (torch.rand(is_open.shape, generator=torch.Generator().manual_seed(6)) * 2).masked_fill(~is_open, value).to(dtype)
