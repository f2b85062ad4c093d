"""Attention over sequences that are divided among processes: each call to attention first gathers the keys and values of all parts.

This is the all-gather form of context parallelism ("The Llama 3 Herd of Models", section 3.3.2, https://arxiv.org/abs/2407.21783), with
contiguous parts. It works on every device, because it uses only collectives and ``scaled_dot_product_attention`` itself.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
import torch.autograd.function
import torch.utils.checkpoint
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode

from accelkit import UnsupportedError, UsageError
from accelkit_builtin.strategies.context_parallel import ContextGroup

_HINT = "call torch.nn.functional.scaled_dot_product_attention, or use context=1"
_RECOMPUTING = frozenset({torch.utils.checkpoint.__file__, torch.autograd.function.__file__})
"""The files of ``torch.utils.checkpoint`` and ``torch.autograd.Function``. The backward pass may rerun functions that these files call."""


class _State(threading.local):
    is_active = False


_state = _State()


def divide_attention(module: torch.nn.Module, context: ContextGroup, plugin: str) -> None:
    """Make attention inside a module use the keys and values of all parts of each sequence. The module is changed in place.

    The ``forward`` of the module and of every module inside it enters the mode ``DividedAttention``, unless the mode is already active.
    Inner modules must enter it too: if the model checkpoints activations of an inner module, the backward pass reruns only the ``forward``
    of the inner module, not that of the model.

    Args:
        module: The model.
        context: The processes among which the sequences are divided.
        plugin: The strategy's ``dist==version``, for error messages.
    """
    attention = DividedAttention(context, plugin)
    for inner in module.modules():
        inner.forward = _forward(inner, attention, is_root=inner is module)


def _forward(module: torch.nn.Module, attention: DividedAttention, *, is_root: bool) -> Callable[..., Any]:
    original = module.forward

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return _run(attention, is_root, original, args, kwargs)

    return forward


def _run(attention: DividedAttention, is_root: bool, original: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if _state.is_active:
        return original(*args, **kwargs)
    _state.is_active = True
    attention.begin()
    try:
        with attention:
            result = original(*args, **kwargs)
    finally:
        _state.is_active = False
        attention.end()
    if is_root:
        attention.check_was_called()
    return result


class DividedAttention(TorchFunctionMode):
    """Mode in which this process's queries attend to the keys and values of all processes of the context group.

    Args:
        context: The processes among which the sequences are divided.
        plugin: The strategy's ``dist==version``, for error messages.
    """

    def __init__(self, context: ContextGroup, plugin: str) -> None:
        super().__init__()
        self._context, self._plugin = context, plugin
        self._was_called = self._was_checked = False
        self._mask: torch.Tensor | None = None  # the causal mask of the last call, which the layers of a forward pass share

    def begin(self) -> None:
        """Begin a forward pass.

        If gradients are disabled, as in evaluation, the next call to causal attention repeats the check that not all processes have the
        same keys (see ``_check_is_divided``). The check is repeated because the inputs may come from a different loader than in training.
        """
        self._was_checked &= torch.is_grad_enabled()

    def end(self) -> None:
        """Release the memory of the mask."""
        self._mask = None

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name: str = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            return self._attention(func, *args, **kwargs or {})
        if name == "multi_head_attention_forward":
            return self._multi_head_attention(func, *args, **kwargs or {})
        if name == "flex_attention" or (not torch.compiler.is_compiling() and ("attention" in name or "attn" in name)):
            raise self._refusal(f"attention by {name}", "only scaled_dot_product_attention and MultiheadAttention are divided")
        return func(*args, **kwargs or {})

    def check_was_called(self) -> None:
        """Check that the model's forward pass has called one of the attention functions that this class supports.

        Raises:
            UnsupportedError: If the forward pass has called neither ``scaled_dot_product_attention`` nor ``MultiheadAttention``. Any other
                implementation of attention would see only one part of the sequence.
        """
        if not self._was_called:
            raise self._refusal(
                "a model that does not call attention",
                "its forward pass called neither scaled_dot_product_attention nor MultiheadAttention, and whatever else combines "
                "the positions of a sequence, such as matmul and softmax, would see only this process's part of it",
            )

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _attention(  # noqa: PLR0917 # those of scaled_dot_product_attention
        self,
        func: Callable[..., torch.Tensor],
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> torch.Tensor:
        """Compute ``scaled_dot_product_attention`` (``func``) for this process's queries, over the keys and values of all processes."""
        if is_causal and attn_mask is not None:
            return func(query, key, value, attn_mask, dropout_p, is_causal, **options)  # torch raises its own error
        self._check((query, key, value))
        if key.shape == value.shape and key.dtype == value.dtype:  # one collective instead of two
            keys, values = self._context.gather(torch.stack((key, value)), -2)
        else:
            keys, values = self._context.gather(key, -2), self._context.gather(value, -2)
        mask = self._rows(query, key, keys, attn_mask, -2, is_causal=is_causal)
        return func(query, keys, values, mask, dropout_p, **options)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _multi_head_attention(
        self,
        func: Callable[..., Any],
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *args: Any,
        attn_mask: torch.Tensor | None = None,
        key_padding_mask: torch.Tensor | None = None,
        is_causal: bool = False,
        static_k: torch.Tensor | None = None,
        static_v: torch.Tensor | None = None,
        **options: Any,
    ) -> Any:
        """Compute ``multi_head_attention_forward`` (``func``) for this process's queries, over all processes' keys and values.

        If ``is_causal`` is True, torch requires ``attn_mask`` to be the causal mask, so ``attn_mask`` is ignored. Instead, this method
        computes a causal mask with a row for each query of this process and a column for each key of the whole sequence.
        """
        self._check((query, key, value))
        if static_k is not None or static_v is not None:
            raise self._refusal("static_k and static_v", "whether they belong to the whole sequence or to a part is not known")
        keys = self._context.gather(key, 0)
        values = keys if value is key else self._context.gather(value, 0)
        if key_padding_mask is not None and key_padding_mask.shape[-1] == len(key):
            key_padding_mask = self._context.gather(key_padding_mask, -1)
        mask = self._rows(query, key, keys, attn_mask, 0, is_causal=is_causal)
        return func(query, keys, values, *args, attn_mask=mask, key_padding_mask=key_padding_mask, **options)

    def _check(self, operands: Sequence[torch.Tensor]) -> None:
        """Check that attention can be divided in this call. The operands must be plain tensors.

        The call must not be in a checkpointed function or a ``torch.autograd.Function``. The backward pass may run such a function again,
        without the module's ``forward`` around it, and attention would then see only one part of the sequence.

        Raises:
            UnsupportedError: If an operand is a nested tensor or a DTensor, or if the call is in such a function.
        """
        if any(operand.is_nested or isinstance(operand, DTensor) for operand in operands):
            raise self._refusal(
                f"attention of a {'nested tensor' if operands[0].is_nested else type(operands[0]).__name__}",
                "keys and values are gathered as plain tensors with the same length on all processes",
                hint="pass plain tensors; in a plan, use use_local_output=True",
            )
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not (frame.f_code.co_filename == __file__ and _run.__name__ in frame.f_code.co_name):
            if frame.f_code.co_filename in _RECOMPUTING:
                raise self._refusal(
                    "attention in a function that is checkpointed, or in an autograd.Function",
                    "the backward pass runs the function again without the module around it, and attention would then see one part",
                    hint="checkpoint a module, as in checkpoint(layer, x), whose forward calls attention",
                )
            frame = frame.f_back

    def _rows(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        keys: torch.Tensor,
        mask: torch.Tensor | None,
        dim: int,
        *,
        is_causal: bool,
    ) -> torch.Tensor | None:
        """Return the mask for this process's queries and all keys, or None if attention is not causal and ``mask`` is None.

        Args:
            query: The queries of this process.
            key: The keys of this process.
            keys: The keys of all processes.
            mask: The mask that the model passed.
            dim: The dimension of the sequence in queries and keys.
            is_causal: Whether attention is causal. If it is, ``mask`` is ignored.
        """
        length, total = query.shape[dim], keys.shape[dim]
        if is_causal:
            if length != key.shape[dim]:
                raise self._refusal(
                    f"causal attention of {length} queries to {key.shape[dim]} keys on each process",
                    "which queries and keys have the same position is not known",
                    hint="pass attn_mask with a column for each key of the whole sequence, or use context=1",
                )
            self._check_is_divided(keys, dim)
            mask = self._causal_mask(query, length, total)
        elif mask is not None:
            rows = mask.shape[-2] if mask.dim() > 1 else 1
            if mask.shape[-1] not in (1, total) or rows not in (1, length, length * self._context.size):
                raise UsageError(
                    f"attention cannot use a mask of shape {tuple(mask.shape)}",
                    why=f"this process has {length} queries of a sequence of {length * self._context.size}, and they attend to "
                    f"the {total} keys of all processes, so the mask needs {total} columns",
                    hint="pass the mask of the whole sequence, or only this process's rows of it; for causal attention, pass "
                    "is_causal=True and no mask",
                )
            mask = mask.narrow(-2, self._context.index * length, length) if rows not in (1, length) else mask
        self._was_called = True
        return mask

    def _check_is_divided(self, keys: torch.Tensor, dim: int) -> None:
        """Check that not all processes have the same keys.

        Only these calls to causal attention are checked: the first call, and the first call in each forward pass that runs with gradients
        disabled.

        Raises:
            UsageError: If all processes have the same keys. The positions that a causal mask assumes would then be wrong.
        """
        if self._was_checked or not keys.numel():
            return
        self._was_checked = True
        first, *others = keys.detach().chunk(self._context.size, dim)
        if all(torch.equal(first, other) for other in others):
            raise UsageError(
                f"all {self._context.size} processes of the dimension context have the same keys in causal attention",
                why="each of them must have a different part of the sequence, but they were given the same part, or the same positions",
                hint="divide the inputs with accelkit_builtin.strategies.context_parallel.shard_sequence(batch, rt.mesh, dim=1), and "
                "give the model the positions of the part: shard_sequence(torch.arange(length), rt.mesh, dim=0)",
            )

    def _causal_mask(self, query: torch.Tensor, length: int, total: int) -> torch.Tensor:
        """Return a mask that is added to the scores: 0 for each key up to the position of the query, and -inf for later keys."""
        wanted = (length, total), query.dtype, query.device, torch.is_inference_mode_enabled()
        mask = self._mask
        if mask is None or (mask.shape, mask.dtype, mask.device, mask.is_inference()) != wanted:
            rows = torch.arange(length, device=query.device) + self._context.index * length
            is_later = torch.arange(total, device=query.device) > rows.unsqueeze(1)
            mask = self._mask = torch.zeros(length, total, dtype=query.dtype, device=query.device).masked_fill(is_later, -torch.inf)
        return mask

    def _refusal(self, what: str, why: str, hint: str = _HINT) -> UnsupportedError:
        return UnsupportedError(f"context={self._context.size} does not support {what}", plugin=self._plugin, why=why, hint=hint)
