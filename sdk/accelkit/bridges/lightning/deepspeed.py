"""Lightning's DeepSpeedStrategy on a plugin's device.

Lightning's class works only with Lightning's CUDAAccelerator and only with the devices 0, 1, ... of a machine. It passes the index of the
device to DeepSpeed, but the CPU has no index. On some devices, it replaces the parameters of the modules that it moves. Therefore,
``make_deepspeed`` assigns a new class to the strategy object. The new class overrides the methods that cause these problems. Its only base
is the original class of the object. If there were a mixin before that base, Python would not allow the assignment.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from accelkit.bridges.checked_strategy import checked_strategy
from accelkit.bridges.deepspeed import without_compiling
from accelkit.bridges.deepspeed.environment import device_index_variables, variables_restored
from accelkit.bridges.deepspeed.installation import known_device_types
from accelkit.bridges.lightning.compat import Framework
from accelkit.bridges.lightning.environments import join_group
from accelkit.bridges.parameter_swapping import keeping_parameters
from accelkit.errors import ContradictionError, UnsupportedError
from accelkit.runtime.module_placement import ParameterMoves, moving
from accelkit.specs.accelerator import Accelerator

NAME = "deepspeed"
PRECISIONS = ("32-true", "16-mixed", "16-true", "bf16-mixed", "bf16-true")
"""The precisions of Lightning's DeepSpeedPrecision."""

_EARLY = "accelkit.bridges.deepspeed.set_accelerator_on_import"
_UNTESTED = "accelkit has not been tested with it on devices that DeepSpeed does not know"
_LACKS_PRECISION = "is not supported on your device"  # in the text of DeepSpeed's ValueError


def is_adapted(strategy: Any) -> bool:
    """Return whether a strategy is a DeepSpeedStrategy that this module has adapted."""
    return type(strategy).__module__ == __name__


def make_deepspeed(framework: Framework, strategy: Any, plugin: Accelerator) -> Any:
    """Adapt a DeepSpeedStrategy to the device of a plugin, and return it.

    Args:
        framework: The Trainer or Fabric that will use the strategy.
        strategy: A name that Lightning has registered, such as ``deepspeed_stage_3``, or a DeepSpeedStrategy. A DeepSpeedStrategy is
            adapted in place, so that it keeps the user's configuration.
        plugin: The accelerator.

    Raises:
        UnavailableError: If DeepSpeed is missing or too old.
        UnsupportedError: If DeepSpeed cannot use the device, or the strategy has options that the bridge does not support.
        ContradictionError: If DeepSpeed already uses another device in this process.
    """
    _use_device(plugin)  # before Lightning creates a strategy, which imports DeepSpeed
    if isinstance(strategy, str):
        strategy = framework.strategy_registry.get(strategy)
    if plugin.device_type not in known_device_types():
        _check_options(strategy, plugin)
    strategy.config.setdefault("zero_force_ds_cpu_optimizer", False)  # keep the user's optimizer if its state is offloaded
    parent = type(strategy)
    overridden = _everywhere(framework, parent, plugin) | (_in_trainer if framework.is_trainer else _in_fabric)(parent, plugin)
    strategy.__class__ = type(parent.__name__, (parent,), {"__module__": __name__, **overridden})
    return strategy


def _use_device(plugin: Accelerator) -> None:
    """Import DeepSpeed, and make it use the plugin's device."""
    strategy = checked_strategy(NAME, plugin)
    try:
        strategy.setup(plugin, [])
    except ContradictionError as error:
        is_known = plugin.device_type in known_device_types()
        early = f"set DS_ACCELERATOR={plugin.device_type}" if is_known else f"first call {_EARLY}({plugin.name!r})"
        raise ContradictionError(
            f"in this process, DeepSpeed uses a different device from the accelerator {plugin.name!r}",
            plugin=plugin.plugin,
            why="the program imported deepspeed earlier, or created a DeepSpeedStrategy, which imports deepspeed",
            hint=f"{early}, or use a name, such as strategy='deepspeed_stage_3'",
        ) from error


def _check_options(strategy: Any, plugin: Accelerator) -> None:
    zero = strategy.config.get("zero_optimization") or {}
    offloaded = [section for name in ("offload_optimizer", "offload_param") if isinstance(section := zero.get(name), dict)]
    if "nvme" in (strategy.remote_device, *(section.get("device") for section in offloaded)):
        raise _unsupported(
            "offloading to NVMe",
            plugin,
            _UNTESTED,
            "offload to host memory, as strategy='deepspeed_stage_3_offload' does",
        )
    checkpointing = strategy.config.get("activation_checkpointing") or {}
    if chosen := sorted(name for name, value in checkpointing.items() if value):
        raise _unsupported(
            f"activation checkpointing ({', '.join(chosen)})",
            plugin,
            _UNTESTED,
            "use torch.utils.checkpoint.checkpoint in the module",
        )


def check_deepspeed_precision(precision: str, plugin: Accelerator, *, is_lightnings: bool) -> None:
    """Check that DeepSpeed supports a precision.

    Args:
        precision: The name of the precision.
        plugin: The accelerator.
        is_lightnings: Whether the precision is one of Lightning's own.

    Raises:
        UnsupportedError: If DeepSpeed does not support the precision.
    """
    if not (is_lightnings and precision in PRECISIONS):
        names = ", ".join(PRECISIONS)
        raise _unsupported(f"precision {precision!r}", plugin, f"DeepSpeed's engine converts the model itself, to one of {names}", None)


