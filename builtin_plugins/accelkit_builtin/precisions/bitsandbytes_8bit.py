"""``bitsandbytes-8bit``: the weights of ``Linear`` layers are int8 and frozen (LLM.int8); everything else is as in ``bf16-true``."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, MutableMapping
from typing import TYPE_CHECKING, Any

from accelkit_builtin.precisions.quantized import ComputeDtype, QuantizedPrecision

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass(frozen=True, slots=True)
class EightBitOptions:
    """Options for 8-bit quantisation (LLM.int8).

    Args:
        threshold: If the absolute value of any element of an input feature is at least ``threshold``, the feature is multiplied in
            ``compute_dtype`` instead of int8. If ``threshold`` is 0, all features are multiplied in int8.
        compute_dtype: The dtype of everything that is not quantised.
        ignore: Names of layers that stay trainable and are not quantised. The name of a module selects all layers inside the module. One or
            more consecutive components of a dotted name are enough: ``lora_A`` also selects ``blocks.0.lora_A``.
    """

    threshold: float = 6.0
    compute_dtype: ComputeDtype = "bfloat16"
    ignore: Collection[str] = ()


class Bitsandbytes8Bit(QuantizedPrecision):
    """Frozen int8 weights of ``Linear`` layers, quantised by bitsandbytes.

    Args:
        options: The options of the quantisation. None means ``EightBitOptions()``.

    Raises:
        UsageError: If ``options.compute_dtype`` is invalid.
    """

    required_capabilities = ("dtype.int8", "dtype.float16", "dtype.bfloat16")

    def __init__(self, options: EightBitOptions | None = None) -> None:
        self.options = options or EightBitOptions()
        super().__init__(self.options.compute_dtype, self.options.ignore)

    def _classes(self) -> tuple[type, ...]:
        return (self._package().nn.Linear8bitLt,)

    def _quantized(self, layer: torch.nn.Linear, weight: torch.Tensor) -> tuple[torch.nn.Linear, Any]:
        import torch

        bnb = self._package()
        made = bnb.nn.Linear8bitLt(
            layer.in_features,
            layer.out_features,
            bias=False,
            has_fp16_weights=False,
            threshold=self.options.threshold,
            device="meta",
        )
        values, scales, _ = bnb.functional.int8_vectorwise_quant(weight.to(torch.float16))
        return made, bnb.nn.Int8Params(values, requires_grad=False, has_fp16_weights=False, CB=values, SCB=scales)

    def _load(self, layer: Any, state: MutableMapping[str, Any], prefix: str) -> None:
        key = f"{prefix}weight"
        state.pop(f"{prefix}weight_format", None)  # there is only one format
        scales = state.pop(f"{prefix}SCB", None)
        if scales is None and key in state and state[key].is_floating_point():
            _, quantized = self._quantized(layer, state[key].to(layer.weight.device))
            state[key], scales = quantized.data, quantized.SCB
        if scales is not None:
            own = layer.state.SCB if layer.weight.SCB is None else layer.weight.SCB  # the first forward pass moves the scales to the state
            own.copy_(scales)
