"""The runtime: the object that a training script talks to. This is the only package of the core that imports torch at module level."""

from accelkit.discovery.autoload import import_torch

import_torch()  # first, so that a vendor's package that breaks torch is named

from accelkit.runtime.runtime import Runtime  # noqa: E402

__all__ = ["Runtime"]
