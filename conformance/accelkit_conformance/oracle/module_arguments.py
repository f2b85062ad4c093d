"""Examples of modules with arguments that torch's database of modules does not have.

Each example is a function that returns a new module on the CPU and the arguments of its forward pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils._pytree import tree_map_only

from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes
from accelkit_conformance.oracle.layers import SelfAttention, ViewedStates
from accelkit_conformance.oracle.module_compare import compare_module, run_module

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

Example = Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]


def _x(*shape: int) -> torch.Tensor:
    """Return random numbers that require a gradient. Every call with the same shape returns the same numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_()


def _indices(count: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(count, shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


def _of(cls: Callable[..., nn.Module], *args: Any, given: tuple[Any, ...], call: dict[str, Any] | None = None, **kwargs: Any) -> Example:
    """Return an example of the module ``cls(*args, **kwargs)``, called with the positional arguments ``given`` and the keyword arguments
    ``call``."""
    return lambda: (cls(*args, **kwargs), given, call or {})


class _Packed(nn.Module):
    """A recurrent module that gets its batch as a packed sequence. The sequences of the batch are not sorted by length."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        packed = pack_padded_sequence(x, [2, 4, 1], enforce_sorted=False)
        output, states = self.layer(packed)
        return pad_packed_sequence(output)[0], states


def _convolutions(cls: Any, ndim: int) -> list[Example]:
    """Return examples of a convolution over ``ndim`` spatial dimensions: various strides, paddings, padding modes, dilations and groups."""
    size = (9, 8, 7)[:ndim]
    modes = ("circular", "reflect", "replicate") if ndim < 3 else ("circular", "replicate")
    return [
        _of(cls, 4, 6, (3, 2, 1)[:ndim], stride=2, padding=(2, 1, 0)[:ndim], dilation=(2, 1, 2)[:ndim], groups=2, given=(_x(2, 4, *size),)),
        _of(cls, 4, 8, 3, groups=4, bias=False, padding=1, given=(_x(2, 4, *size),)),
        _of(cls, 3, 5, 1, given=(_x(1, 3, *size),)),
        _of(cls, 3, 2, 2, stride=3, given=(_x(3, 3, *size),)),
        _of(cls, 3, 2, 4, padding="same", dilation=2, given=(_x(2, 3, *size),)),
        *(_of(cls, 3, 4, 3, padding=1, padding_mode=mode, given=(_x(2, 3, *size),)) for mode in modes),
    ]


def _transposed(cls: Any, ndim: int) -> list[Example]:
    size = (5, 4, 3)[:ndim]
    return [
        _of(cls, 4, 6, 3, stride=3, padding=1, output_padding=(2, 1, 2)[:ndim], groups=2, given=(_x(2, 4, *size),)),
        _of(cls, 3, 5, (3, 2, 1)[:ndim], dilation=2, bias=False, given=(_x(1, 3, *size),)),
        _of(cls, 4, 8, 2, stride=2, groups=4, given=(_x(2, 4, *size),)),
    ]


def _recurrent(cls: Any, num_states: int, **options: Any) -> list[Example]:
    """Return examples of a recurrent module. Some have several layers, run in both directions or get initial states, which may be views;
    one gets packed sequences."""

    def states(count: int, *sizes: int, batch: int = 3) -> Any:
        found = tuple(_x(count, batch, size) for size in (sizes * 2)[:num_states])
        return found if num_states > 1 else found[0]

    found = [
        _of(cls, 5, 4, given=(_x(6, 3, 5),), **options),
        _of(cls, 5, 4, 2, bidirectional=True, given=(_x(6, 3, 5), states(4, 4)), **options),
        _of(cls, 5, 4, 3, batch_first=True, given=(_x(3, 6, 5), states(3, 4)), **options),
        _of(cls, 5, 4, 2, bias=False, bidirectional=True, batch_first=True, given=(_x(3, 1, 5),), **options),
        _of(cls, 5, 1, given=(_x(4, 1, 5),), **options),
        lambda: (_Packed(cls(5, 4, 2, bidirectional=True, **options)), (_x(4, 3, 5),), {}),
        lambda: (ViewedStates(cls(5, 4, 2, bidirectional=True, **options)), (_x(6, 3, 5), states(4, 4, batch=6)), {}),
    ]
    if num_states > 1:
        found.append(_of(cls, 5, 4, 2, proj_size=2, given=(_x(6, 3, 5), states(2, 2, 4)), **options))
    return found


def _cells() -> list[Example]:
    x, h, c = _x(4, 5), _x(4, 3), _x(4, 3).detach() * 2
    return [
        *(_of(cls, 5, 3, given=given) for cls in (nn.RNNCell, nn.GRUCell) for given in ((x,), (x, h))),
        *(_of(nn.LSTMCell, 5, 3, given=given) for given in ((x,), (x, (h, c)))),
        _of(nn.RNNCell, 5, 3, nonlinearity="relu", given=(x, h)),
        *(_of(cls, 5, 3, bias=False, given=(x,)) for cls in (nn.RNNCell, nn.GRUCell, nn.LSTMCell)),
    ]


def _excluded_by_head() -> torch.Tensor:
    """Return a mask of shape (4, 5, 5): five queries and five keys for each combination of two sequences and two heads."""
    return torch.arange(100).view(4, 5, 5) % 3 == 1


def _attention() -> list[Example]:
    cls, query, memory = nn.MultiheadAttention, _x(2, 5, 8), _x(2, 7, 8)
    cross = (query, memory, memory)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    is_padding = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
    masks, paddings = (causal != 0, _excluded_by_head()), (None, is_padding[:, 2:])
    in_floats = [None if one is None else one.float() * -3 for one in (*masks, *paddings)]
    combined = [*itertools.product(masks, paddings, (False, True)), *itertools.product(in_floats[:2], in_floats[2:], (False, True))]
    masked = [{"attn_mask": mask, "key_padding_mask": padding, "need_weights": has_weights} for mask, padding, has_weights in combined]
    return [
        *(_of(SelfAttention, 8, 2, batch_first=True, given=(query,), call=call) for call in masked),
        _of(SelfAttention, 8, 2, batch_first=True, given=(query,)),
        _of(cls, 8, 2, batch_first=True, given=cross, call={"key_padding_mask": is_padding}),
        _of(cls, 8, 2, batch_first=True, given=cross, call={"key_padding_mask": is_padding.float() * -3, "need_weights": False}),
        _of(SelfAttention, 8, 4, batch_first=True, bias=False, given=(query,), call={"attn_mask": causal, "average_attn_weights": False}),
        _of(SelfAttention, 8, 4, batch_first=True, given=(query,), call={"attn_mask": causal, "is_causal": True, "need_weights": False}),
        _of(SelfAttention, 8, 2, given=(query,), call={"attn_mask": torch.zeros(10, 2, 2).index_fill_(0, torch.tensor([3]), -1.0)}),
        _of(cls, 8, 2, add_bias_kv=True, add_zero_attn=True, batch_first=True, given=cross),
        _of(cls, 8, 2, kdim=3, vdim=6, batch_first=True, given=(query, _x(2, 4, 3), _x(2, 4, 6))),
    ]


def _transformers() -> list[Example]:
    layer, x, memory = nn.TransformerEncoderLayer, _x(2, 5, 8), _x(2, 3, 8)
    options: dict[str, Any] = {"dropout": 0.0, "batch_first": True}
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    is_padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])

    def encoder(**kwargs: Any) -> Example:
        def make() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
            return nn.TransformerEncoder(layer(8, 2, 16, **options), 2, nn.LayerNorm(8), enable_nested_tensor=False), (x,), kwargs

        return make

    return [
        _of(layer, 8, 2, 16, norm_first=True, activation="gelu", **options, given=(x,)),
        _of(layer, 8, 2, 16, bias=False, **options, given=(x,), call={"src_mask": causal, "is_causal": True}),
        _of(layer, 8, 2, 16, **options, given=(x,), call={"src_mask": causal != 0, "src_key_padding_mask": is_padding}),
        _of(layer, 8, 2, 16, **options, given=(x,), call={"src_mask": _excluded_by_head()}),
        encoder(mask=causal, is_causal=True),
        encoder(src_key_padding_mask=is_padding),
        _of(nn.TransformerDecoderLayer, 8, 2, 16, norm_first=True, **options, given=(x, memory), call={"tgt_mask": causal}),
    ]


def _embeddings() -> list[Example]:
    cls, bag, floats = nn.Embedding, nn.EmbeddingBag, _x(2, 4)
    offsets, flat = torch.tensor([0, 3, 3, 7]), _indices(6, 9)
    return [
        _of(cls, 6, 4, padding_idx=1, given=(_indices(6, 3, 5),)),
        _of(cls, 6, 4, padding_idx=-1, given=(_indices(6, 4, 4),)),
        _of(cls, 6, 4, max_norm=0.5, given=(_indices(6, 3, 5),)),
        _of(cls, 6, 4, max_norm=1.0, norm_type=1.0, given=(_indices(6, 8),)),
        _of(cls, 6, 4, scale_grad_by_freq=True, given=(_indices(6, 3, 5),)),
        _of(cls, 6, 4, given=(_indices(6, 3, 5, dtype=torch.int32),)),
        _of(cls, 6, 1, given=(_indices(6, 0),)),
        *(_of(bag, 6, 4, mode=mode, given=(_indices(6, 2, 4),)) for mode in ("sum", "mean", "max")),
        *(_of(bag, 6, 4, mode=mode, given=(flat, offsets)) for mode in ("sum", "mean", "max")),
        _of(bag, 6, 4, mode="sum", include_last_offset=True, given=(flat, torch.tensor([0, 3, 3, 9]))),
        _of(bag, 6, 4, mode="sum", given=(_indices(6, 2, 4),), call={"per_sample_weights": floats}),
        *(_of(bag, 6, 4, mode=mode, padding_idx=2, given=(flat, offsets)) for mode in ("sum", "mean")),
    ]


def _normalisations() -> list[Example]:
    return [
        _of(nn.LayerNorm, (2, 4), given=(_x(9000, 2, 4),)),
        _of(nn.LayerNorm, 6, elementwise_affine=False, eps=0.5, given=(_x(3, 5, 6),)),
        _of(nn.LayerNorm, (3, 4), bias=False, given=(_x(2, 3, 4),)),
        _of(nn.RMSNorm, (3, 4), eps=0.5, given=(_x(2, 3, 4),)),
        _of(nn.GroupNorm, 2, 4, given=(_x(2000, 4, 3),)),
        _of(nn.BatchNorm1d, 3, momentum=None, given=(_x(5000, 3),)),
        _of(nn.BatchNorm1d, 3, eps=0.5, momentum=1.0, given=(_x(8, 3, 5),)),
        _of(nn.InstanceNorm1d, 3, affine=True, track_running_stats=True, momentum=0.5, given=(_x(4, 3, 5),)),
        _of(nn.InstanceNorm2d, 3, eps=0.5, given=(_x(4, 3, 5, 6),)),
        _of(nn.LocalResponseNorm, 3, alpha=0.5, beta=0.6, k=2.0, given=(_x(2, 5, 4, 3),)),
    ]


def _parametrized() -> list[Example]:
    def of(change: Callable[[nn.Module], nn.Module], layer: Callable[[], nn.Module], *shape: int) -> Example:
        return lambda: (change(layer()), (_x(*shape),), {})

    weight_norm, linear, conv = parametrizations.weight_norm, lambda: nn.Linear(4, 3), lambda: nn.Conv2d(3, 4, 2)
    return [
        *(of(lambda one, dim=dim: weight_norm(one, dim=dim), linear, 5, 4) for dim in (0, 1, None)),  # type: ignore[misc]
        *(of(lambda one, dim=dim: weight_norm(one, dim=dim), conv, 2, 3, 4, 4) for dim in (0, 1, 3)),  # type: ignore[misc]
        of(lambda one: parametrizations.spectral_norm(one, n_power_iterations=3), linear, 5, 4),
        of(lambda one: parametrizations.spectral_norm(one, dim=1), conv, 2, 3, 4, 4),
    ]


def _losses() -> list[Example]:
    logits, classes, soft = _x(6, 4), torch.tensor([0, 3, 1, 2, 3, -100]), torch.softmax(_x(4, 6).detach().t(), 1)
    weight, near = torch.tensor([0.5, 2.0, 1.0, 0.1]), (_x(5, 4), _x(5, 4).detach() + 0.1, _x(4, 5).detach().t())
    return [
        _of(nn.CrossEntropyLoss, weight=weight, label_smoothing=0.2, given=(logits, classes)),
        *(_of(nn.CrossEntropyLoss, reduction=kind, ignore_index=3, given=(logits, classes.clamp(0))) for kind in ("none", "sum")),
        _of(nn.CrossEntropyLoss, weight=weight, label_smoothing=0.2, given=(logits, soft)),
        _of(nn.CrossEntropyLoss, ignore_index=1, given=(_x(2, 4, 3, 5), _indices(4, 2, 3, 5))),
        _of(nn.NLLLoss, weight=weight, reduction="sum", given=(logits, classes)),
        _of(nn.BCEWithLogitsLoss, pos_weight=weight, weight=weight * 2, reduction="none", given=(logits, soft)),
        _of(nn.TripletMarginLoss, p=1.0, swap=True, margin=0.5, given=near),
        _of(nn.TripletMarginWithDistanceLoss, swap=True, reduction="none", given=near),
        _of(nn.CosineSimilarity, dim=0, eps=0.1, given=near[:2]),
        *(_of(nn.PairwiseDistance, p=p, keepdim=True, given=near[:2]) for p in (1.0, 3.0)),
        _of(nn.AdaptiveLogSoftmaxWithLoss, 8, 12, [3, 7], head_bias=True, given=(_x(9, 8), _indices(12, 9))),
    ]


def _shapes() -> list[Example]:
    image, volume = _x(2, 4, 6, 5), _x(1, 2, 4, 3, 5)
    return [
        _of(nn.Upsample, scale_factor=(1.5, 2.0), mode="bilinear", given=(image,)),
        _of(nn.Upsample, size=(3, 11), mode="bicubic", align_corners=True, given=(image,)),
        _of(nn.Upsample, scale_factor=1.7, mode="trilinear", recompute_scale_factor=True, given=(volume,)),
        _of(nn.Upsample, size=7, mode="nearest", given=(_x(2, 3, 4),)),
        _of(nn.PixelShuffle, 2, given=(image,)),
        _of(nn.PixelUnshuffle, 3, given=(_x(2, 2, 6, 9),)),
        _of(nn.Unfold, (2, 3), dilation=2, padding=1, stride=(1, 2), given=(image,)),
        _of(nn.Fold, (6, 5), (2, 3), padding=1, stride=2, given=(_x(2, 12, 12),)),
        _of(nn.MaxPool2d, 3, stride=2, padding=1, dilation=2, ceil_mode=True, return_indices=True, given=(_x(2, 3, 9, 8),)),
        _of(nn.AvgPool2d, 3, stride=2, padding=1, ceil_mode=True, count_include_pad=False, given=(image,)),
        _of(nn.AvgPool3d, 2, divisor_override=3, given=(volume,)),
        _of(nn.AdaptiveMaxPool2d, (4, None), return_indices=True, given=(image,)),
        _of(nn.Bilinear, 4, 3, 5, bias=False, given=(_x(2, 6, 4), _x(2, 6, 3))),
        _of(nn.Hardsigmoid, given=(image,)),
        _of(nn.RReLU, given=(image,)),
    ]


EXAMPLES: Mapping[str, list[Example]] = {
    **{f"Conv{ndim}d": _convolutions(getattr(nn, f"Conv{ndim}d"), ndim) for ndim in (1, 2, 3)},
    **{f"ConvTranspose{ndim}d": _transposed(getattr(nn, f"ConvTranspose{ndim}d"), ndim) for ndim in (1, 2, 3)},
    "RNN": [*_recurrent(nn.RNN, 1), *_recurrent(nn.RNN, 1, nonlinearity="relu")[:3]],
    "GRU": _recurrent(nn.GRU, 1),
    "LSTM": _recurrent(nn.LSTM, 2),
    "cells": _cells(),
    "attention": _attention(),
    "transformers": _transformers(),
    "embeddings": _embeddings(),
    "normalisations": _normalisations(),
    "parametrizations": _parametrized(),
    "losses": _losses(),
    "shapes": _shapes(),
}
"""Examples by the name of the module or of the kind of module."""


def check_example(subject: Subject, example: Example, dtype: str, name: str) -> None:
    """Compare the results of a module on the device with those on the CPU, in training mode and in evaluation mode.

    Args:
        subject: The plugin under test, with its device.
        example: The example. It is skipped if the device lacks a dtype that the example needs, or if the CPU does not support the module in
            ``dtype``.
        dtype: The dtype of the parameters and of the arguments.
        name: The name of the example, for messages and as the seed of the output gradients.
    """
    wanted = getattr(torch, dtype)

    def convert(one: torch.Tensor) -> torch.Tensor:
        return one.detach().to(wanted).requires_grad_(one.requires_grad) if one.is_floating_point() else one

    def make() -> nn.Module:
        return example()[0].to(wanted)

    module, *given = example()
    args, kwargs = tree_map_only(torch.Tensor, convert, given)
    try:
        lacking = lacking_dtypes(
            subject, lambda: (list(module.state_dict().values()), args, kwargs, run_module(make(), (args, kwargs), ""))
        )
        if dtype != "float32":
            run_module(make(), (args, kwargs), "")
    except (RuntimeError, NotImplementedError):
        if dtype == "float32":
            raise
        return
    if lacking:
        return
    for training in (True, False):
        mode = "training" if training else "evaluation"
        with subject.sample(f"{name}, {module}, {mode}", {"name": name, "training": training}):
            compare_module(subject, make, (args, kwargs), training=training, seed=name)
