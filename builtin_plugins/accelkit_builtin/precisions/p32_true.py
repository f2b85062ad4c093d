"""``32-true``: everything as torch has it by default. Prepared modules come back as they were, and nothing is added to a step."""

from __future__ import annotations

from accelkit import Precision


class Float32(Precision):
    """float32 throughout."""

    required_capabilities = ("dtype.float32",)
