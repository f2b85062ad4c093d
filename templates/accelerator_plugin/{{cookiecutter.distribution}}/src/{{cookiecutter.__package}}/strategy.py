"""The strategy ``{{ cookiecutter.accelerator }}_parallel``, which distributes training over devices.

The comments show the defaults of optional methods and attributes. They can be deleted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from accelkit import Strategy

if TYPE_CHECKING:
    import torch


class {{ cookiecutter.__class }}Strategy(Strategy):
    """Data parallelism with torch's DistributedDataParallel, until {{ cookiecutter.vendor }} has its own wrapper."""

    is_distributed = True  # one process per device, in one process group

    def wrap_module(self, module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
        """Return the module that the training loop calls. A module without trainable parameters is not wrapped."""
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(module) if any(one.requires_grad for one in module.parameters()) else module

    def unwrap_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return the module that was passed to ``wrap_module``."""
        from torch.nn.parallel import DistributedDataParallel

        unwrapped: torch.nn.Module = module.module if isinstance(module, DistributedDataParallel) else module
        return unwrapped

    def no_sync(self, module: torch.nn.Module) -> AbstractContextManager[Any]:
        """Return a context manager inside which gradients are not reduced. The next backward pass outside the context does that."""
        from torch.nn.parallel import DistributedDataParallel

        return module.no_sync() if isinstance(module, DistributedDataParallel) else contextlib.nullcontext()

    def join(self, modules: Sequence[torch.nn.Module]) -> AbstractContextManager[Any] | None:
        """Return None: all processes must have the same number of batches."""
        return None

    # -- optional: uncomment what differs for this strategy; the code shows accelkit's default ---------------------------------
    #
{% include "strategy_options.txt" %}
