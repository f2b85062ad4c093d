"""``bitsandbytes-4bit``: the weights of ``Linear`` layers are stored in 4 bits and frozen; everything else is as in ``bf16-true``."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, MutableMapping
from typing import TYPE_CHECKING, Any, Literal

from accelkit import UsageError
from accelkit_builtin.precisions.quantized import ComputeDtype, QuantizedPrecision

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass(frozen=True, slots=True)
class FourBitOptions:
    """Options for 4-bit quantisation.

    Args:
        quant_type: The 4-bit format: ``nf4``, whose 16 values suit normally distributed weights, or ``fp4``, a 4-bit float.
        is_nested: Whether the scale of each block of weights is quantised too. This saves 0.4 bits per weight.
        compute_dtype: The dtype of computation, and of the parameters that are not quantised.
        ignore: Names of layers that stay trainable and are not quantised. The name of a module selects all layers inside the module. One or
            more consecutive components of a dotted name are enough: ``lora_A`` also selects ``blocks.0.lora_A``.
    """

    quant_type: Literal["nf4", "fp4"] = "nf4"
    is_nested: bool = False
    compute_dtype: ComputeDtype = "bfloat16"
    ignore: Collection[str] = ()


class Bitsandbytes4Bit(QuantizedPrecision):
    """Frozen 4-bit weights of ``Linear`` layers, quantised by bitsandbytes.

    Args:
        options: How weights are quantised. None means ``FourBitOptions()``.

    Raises:
        UsageError: If an option has an invalid value.
    """

    required_capabilities = ("dtype.uint8", "dtype.bfloat16")

    def __init__(self, options: FourBitOptions | None = None) -> None:
        self.options = options or FourBitOptions()
        super().__init__(self.options.compute_dtype, self.options.ignore)
        if self.options.quant_type not in ("nf4", "fp4"):
            raise UsageError(
                f"FourBitOptions(quant_type={self.options.quant_type!r}) is invalid",
                why="it must be 'nf4' or 'fp4'",
                hint="omit it to use nf4",
            )

    def _classes(self) -> tuple[type, ...]:
        return (self._package().nn.Linear4bit,)

    def _quantized(self, layer: torch.nn.Linear, weight: torch.Tensor) -> tuple[torch.nn.Linear, Any]:
        bnb, kind, is_nested = self._package(), self.options.quant_type, self.options.is_nested
        from accelkit_builtin.precisions.bitsandbytes_weight import Weight4Bit

        made = bnb.nn.Linear4bit(
            layer.in_features,
            layer.out_features,
            bias=False,
            compute_dtype=self.dtype,
            compress_statistics=is_nested,
            quant_type=kind,
            device="meta",
        )
        made.support_avx512bf16_for_cpu = False  # repacking the weight for evaluation fails unless both its dimensions are multiples of 32
        packed, state = bnb.functional.quantize_4bit(weight.to(self.dtype), quant_type=kind, compress_statistics=is_nested)
        made.quant_state = state
        quantized = Weight4Bit(packed, quant_state=state, compress_statistics=is_nested, quant_type=kind, module=layer, bnb_quantized=True)
        return made, quantized

    def _load(self, layer: Any, state: MutableMapping[str, Any], prefix: str) -> None:
        key = f"{prefix}weight"
        found = {name.removeprefix(f"{key}."): state.pop(name) for name in list(state) if name.startswith(f"{key}.")}
        if found:
            bnb = self._package()
            layer.weight.quant_state = layer.quant_state = bnb.functional.QuantState.from_dict(found, device=layer.weight.device)
        elif key in state and state[key].is_floating_point():
            _, quantized = self._quantized(layer, state[key].to(layer.weight.device))
            state[key] = quantized.data
            layer.weight.quant_state = layer.quant_state = quantized.quant_state
