"""Plugins inside Hugging Face Accelerate: ``pip install 'accelkit[accelerate]'``.

A script that makes its own ``Accelerator``, and whatever makes one for itself, as ``transformers.Trainer`` does::

    from accelkit.bridges.accelerate import install

    install("fake_xpu")

A script that asks for one::

    from accelkit.bridges.accelerate import accelerator

    accelerator = accelerator("fake_xpu", mixed_precision="fp16")
"""

from accelkit.bridges.accelerate.compat import import_accelerate

import_accelerate()  # first, so that a version that is unknown is an error before anything is replaced

from accelkit.bridges.accelerate.accelerator_class import accelerator  # noqa: E402
from accelkit.bridges.accelerate.installation import install, uninstall  # noqa: E402

__all__ = ["accelerator", "install", "uninstall"]
