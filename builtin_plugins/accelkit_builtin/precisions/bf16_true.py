"""``bf16-true``: parameters, inputs and arithmetic in bfloat16; half of float32's memory, with its range."""

from __future__ import annotations

from accelkit_builtin.precisions.true_precision import NarrowPrecision


class BFloat16(NarrowPrecision):
    """bfloat16 throughout."""

    required_capabilities = ("dtype.bfloat16",)
    dtype_name = "bfloat16"
