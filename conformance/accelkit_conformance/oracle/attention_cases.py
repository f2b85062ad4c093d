"""Calls to ``scaled_dot_product_attention`` with various head sizes, masks and memory layouts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.oracle.compared_calls import compare_call

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

SIZES = {
    "prefill": (33, 33),
    "decoding": (1, 33),
    "cross": (5, 70),
    "long": (130, 130),
    "one": (1, 1),
    "queries": (4099, 9),
    "keys": (9, 4099),
}
"""The numbers of queries and of keys, by name."""
_BATCH, _HEADS = 2, 4
_MASKS: dict[str, tuple[int, ...]] = {
    "no mask": (),
    "mask of queries and keys": (0, 0),
    "mask of keys": (_BATCH, 1, 1, 0),
    "mask per batch entry": (_BATCH, 1, 0, 0),
    "mask per head": (1, _HEADS, 0, 0),
    "mask of full shape": (_BATCH, _HEADS, 0, 0),
}
"""The shapes of the masks, by name. A 0 in the last place stands for the number of keys, and a 0 before it for the number of queries."""
_LONG = 1000
"""If there are more queries or keys than this, only a few calls are made, because they take long."""
_LAYOUTS = ("contiguous", "permuted", "slices of larger tensors")


def check_attention(subject: Subject, size: str, dtype: str) -> None:
    """Compare the results of attention on the device with those on the CPU, for various masks, scales and layouts. Differences are recorded
    in the subject.

    Args:
        subject: The plugin under test, with its device.
        size: A name in ``SIZES``.
        dtype: The name of the dtype of queries, keys and values.
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
    is_long = max(num_queries, num_keys) > _LONG
    for head, layout in [(64, "contiguous")] if is_long else itertools.product((64, 80), _LAYOUTS):
        q, k, v = (_heads(layout, seed, length, head, dtype) for seed, length in ((1, num_queries), (2, num_keys), (3, num_keys)))
        for mask, shape in _MASKS.items():
            if mask != "no mask" and (is_long or head != 64 or layout == "slices of larger tensors"):
                continue
            for kind in ("bool", "added") if shape else ("",):
                given = _mask(shape, num_queries, num_keys, kind, dtype) if shape else None
                for scale in (None, 0.3) if mask in ("no mask", "mask of keys") else (None,):
                    description = f"{mask} {kind}".strip()
                    yield f"{description}, head size {head}, {layout}, scale={scale}", (q, k, v, given), {"scale": scale}
                    if head == 64 and layout == "contiguous" and given is not None and scale is None:
                        for arrangement, arranged in _arranged(given, num_queries, num_keys).items():
                            yield f"{description}, {arrangement}", (q, k, v, arranged), {}
        yield f"causal, head size {head}, {layout}", (q, k, v, None), {"is_causal": True}
        yield f"causal, head size {head}, {layout}, scale=0.7", (q, k, v, None), {"is_causal": True, "scale": 0.7}
        yield f"fewer heads of keys and values, head size {head}, {layout}", (q, k[:, :2], v[:, :2], None), {"enable_gqa": True}
        yield f"values with head size 48, others with {head}, {layout}", (q, k, v[..., :48], None), {}


def _arranged(mask: torch.Tensor, num_queries: int, num_keys: int) -> dict[str, torch.Tensor]:
    """Return copies of a mask in several memory layouts, by description. The first is expanded to the shape of the attention scores."""
    return {
        "expanded": mask.expand(_BATCH, _HEADS, num_queries, num_keys),
        "transposed": mask.mT.contiguous().mT,
        "a part of a larger mask": torch.cat([mask, ~mask if mask.dtype is torch.bool else -mask], -1)[..., :num_keys],
    }


def _heads(layout: str, seed: int, length: int, head: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(_BATCH, length, 3, _HEADS, head, generator=generator).to(dtype)
    part = values[:, :, seed - 1].transpose(1, 2)
    if layout == "slices of larger tensors":
        return part
    return part.contiguous() if layout == "contiguous" else part.transpose(1, 2).contiguous().transpose(1, 2)


def _mask(shape: tuple[int, ...], num_queries: int, num_keys: int, kind: str, dtype: torch.dtype) -> torch.Tensor:
    """Return a mask that lets every query attend to at least the last key.

    The mask is boolean if ``kind`` is ``bool``. Otherwise, it is a mask of ``dtype`` that is added to the attention scores. If the
    second-to-last size in ``shape`` is 0, it is replaced by the number of queries. If the last size is 0, it is replaced by the number of
    keys.
    """
    lengths = [*shape[:-2], shape[-2] or num_queries, shape[-1] or num_keys]
    numbers = torch.rand(lengths, generator=torch.Generator().manual_seed(5))
    allowed = numbers > 0.4
    allowed[..., -1] = True
    return allowed if kind == "bool" else numbers.mul(2).masked_fill(~allowed, -float("inf")).to(dtype)
