"""``bf16-mixed``: parameters in float32, the forward pass under the device's own autocast in bfloat16."""

from __future__ import annotations

from accelkit_builtin.precisions.autocast import AutocastPrecision


class BFloat16Mixed(AutocastPrecision):
    """bfloat16 autocast with float32 parameters."""

    required_capabilities = ("autocast.bfloat16",)
    dtype_name = "bfloat16"
