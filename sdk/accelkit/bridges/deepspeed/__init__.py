"""accelkit's plugins in DeepSpeed. Install with ``pip install 'accelkit[deepspeed]'``.

``Runtime(strategy="deepspeed")`` uses this bridge for devices that DeepSpeed does not know. In a script that calls
``deepspeed.initialize`` itself::

    from accelkit.bridges.deepspeed import install

    install("fake_xpu")  # on every process, before the first `import deepspeed`
    import deepspeed
"""

from accelkit.bridges.deepspeed.environment import device_index_variables, variables_restored
from accelkit.bridges.deepspeed.installation import (
    check_accelerator,
    install,
    set_accelerator,
    set_accelerator_on_import,
    unset_accelerator_on_import,
    without_compiling,
)

__all__ = [
    "check_accelerator",
    "device_index_variables",
    "install",
    "set_accelerator",
    "set_accelerator_on_import",
    "unset_accelerator_on_import",
    "variables_restored",
    "without_compiling",
]
