"""accelkit's strategy ``fsdp`` in Lightning: a subclass of Lightning's ModelParallelStrategy that itself shards the user's whole module.

Lightning's own strategy ``fsdp`` uses torch's FSDP1, which supports only CUDA. Lightning's ModelParallelStrategy supports FSDP2, but
requires the user to call ``fully_shard``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from accelkit.bridges.lightning.compat import Framework
from accelkit.bridges.parameter_swapping import SwappingParameters
from accelkit.runtime.module_placement import ParameterMoves, moving
from accelkit.specs.strategy import Strategy

NAME = "fsdp"
_WHOLE = "_accelkit_whole"

if TYPE_CHECKING:

    class Theirs:
        """The attributes and methods of Lightning's Trainer strategies that this module uses, declared for type checkers.

        All of them are public.
        """

        model: torch.nn.Module
        lightning_module: torch.nn.Module
        root_device: torch.device

        def setup(self, trainer: Any) -> None: ...
        def lightning_module_state_dict(self) -> dict[str, Any]: ...
        def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]: ...
        def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]: ...

else:
    Theirs = object


class Whole(torch.nn.Module):
    """The outermost module that FSDP shards. It wraps the LightningModule, as ``DistributedDataParallel`` does for the strategy ``ddp``.

    Lightning calls ``training_step`` and the other steps of the LightningModule through the wrapper.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


class TrainerSharding(Theirs):
    """Mixin that makes the Trainer's ModelParallelStrategy shard the LightningModule, so ``configure_model`` need not do so.

    The LightningModule is sharded after ``configure_model`` has run. A checkpoint contains the whole model, with the parameter names of the
    LightningModule.
    """

    parent: ClassVar[Any]
    sharding: ClassVar[Strategy]

    def setup(self, trainer: Any) -> None:
        """Run ParallelStrategy's ``setup``, not ModelParallelStrategy's, which requires the user to override ``configure_model``."""
        self.parent.setup(self, trainer)

    def model_to_device(self) -> None:
        """Shard the LightningModule, unless a Trainer has already sharded it. Set ``model`` to the sharded module."""
        module = self.lightning_module
        if _WHOLE not in vars(module):
            vars(module)[_WHOLE] = _shard(self.sharding, Whole(module), self.root_device)  # not registered as a child of the module
        self.model = vars(module)[_WHOLE]

    def lightning_module_state_dict(self) -> dict[str, Any]:
        with self._users_module():
            return super().lightning_module_state_dict()

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        with self._users_module():
            return super().optimizer_state(optimizer)

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        with self._users_module():
            return super().load_checkpoint(*args, **kwargs)

    @contextlib.contextmanager
    def _users_module(self) -> Iterator[None]:
        whole, self.model = self.model, self.lightning_module
        try:
            yield
        finally:
            self.model = whole


def make_sharded(framework: Framework, sharding: Strategy, num_processes: int) -> Any:
    """Create a subclass of Lightning's ModelParallelStrategy that shards modules with an accelkit strategy, and return an instance of it.

    Args:
        framework: The framework that will use the strategy.
        sharding: accelkit's strategy ``fsdp``, as ``checked_strategy`` returns it.
        num_processes: The number of processes of the job, over which modules are sharded.
    """
    strategies = framework.part("strategies")
    theirs = strategies.ModelParallelStrategy
    options: dict[str, Any] = {"data_parallel_size": num_processes, "tensor_parallel_size": 1, "save_distributed_checkpoint": False}
    attributes: dict[str, Any] = {"__module__": __name__}
    if framework.is_trainer:
        attributes |= {"parent": strategies.ParallelStrategy, "sharding": sharding}
        return type("FSDPStrategy", (TrainerSharding, theirs), attributes)(**options)

    def parallelize(module: torch.nn.Module, mesh: Any) -> torch.nn.Module:
        return _shard(sharding, module, strategy.root_device)

    strategy = type("FSDPStrategy", (theirs,), attributes)(parallelize_fn=parallelize, **options)
    return strategy


def _shard(sharding: Strategy, module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    with SwappingParameters(), moving(module, ParameterMoves()):
        return sharding.wrap_module(sharding.place_module(module, device), device)
