"""``transformer-engine-float16``: float8 as in ``transformer-engine``; everything else is as in ``16-true``."""

from __future__ import annotations

from accelkit_builtin.precisions.p16_true import Float16
from accelkit_builtin.precisions.transformer_engine import TransformerEngine


class TransformerEngineFloat16(TransformerEngine, Float16):
    """float8 matrix products computed by Transformer Engine, with float16 parameters.

    Args:
        options: Options for Transformer Engine.
    """

    required_capabilities = ("transformer_engine", "dtype.float16")
    dtype_name = "float16"
