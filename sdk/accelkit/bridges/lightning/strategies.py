"""Lightning's own strategies, extended for devices that Lightning itself does not support.

On XLA and PrivateUse1 devices, ``Module.to`` creates new Parameters. Lightning handles this only for XLA. If Lightning's own classes moved
a module to a PrivateUse1 device, tied parameters would no longer be tied, and an optimizer created before the move would not train the
module.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from accelkit.bridges.checked_strategy import checked_strategy
from accelkit.bridges.lightning.compat import Framework
from accelkit.bridges.lightning.deepspeed import NAME as DEEPSPEED
from accelkit.bridges.lightning.deepspeed import check_deepspeed_precision, is_adapted, make_deepspeed
from accelkit.bridges.lightning.environments import join_group
from accelkit.bridges.lightning.plugin_precision import PluginPrecision
from accelkit.bridges.lightning.sharding import NAME as FSDP
from accelkit.bridges.lightning.sharding import make_sharded
from accelkit.bridges.meshes import meshes_of_any_device_type
from accelkit.bridges.parameter_swapping import SwappingParameters
from accelkit.errors import ContradictionError, UnknownNameError, UnsupportedError
from accelkit.runtime.module_placement import ParameterMoves, follow_parameters, moving
from accelkit.specs.accelerator import Accelerator

DDP_OPTIONS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "ddp_find_unused_parameters_true": {"find_unused_parameters": True},
    "ddp_find_unused_parameters_false": {"find_unused_parameters": False},
}
_SHARDED = ("32-true", "bf16-mixed", "bf16-true", "16-true")
_IN_PROCESS = "Lightning would pickle or fork a process that already uses the device"
_CUDA_ONLY = "Lightning supports it only on CUDA devices"
_FSDP = f"{_CUDA_ONLY}; accelkit's strategy='fsdp' shards on every device"
_REFUSED = {"fsdp": _FSDP, "ddp_": _IN_PROCESS, "dp": _CUDA_ONLY}


if TYPE_CHECKING:

    class Theirs:
        """The attributes and methods of Lightning's strategies that the mixins below use, declared for type checkers.

        All of them are public.
        """

        accelerator: Any
        cluster_environment: Any
        model: torch.nn.Module
        lightning_module: torch.nn.Module | None
        optimizers: list[torch.optim.Optimizer]
        precision: Any
        root_device: torch.device

        def setup_environment(self) -> None: ...
        def model_to_device(self) -> None: ...
        def setup_optimizers(self, trainer: Any) -> None: ...
        def teardown(self) -> None: ...
        def module_to_device(self, module: torch.nn.Module) -> None: ...
        def setup_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer: ...

else:
    Theirs = object


class TrainerPlacing(Theirs):
    """A mixin that moves a Trainer's module to the device during setup, and back to the host during teardown.

    If a move creates new Parameters, tied parameters stay tied, and the optimizers are updated to refer to the new Parameters.
    """

    _moves: ParameterMoves | None = None

    def model_to_device(self) -> None:
        with moving(self.model, self._record()):
            super().model_to_device()

    def setup_optimizers(self, trainer: Any) -> None:
        super().setup_optimizers(trainer)
        self._follow()

    def teardown(self) -> None:
        """Tear down the strategy. This also moves the module to the host."""
        if self.lightning_module is None:
            super().teardown()
            return
        with moving(self.lightning_module, self._record()):
            super().teardown()
        self._follow()

    def _record(self) -> ParameterMoves:
        self._moves = ParameterMoves()
        return self._moves

    def _follow(self) -> None:
        for optimizer in self.optimizers:
            if self._moves is not None:
                follow_parameters(optimizer, self._moves, has_to_know=False)


class FabricPlacing(Theirs):
    """A mixin for Fabric that moves modules to the device.

    If a move creates new Parameters, tied parameters stay tied, and the optimizers are updated to refer to the new Parameters.
    """

    _moves: ParameterMoves | None = None

    def module_to_device(self, module: torch.nn.Module) -> None:
        self._moves = self._moves or ParameterMoves()
        with moving(module, self._moves):
            super().module_to_device(module)

    def setup_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        if isinstance(self.precision, PluginPrecision):  # Fabric itself passes no optimizers to a precision
            self.precision.check_optimizer(optimizer)
        if self._moves is not None:
            follow_parameters(optimizer, self._moves, has_to_know=False)
        return super().setup_optimizer(optimizer)


class Joining(Theirs):
    """A mixin that creates the process group before Lightning needs one. If a group exists, Lightning uses it and creates none.

    The process group has backends for tensors on the device and on the CPU, and is tested with a reduction on the device.
    """

    plugin: ClassVar[Accelerator]

    def setup_environment(self) -> None:
        join_group(self, self.plugin)
        super().setup_environment()


class TrainerDDP(Joining, TrainerPlacing):
    """DDP for a Trainer, without device ids, so that torch uses the module's device. With ids, Lightning would request a CUDA stream."""

    def determine_ddp_device_ids(self) -> None:
        return None


