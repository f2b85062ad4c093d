"""The runtime: the object that a training script uses. Importing this package imports torch."""

from accelkit.discovery.autoload import import_torch

import_torch()  # first, so that the error names the vendor package if one breaks torch

from accelkit.runtime.runtime import Runtime  # noqa: E402

__all__ = ["Runtime"]