def _unsupported(what: str, plugin: Accelerator, why: str, hint: str | None) -> UnsupportedError:
    return UnsupportedError(
        f"the bridge to Lightning does not support {what} with DeepSpeed on {plugin.name}",
        plugin=plugin.plugin,
        why=why,
        hint=hint or "use one of these, or strategy='ddp' or 'fsdp'",
    )


def _everywhere(framework: Framework, parent: Any, plugin: Accelerator) -> dict[str, Any]:
    """Return the methods of the new class that are needed for both Trainer and Fabric. They override those of ``parent``.

    The keys are the names of the methods. Some methods have different names in Trainer and Fabric; the names are those in ``framework``.
    """
    lightnings = sys.modules[framework.part("strategies").DeepSpeedStrategy.__module__]
    distributed = "setup_distributed" if framework.is_trainer else "_setup_distributed"
    sharded = "model_sharded_context" if framework.is_trainer else "module_sharded_context"

    def setup_environment(self: Any) -> None:
        join_group(self, plugin)
        accepted, lightnings.CUDAAccelerator = lightnings.CUDAAccelerator, type(self.accelerator)  # type: ignore[attr-defined]
        try:
            parent.setup_environment(self)
        finally:
            lightnings.CUDAAccelerator = accepted  # type: ignore[attr-defined]

    def setup_distributed(self: Any) -> None:
        count = len(self.parallel_devices)
        numbered = [torch.device(plugin.device_type, index) for index in range(count)]
        with variables_restored(), _devices(self, numbered), without_compiling():
            getattr(parent, distributed)(self)

    @contextlib.contextmanager
    def sharded_context(self: Any) -> Iterator[None]:
        with variables_restored(device_index_variables(self.root_device)), getattr(parent, sharded)(self):
            yield

    return {"setup_environment": setup_environment, distributed: setup_distributed, sharded: sharded_context}


def _in_trainer(parent: Any, plugin: Accelerator) -> dict[str, Callable[..., Any]]:
    def setup(self: Any, trainer: Any) -> None:
        if self.zero_stage_3:  # on out-of-tree devices, torch cannot gather a parameter in inference mode
            for loop in (trainer.validate_loop, trainer.test_loop, trainer.predict_loop):
                loop.inference_mode = False
        with _creating_engine(self, plugin, self.precision_plugin):
            parent.setup(self, trainer)

    def teardown(self: Any) -> None:
        module = self.lightning_module
        if module is None:
            parent.teardown(self)
            return
        with _without_partitioned(module), moving(module, ParameterMoves()):
            parent.teardown(self)

    return {"setup": setup, "teardown": teardown}


def _in_fabric(parent: Any, plugin: Accelerator) -> dict[str, Callable[..., Any]]:
    def module_to_device(self: Any, module: torch.nn.Module) -> None:
        with _without_partitioned(module), keeping_parameters():  # the optimizer has been created
            parent.module_to_device(self, module)

    def setup_module(self: Any, module: torch.nn.Module) -> Any:
        with _creating_engine(self, plugin, self.precision):
            return parent.setup_module(self, module)

    def setup_module_and_optimizers(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _creating_engine(self, plugin, self.precision):
            return parent.setup_module_and_optimizers(self, *args, **kwargs)

    return {
        "module_to_device": module_to_device,
        "setup_module": setup_module,
        "setup_module_and_optimizers": setup_module_and_optimizers,
    }


@contextlib.contextmanager
def _creating_engine(strategy: Any, plugin: Accelerator, precision: Any) -> Iterator[None]:
    """Inside the ``with`` block, let Lightning call ``deepspeed.initialize`` for the device of this process.

    Raises:
        UnsupportedError: If DeepSpeed does not support the precision on the device.
    """
    device = strategy.root_device
    numbered = [torch.device(one.type, one.index or 0) for one in strategy.parallel_devices]  # the CPU has no index
    try:
        with variables_restored(device_index_variables(device)), _devices(strategy, numbered), without_compiling():
            yield
    except ValueError as error:
        if _LACKS_PRECISION not in str(error):
            raise
        raise _unsupported(f"precision {precision.precision!r}", plugin, f"DeepSpeed reports: {error}", "use '32-true'") from error


@contextlib.contextmanager
def _devices(strategy: Any, devices: list[torch.device]) -> Iterator[None]:
    before, strategy.parallel_devices = strategy.parallel_devices, devices
    try:
        yield
    finally:
        strategy.parallel_devices = before


@contextlib.contextmanager
def _without_partitioned(module: torch.nn.Module) -> Iterator[None]:
    """Inside the ``with`` block, remove from ``module`` each parameter that ZeRO 3 has partitioned, so that the parameter is not moved.

    A partitioned parameter has no values, and a copy of it would not refer to the partitions that DeepSpeed holds.
    """
    named = [(part, part.named_parameters(recurse=False, remove_duplicate=False)) for part in module.modules()]
    hidden = [(part, name, parameter) for part, parameters in named for name, parameter in parameters if hasattr(parameter, "ds_id")]
    for part, name, _ in hidden:
        setattr(part, name, None)
    try:
        yield
    finally:
        for part, name, parameter in hidden:
            setattr(part, name, parameter)
