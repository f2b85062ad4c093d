"""How one program spans devices: ``strategy="{{ cookiecutter.accelerator }}_parallel"``.

What stands in comments has that default, and need not be there.
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
    """Data parallelism: torch's DistributedDataParallel, until there is a wrapper of {{ cookiecutter.vendor }}'s own."""

    is_distributed = True  # one process a device, in one process group

    def wrap_module(self, module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
        """The module as the training loop calls it; one without parameters to train as it is."""
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(module) if any(one.requires_grad for one in module.parameters()) else module

    def unwrap_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """What ``wrap_module`` was given."""
        from torch.nn.parallel import DistributedDataParallel

        unwrapped: torch.nn.Module = module.module if isinstance(module, DistributedDataParallel) else module
        return unwrapped

    def no_sync(self, module: torch.nn.Module) -> AbstractContextManager[Any]:
        """Inside, a backward pass leaves gradients to the process: they are reduced by the next one outside."""
        from torch.nn.parallel import DistributedDataParallel

        return module.no_sync() if isinstance(module, DistributedDataParallel) else contextlib.nullcontext()

    def join(self, modules: Sequence[torch.nn.Module]) -> AbstractContextManager[Any] | None:
        """None: processes must have as many batches as each other."""
        return None

    # -- optional: uncomment what this strategy does otherwise; the code is accelkit's default ---------------------------------
    #
{% include "strategy_options.txt" %}