class FabricDDP(Joining, FabricPlacing):
    """DDP for Fabric. Like ``TrainerDDP``, it passes no device ids, so that torch uses the module's device."""

    options: ClassVar[dict[str, Any]]

    def setup_module(self, module: torch.nn.Module) -> torch.nn.Module:
        return torch.nn.parallel.DistributedDataParallel(module, **self.options)


def make_strategy(framework: Framework, name: str, plugin: Accelerator, device: torch.device, num_processes: int) -> Any:
    """Create Lightning's strategy ``name`` for a device of this plugin, in a job of ``num_processes`` processes.

    Raises:
        UnsupportedError: If the bridge does not support the strategy on this device, or the accelerator lacks what the strategy needs.
        UnknownNameError: If Lightning has no strategy of this name.
        UnavailableError, ContradictionError: If DeepSpeed cannot be used (see ``make_deepspeed``).
    """
    strategies = framework.part("strategies")
    if name == "single_device":
        placing = TrainerPlacing if framework.is_trainer else FabricPlacing
        return type("SingleDeviceStrategy", (placing, strategies.SingleDeviceStrategy), {"__module__": __name__})(device=device)
    if name in DDP_OPTIONS:
        ddp = TrainerDDP if framework.is_trainer else FabricDDP
        options = DDP_OPTIONS[name]
        checked_strategy("ddp", plugin)
        attributes = {"plugin": plugin, "options": options, "__module__": __name__}
        return type("DDPStrategy", (ddp, strategies.DDPStrategy), attributes)(**options)
    if name == FSDP:
        return _joining_first(make_sharded(framework, checked_strategy(name, plugin), num_processes), plugin, framework)
    known = framework.strategy_registry.available_strategies()
    if name not in known:
        near = difflib.get_close_matches(name, ["single_device", FSDP, *DDP_OPTIONS], n=1)
        raise UnknownNameError(
            f"Lightning has no strategy named {name!r}",
            why=f"its strategies are {', '.join(sorted(known))}",
            hint=f"did you mean {near[0]!r}?" if near else "use 'auto', 'ddp' or 'single_device'",
        )
    if name.startswith(DEEPSPEED):
        return make_deepspeed(framework, name, plugin)
    raise _refusal(name, plugin)


