"""Import of torch's own tests without SciPy and Inductor, which take two thirds of the import time and which accelkit does not need."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

_INDUCTOR = "torch._inductor.utils"


class _InductorUtils(types.ModuleType):
    """Placeholder for the module ``torch._inductor.utils``.

    It defines ``GPU_TYPES``, the only name that ``common_device_type`` imports from the module. Access to any other name loads the module.
    """

    GPU_TYPES = ("cuda", "mps", "xpu", "mtia")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(_INDUCTOR) is self:
            del sys.modules[_INDUCTOR]
        return getattr(importlib.import_module(_INDUCTOR), name)


@contextlib.contextmanager
def lean_import() -> Iterator[None]:
    """Context manager inside which modules of ``torch.testing._internal`` are imported without SciPy and Inductor.

    It has no effect on modules that are already imported. torch's tests use SciPy only for reference results. The operators and their
    samples are the same without SciPy.
    """
    hidden: dict[str, Any] = {"scipy": None, _INDUCTOR: _InductorUtils(_INDUCTOR)}
    hidden = {name: module for name, module in hidden.items() if name not in sys.modules}
    sys.modules.update(hidden)
    try:
        yield
    finally:
        for name, module in hidden.items():
            if sys.modules.get(name, module) is module:
                sys.modules.pop(name, None)
