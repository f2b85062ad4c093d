"""``32-true``: float32, which is torch's default. This precision converts no modules, inputs or outputs, and adds no work to a step."""

from __future__ import annotations

from accelkit import Precision


class Float32(Precision):
    """float32 parameters and computation."""

    required_capabilities = ("dtype.float32",)
