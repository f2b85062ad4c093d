"""accelkit's plugins in Hugging Face Accelerate. Install with ``pip install 'accelkit[accelerate]'``.

In a script that creates its own ``Accelerator``, or uses a class that creates one, such as ``transformers.Trainer``::

    from accelkit.bridges.accelerate import install

    install("fake_xpu")

In a script that lets accelkit create the ``Accelerator``::

    from accelkit.bridges.accelerate import accelerator

    accelerator = accelerator("fake_xpu", mixed_precision="fp16")
"""

from accelkit.bridges.accelerate.compat import import_accelerate

import_accelerate()  # called first, so that an unknown version raises an error before anything is replaced

from accelkit.bridges.accelerate.accelerator_class import accelerator  # noqa: E402
from accelkit.bridges.accelerate.installation import install, uninstall  # noqa: E402

__all__ = ["accelerator", "install", "uninstall"]