def check_given(framework: Framework, strategy: Any, plugin: Accelerator, device: torch.device) -> Any:
    """Check that a Lightning strategy created by the user can be used on this device, and return the strategy to use.

    A ModelParallelStrategy or DeepSpeedStrategy is adapted to the device in place. A SingleDeviceStrategy is replaced with a new, adapted
    strategy. A strategy whose class Lightning itself does not define is returned unchanged, without a check.

    Raises:
        UnsupportedError: If Lightning defines the strategy's class, but the class is none of these three. Also if DeepSpeed cannot use the
            device, or if a DeepSpeedStrategy has options that the bridge does not support.
        ContradictionError: If the strategy was created for another device, or DeepSpeed already uses another device in this process.
        UnavailableError: If the strategy needs DeepSpeed, and DeepSpeed is missing or too old.
    """
    if isinstance(strategy, Joining | TrainerPlacing | FabricPlacing) or not framework.owns(type(strategy)):
        return strategy
    strategies = framework.part("strategies")
    if isinstance(strategy, strategies.SingleDeviceStrategy):
        if strategy.root_device != device:
            raise ContradictionError(
                f"the strategy uses {strategy.root_device}, but the accelerator {plugin.name!r} uses {device}",
                plugin=plugin.plugin,
                why="Lightning trains on the device of the strategy, not on that of the accelerator",
                hint="omit strategy, or use strategy='single_device'",
            )
        return make_strategy(framework, "single_device", plugin, device, num_processes=1)
    if type(strategy) is strategies.DeepSpeedStrategy:
        return make_deepspeed(framework, strategy, plugin)
    if type(strategy) is strategies.ModelParallelStrategy:  # keep the object, because the user configured its mesh and parallelize_fn
        return _joining_first(strategy, plugin, framework)
    raise _refusal(type(strategy).__name__, plugin)


def check_precision(framework: Framework, strategy: Any, precision: str, plugin: Accelerator, *, is_lightnings: bool) -> None:
    """Check that the strategy supports the precision. ModelParallelStrategy and DeepSpeed support only some of Lightning's own precisions.

    Other strategies are not checked. ``is_lightnings`` says whether the precision is one of Lightning's own.

    Raises:
        UnsupportedError: If the strategy does not support the precision.
    """
    if is_adapted(strategy):
        check_deepspeed_precision(precision, plugin, is_lightnings=is_lightnings)
    if isinstance(strategy, framework.part("strategies").ModelParallelStrategy) and not (is_lightnings and precision in _SHARDED):
        raise UnsupportedError(
            f"the bridge to Lightning does not support precision {precision!r} with {type(strategy).__name__} on {plugin.name}",
            plugin=plugin.plugin,
            why=f"it supports Lightning's {', '.join(_SHARDED)}",
            hint="use one of these, or use accelkit.Runtime(strategy='fsdp') without Lightning",
        )


def _joining_first(strategy: Any, plugin: Accelerator, framework: Framework) -> Any:
    """Make a ModelParallelStrategy create its process group as ``Joining`` does, and let it shard modules that are on the CPU.

    The strategy remains the same object, but its class is replaced with a new subclass of its original class. ``Joining`` is not a base
    of the subclass, because Python would then refuse to assign the subclass to ``strategy.__class__``.
    """
    parent = type(strategy)

    def setup_environment(self: Any) -> None:
        join_group(self, plugin)
        with meshes_of_any_device_type():
            parent.setup_environment(self)

    @contextlib.contextmanager
    def model_sharded_context(self: Any) -> Iterator[None]:
        with parent.model_sharded_context(self), SwappingParameters():
            yield

    def setup_module(self: Any, module: torch.nn.Module) -> torch.nn.Module:
        with SwappingParameters():
            sharded: torch.nn.Module = parent.setup_module(self, module)
            return sharded

    sharding = {"model_sharded_context": model_sharded_context} if framework.is_trainer else {"setup_module": setup_module}
    attributes = {"setup_environment": setup_environment, "__module__": __name__, **sharding}
    strategy.__class__ = type(parent.__name__, (parent,), attributes)
    return strategy


def _refusal(name: str, plugin: Accelerator) -> UnsupportedError:
    lowered = name.lower()
    why = next(
        (reason for start, reason in _REFUSED.items() if lowered.startswith(start)), "it supports only the devices of Lightning itself"
    )
    if name == "DDPStrategy":
        why = "Lightning's class requests a CUDA stream on every device"
    return UnsupportedError(
        f"the bridge to Lightning does not support strategy {name!r} on {plugin.name}",
        plugin=plugin.plugin,
        why=why,
        hint="use strategy='fsdp' or 'ddp', or use accelkit.Runtime, which has other strategies, without Lightning",
    )
