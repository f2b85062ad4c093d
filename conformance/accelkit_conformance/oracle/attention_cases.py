"""Calls of scaled_dot_product_attention with the head sizes, masks and layouts that models use."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.oracle.compared_calls import compare_call

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

SIZES = {"prefill": (33, 33), "decoding": (1, 33), "cross": (5, 70), "long": (130, 130), "one": (1, 1)}
"""The numbers of queries and of keys, by name."""
_BATCH, _HEADS = 2, 4
_MASKS: dict[str, tuple[int, ...]] = {
    "no mask": (),
    "mask of queries and keys": (0, 0),
    "mask of keys": (_BATCH, 1, 1, 0),
    "mask of batches": (_BATCH, 1, 0, 0),
    "mask of heads": (1, _HEADS, 0, 0),
    "mask of all": (_BATCH, _HEADS, 0, 0),
}
_LAYOUTS = ("contiguous", "heads next to the head dimension", "parts of one tensor")


def check_attention(subject: Subject, size: str, dtype: str) -> None:
    """Compare attention with each mask, scale and layout with that on the CPU. Differences are recorded in the subject.

    Args:
        subject: The plugin under test, with its device.
        size: A name in ``SIZES``.
        dtype: The dtype of queries, keys and values.
    """
    for description, arguments, keywords in _cases(*SIZES[size], getattr(torch, dtype)):
        with subject.sample(f"attention, {size}, {description}", {"dtype": dtype}):
            compare_call(
                subject,
                lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **keywords),  # noqa: B023
                arguments,
                num_stages=5,
            )


def _cases(num_queries: int, num_keys: int, dtype: torch.dtype) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    for head, layout in itertools.product((64, 80), _LAYOUTS):
        q, k, v = (_heads(layout, seed, length, head, dtype) for seed, length in ((1, num_queries), (2, num_keys), (3, num_keys)))
        for mask, shape in _MASKS.items():
            if mask != "no mask" and (head != 64 or layout == "parts of one tensor"):
                continue
            for kind in ("bool", "numbers") if shape else ("",):
                given = _mask(shape, num_queries, num_keys, kind, dtype) if shape else None
                for scale in (None, 0.3) if mask in ("no mask", "mask of keys") else (None,):
                    yield f"{mask} {kind}, head {head}, {layout}, scale={scale}", (q, k, v, given), {"scale": scale}
        yield f"causal, head {head}, {layout}", (q, k, v, None), {"is_causal": True}
        yield f"causal, head {head}, {layout}, scaled", (q, k, v, None), {"is_causal": True, "scale": 0.7}
        yield f"grouped, head {head}, {layout}", (q, k[:, :2], v[:, :2], None), {"enable_gqa": True}
        yield f"other head of the values, {head}, {layout}", (q, k, v[..., :48], None), {}


def _heads(layout: str, seed: int, length: int, head: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(_BATCH, length, 3, _HEADS, head, generator=generator).to(dtype)
    part = values[:, :, seed - 1].transpose(1, 2)
    if layout == "parts of one tensor":
        return part
    return part.contiguous() if layout == "contiguous" else part.transpose(1, 2).contiguous().transpose(1, 2)


def _mask(shape: tuple[int, ...], num_queries: int, num_keys: int, kind: str, dtype: torch.dtype) -> torch.Tensor:
    """Return a mask in which every query attends to at least the last key. A length of 0 stands for the number of queries or keys."""
    lengths = [*shape[:-2], shape[-2] or num_queries, shape[-1] or num_keys]
    numbers = torch.rand(lengths, generator=torch.Generator().manual_seed(5))
    allowed = numbers > 0.4
    allowed[..., -1] = True
    return allowed if kind == "bool" else numbers.mul(2).masked_fill(~allowed, -float("inf")).to(dtype)
