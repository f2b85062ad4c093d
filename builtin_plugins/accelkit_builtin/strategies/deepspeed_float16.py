"""``16-mixed`` under DeepSpeed, whose engine scales the loss, detects infinite gradients and skips steps itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from accelkit import UnsupportedError
from accelkit_builtin.precisions.autocast import AutocastPrecision
from accelkit_builtin.precisions.p16_mixed import Float16Mixed


class EngineScaledFloat16(AutocastPrecision):
    """float16 autocast with float16 parameters. The engine's optimizer keeps a float32 copy of the parameters.

    Args:
        requested: The precision that the user requested.
        engine: A function that returns the DeepSpeed engine.
    """

    required_capabilities = Float16Mixed.required_capabilities
    dtype_name = "float16"

    def __init__(self, requested: Float16Mixed, engine: Callable[[], Any]) -> None:
        super().__init__(requested.autocast)
        self.name, self.plugin = requested.name, requested.plugin
        self.scaler_options = requested.scaler_options
        self._engine = engine

    @property
    def scale(self) -> float:
        """The factor by which the engine multiplies the next loss."""
        return float(self._engine().optimizer.loss_scale)

    def configuration(self) -> dict[str, Any]:
        """Return the scaler options under DeepSpeed's names, as the section ``fp16`` of DeepSpeed's configuration.

        Raises:
            UnsupportedError: If DeepSpeed's scaler does not support one of the options.
        """
        options = self.scaler_options
        power = math.log2(options.init_scale)
        reasons = [] if power.is_integer() and power >= 0 else [f"init_scale={options.init_scale!r} is not a power of 2"]
        reasons += [] if (options.growth_factor, options.backoff_factor) == (2.0, 0.5) else ["it can only double and halve the scale"]
        if reasons:
            raise UnsupportedError(
                "DeepSpeed does not support these GradScalerOptions",
                plugin=self.plugin,
                why="; ".join(reasons),
                hint="use GradScalerOptions(init_scale=65536.0, growth_interval=2000), or strategy='fsdp'",
            )
        return {
            "enabled": True,
            "loss_scale": 0,  # dynamic
            "initial_scale_power": int(power),
            "loss_scale_window": options.growth_interval,
            "hysteresis": 1,  # halve the scale at the first infinite gradient, as torch does
        }

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for a copy of this precision. The copy has no engine.

        Copying a module that was prepared with this precision also copies the precision.
        """
        return dict(vars(self)) | {"_engine": None}
