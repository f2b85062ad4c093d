"""Faults in attention and in recurrent modules that show only with some combinations of options or sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken
from accelkit_conformance.mutants.derivatives import _Functions


def change_attention(change: Callable[..., Any]) -> None:
    """Replace ``scaled_dot_product_attention`` on the device.

    ``change`` takes the original function, the query, the key, the value, the mask and the other keyword arguments.
    """
    from torch.nn import functional

    original = functional.scaled_dot_product_attention

    def attention(query: Any, key: Any, value: Any, attn_mask: Any = None, *args: Any, **kwargs: Any) -> Any:
        if query.device.type != "fake_xpu" or args:
            return original(query, key, value, attn_mask, *args, **kwargs)
        return change(original, query, key, value, attn_mask, **kwargs)

    functional.scaled_dot_product_attention = attention  # type: ignore[assignment]


@mutant("arguments", "attention")
class MasksGroupsOfHeads(Broken):
    """If keys and values have fewer heads than queries, attention uses the mask of the first head for all heads."""

    def install(self) -> None:
        def change(original: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
            is_hit = mask is not None and mask.dim() == 4 and key.shape[1] != query.shape[1]
            return original(query, key, value, mask[:, :1] if is_hit else mask, **kwargs)

        change_attention(change)


@mutant("arguments", "attention")
class OverflowsInTheFirstBlock(Broken):
    """Attention multiplies scores by log2(e). A mask with the lowest number of the dtype then overflows, and the result for a query is NaN
    if the mask excludes its first 64 keys."""

    def install(self) -> None:
        import torch

        def change(original: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
            result = original(query, key, value, mask, **kwargs)
            if mask is None or mask.dtype is torch.bool or mask.shape[-1] < 64:
                return result
            is_closed = (mask.detach()[..., :64] == torch.finfo(mask.dtype).min).all(-1, keepdim=True)
            return result.masked_fill(is_closed, float("nan"))

        change_attention(change)


@mutant("arguments", "attention")
class ReadsExpandedKeys(Broken):
    """Attention with an expanded key of more than 32 rows reads the key as if its storage had a row for each head."""

    def install(self) -> None:
        def change(original: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
            is_hit = key.dim() == 4 and key.shape[2] > 32 and key.stride(1) == 0 and key.shape[1] > 1
            return original(query, key.roll(1, 2) if is_hit else key, value, mask, **kwargs)

        change_attention(change)


@mutant("modules", "large recurrent batches")
class CountsRowsOfLSTMIn16Bits(_Functions):
    """An LSTM returns zeros for all rows after the first 65,536, counted over all steps."""

    def change(self, name: str, call: Any, args: Any) -> Any:
        result = call()
        if name == "lstm" and result[0].dim() == 3 and result[0].shape[:2].numel() > 1 << 16:
            result[0].detach().flatten(0, 1)[1 << 16 :].zero_()
        return result


@mutant("modules", "large recurrent batches")
class PacksTheFirst256(_Functions):
    """For a packed batch, a GRU returns zeros for the first step of every sequence after the first 256 sequences."""

    def change(self, name: str, call: Any, args: Any) -> Any:
        result = call()
        if name == "gru" and result[0].dim() == 2 and int(args[1][0]) > 256:
            result[0].detach()[256 : int(args[1][0])].zero_()
        return result


@mutant("modules", "gradients of slices")
class ExpectsDenseGradients(_Functions):
    """The backward pass of an RNN uses half of an output gradient whose last element is 0."""

    def change(self, name: str, call: Any, args: Any) -> Any:
        result = call()
        if name == "rnn_tanh" and result[0].requires_grad:
            result[0].register_hook(lambda gradient: gradient / 2 if float(gradient.flatten()[-1]) == 0 else gradient)
        return result


@mutant("memory", "leaks of modules")
class KeepsStatesOfLSTM(_Functions):
    """Each call to an LSTM keeps a copy of its cell state."""

    def change(self, name: str, call: Any, args: Any) -> Any:
        result = call()
        if name == "lstm":
            self.__dict__.setdefault("kept", []).append(result[2].detach().clone())
        return result


@mutant("modules", "masks of attention", check="arguments")
class IgnoresMasksOfHeads(Broken):
    """The fast path of multi-head attention uses the mask of the first head for all heads."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name != "_native_multi_head_attention" or args[9] is None or args[9].dim() != 4:
            return call()
        return func(*args[:9], args[9][:, :1].expand_as(args[9]).contiguous(), *args[10:], **kwargs)


@mutant("modules", "states that are views", check="arguments")
class ReadsContiguousStates(Broken):
    """``GRU`` reads initial states as if they were contiguous."""

    def install(self) -> None:
        import torch

        original = torch._VF.gru  # type: ignore[attr-defined]

        def gru(x: Any, hx: Any, *args: Any) -> Any:
            if x.device.type == "fake_xpu" and isinstance(hx, torch.Tensor) and not hx.is_contiguous():
                hx = hx.as_strided(hx.shape, torch.empty(hx.shape).stride(), hx.storage_offset())
            return original(x, hx, *args)

        torch._VF.gru = gru  # type: ignore[attr-defined]
