"""``deepspeed``: optimizer state, gradients and parameters are sharded by the deepspeed package (ZeRO 1 to 3).

DeepSpeed wraps a module together with its optimizer in an engine, which owns the backward pass, clipping and the step. accelkit sets
DeepSpeed's option ``managed_gradient_accumulation=false``, so that every call to the engine's ``step`` runs the optimizer's step,
however many backward passes came before.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from accelkit import (
    Accelerator,
    AccelkitError,
    Availability,
    ContradictionError,
    EngineSettings,
    EngineStrategy,
    Precision,
    UnsupportedError,
    UsageError,
    hookimpl,
)
from accelkit_builtin.precisions.p16_mixed import Float16Mixed
from accelkit_builtin.strategies import deepspeed_checkpoint
from accelkit_builtin.strategies.deepspeed_config import DeepSpeedOptions, configuration
from accelkit_builtin.strategies.deepspeed_float16 import EngineScaledFloat16
from accelkit_builtin.strategies.deepspeed_package import PACKAGE, check_package, initialize, load
from accelkit_builtin.strategies.options import checked_options

if TYPE_CHECKING:
    from pathlib import Path

    import torch

__all__ = ["DeepSpeedOptions", "DeepSpeedStrategy"]

_LACKS_PRECISION = "is not supported on your device"  # in the text of DeepSpeed's ValueError


class DeepSpeedStrategy(EngineStrategy):
    """Sharded data parallelism with DeepSpeed's ZeRO, for one module with one optimizer per Runtime.

    Args:
        options: How to shard. None means ``DeepSpeedOptions()``.
        device: The device or device type that the strategy is for. None means any device.
    """

    is_distributed = True

    def __init__(self, options: DeepSpeedOptions | None = None, *, device: torch.device | str | None = None) -> None:
        super().__init__(device)
        self.options = checked_options(
            options, DeepSpeedOptions, "DeepSpeedStrategy(DeepSpeedOptions(stage=3)) or DeepSpeedOptions(config='ds_config.json')"
        )
        self._held: weakref.ref[Any] | None = None
        self._clipping: tuple[float, torch.Tensor] | None = None

    @classmethod
    def probe(cls) -> Availability:
        return PACKAGE.probe()

    def check(self, accelerator: Accelerator) -> None:
        """Check that DeepSpeed is installed, is new enough, and can use this accelerator. The check does not import DeepSpeed.

        Raises:
            UnavailableError: If DeepSpeed is missing or too old.
            UnsupportedError: If the accelerator declares ``process_group`` as ``none``, or if it traces lazily (overrides ``step_end``)
                and DeepSpeed does not know its device type.
            ContradictionError: If DS_ACCELERATOR names another device.
        """
        super().check(accelerator)
        check_package(accelerator, self.plugin)

    def setup(self, accelerator: Accelerator, devices: Sequence[int]) -> None:
        """Import DeepSpeed, and make it use the accelerator's device.

        Raises:
            ContradictionError: If DeepSpeed already uses another device in this process.
        """
        load(accelerator)

    @hookimpl(wrapper=True)
    def make_precision(self) -> Generator[None, Precision, Precision]:
        """Replace ``16-mixed`` with a precision that uses the engine's scaler. Other precisions are returned unchanged."""
        precision = yield
        return EngineScaledFloat16(precision, lambda: self._engine) if isinstance(precision, Float16Mixed) else precision

    def place_module(self, module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
        """Move the whole module to the device, where DeepSpeed shards it, and return the module.

        Raises:
            UnsupportedError: If a parameter is on the meta device.
        """
        if any(parameter.is_meta for parameter in module.parameters()):
            raise UnsupportedError(
                f"{type(module).__name__} has parameters on the meta device",
                plugin=self.plugin,
                why="DeepSpeed shards a model that already has its values",
                hint="create it on the CPU or under deepspeed.zero.Init (stage 3), or use strategy='fsdp'",
            )
        return module.to(device)

    def wrap_training(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer, settings: EngineSettings) -> torch.nn.Module:
        """Return a DeepSpeedEngine that contains the module. Every process gets rank 0's parameters and buffers.

        Raises:
            UnsupportedError: If this Runtime already has an engine, or DeepSpeed does not support the precision on this device.
            ContradictionError: If DeepSpeed's configuration contradicts the Runtime's settings.
            UsageError: If DeepSpeed rejects the configuration, the module or the optimizer.
        """
        import torch.distributed as dist

        if self._held is not None and self._held() is not None:
            raise UnsupportedError(
                f"{type(module).__name__} cannot be prepared in addition to another model",
                plugin=self.plugin,
                why="DeepSpeed runs the backward pass of one engine, and a loss does not determine which engine that is",
                hint="put both models into one torch.nn.ModuleDict with one optimizer, or use strategy='fsdp'",
            )
        config = configuration(self.options, settings, self.plugin)
        try:
            engine = initialize(module, optimizer, config, settings.device)
        except AccelkitError:
            raise
        except Exception as error:
            if _LACKS_PRECISION in str(error):
                raise UnsupportedError(
                    f"strategy 'deepspeed' does not support precision {settings.precision.name!r} on {settings.device}",
                    plugin=self.plugin,
                    why=f"DeepSpeed reports: {error}",
                    hint="use precision='32-true' or 'bf16-mixed', or strategy='fsdp'",
                ) from error
            raise UsageError(
                f"DeepSpeed does not wrap {type(module).__name__} and {type(optimizer).__name__}",
                plugin=self.plugin,
                why=f"{type(error).__name__}: {' '.join(str(error).split())}",
                hint="check DeepSpeedOptions(config=...) against DeepSpeed's documentation of its configuration",
            ) from error
        if settings.num_processes > 1:
            for buffer in engine.module.buffers():  # DeepSpeed sends only the parameters of rank 0
                dist.broadcast(buffer.detach(), src=0)
        self._held = weakref.ref(engine)
        wrapped: torch.nn.Module = engine
        return wrapped

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Run the engine's backward pass.

        Raises:
            UnsupportedError: If any argument other than ``retain_graph`` is given.
        """
        if kwargs.keys() - {"retain_graph"}:
            raise UnsupportedError(
                f"backward does not support the arguments {', '.join(sorted(kwargs))} here",
                plugin=self.plugin,
                why="DeepSpeed's backward pass supports only a scalar loss and retain_graph",
                hint="use strategy='fsdp' or 'ddp'",
            )
        self._engine.backward(loss, retain_graph=bool(kwargs.get("retain_graph")))

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Run the engine's step, which also clips and clears gradients.

        Returns:
            False if the engine skipped the step because a gradient was infinite or NaN, else True.
        """
        engine = self._engine
        engine.step()
        if self._clipping is not None:
            (engine.optimizer.clip_grad, norm), self._clipping = self._clipping, None
            norm.fill_(engine.get_global_grad_norm())
        return bool(engine.was_step_applied())

    def zero_grad(self, optimizer: torch.optim.Optimizer) -> None:
        """Discard all gradients and the limit that ``clip_grad_norm_`` has set.

        Gradients that have already been reduced are discarded, too. After ``step``, there is nothing to discard, because ``step`` itself
        clears the gradients and the limit.
        """
        zero = self._engine.optimizer
        if self._clipping is not None:
            zero.clip_grad, self._clipping = self._clipping[0], None
        zero.zero_grad(set_to_none=True)
        if hasattr(zero, "all_grad_tensors"):  # ZeRO 1 and 2 also hold gradients here; discard these too, as ZeRO's step does on overflow
            zero.micro_step_id = -1
            zero._release_preflattened_grad_buffers()
            for held in (zero.all_grad_tensors, zero.averaged_gradients):
                held.update(dict.fromkeys(held))
            if zero.cpu_offload:
                zero._offload_accumulated_param_ids = set()
                zero.reset_cpu_buffers()

    def save_engine(self, module: torch.nn.Module, folder: Path) -> None:
        """Write the engine's own checkpoint into ``folder``. See ``deepspeed_checkpoint.save``."""
        deepspeed_checkpoint.save(module, folder, self.plugin)

    def load_engine(self, module: torch.nn.Module, folder: Path) -> None:
        """Load the engine's own checkpoint from ``folder``. See ``deepspeed_checkpoint.load``."""
        deepspeed_checkpoint.load(module, folder, self.plugin)

    def unwrap_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return the module inside the engine, or ``module`` itself if it is not an engine."""
        deepspeed = sys.modules.get("deepspeed")
        if deepspeed is None or not isinstance(module, deepspeed.DeepSpeedEngine):
            return module
        inner: torch.nn.Module = module.module
        return inner

    def whole_parameters(self, module: torch.nn.Module) -> AbstractContextManager[Any]:
        """Return a context manager inside which all parameters that are sharded by ZeRO stage 3 are gathered on every process.

        In stages 1 and 2, parameters are not sharded, and the context manager does nothing.
        """
        sharded = [parameter for parameter in module.parameters() if hasattr(parameter, "ds_id")]
        if not sharded:
            return contextlib.nullcontext()
        gathered: AbstractContextManager[Any] = sys.modules["deepspeed"].zero.GatheredParameters(sharded)
        return gathered

    def join(self, modules: Sequence[torch.nn.Module]) -> None:
        """Return None: uneven inputs are not supported, because every process must take part in every step."""

    def clip_grad_norm_(
        self, parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float, **kwargs: Any
    ) -> torch.Tensor:
        """Make the next step clip gradients to ``max_norm``.

        If this method is called several times before the step, the smallest ``max_norm`` is used.

        Returns:
            A tensor that contains NaN until the next step has run, and then the norm of the gradients before clipping. All calls before the
            same step return the same tensor.

        Raises:
            UnsupportedError: If no model was prepared together with its optimizer, if ``norm_type`` is not 2, if ``parameters`` lacks a
                trainable parameter of the model, if ``error_if_nonfinite`` or ``foreach`` is true, or if DeepSpeed's configuration sets
                ``compute_grad_norm`` to false.
            ContradictionError: If ``gradient_clipping`` in DeepSpeed's configuration is neither 0 nor ``max_norm``.
            UsageError: If ``max_norm`` is not positive.
        """
        import torch

        engine = self._engine
        given = {id(parameter) for parameter in ([parameters] if isinstance(parameters, torch.Tensor) else parameters)}
        expected = {id(parameter) for parameter in engine.module.parameters() if parameter.requires_grad}
        reasons = ["it supports only the 2-norm"] if norm_type != 2 else []
        reasons += ["it always clips all parameters of the model together"] if not expected <= given else []
        reasons += [f"it does not support {', '.join(requested)}"] if (requested := sorted(key for key in kwargs if kwargs[key])) else []
        reasons += [] if getattr(engine.optimizer, "compute_grad_norm", True) else ["its configuration sets compute_grad_norm to false"]
        if reasons:
            raise UnsupportedError(
                "DeepSpeed does not support this gradient clipping",
                plugin=self.plugin,
                why="; ".join(reasons),
                hint="use rt.clip_grad_norm_(model.parameters(), max_norm)",
            )
        if not max_norm > 0:
            raise UsageError(f"max_norm={max_norm!r} is invalid", why="it must be a positive number")
        norm_in_config = engine.gradient_clipping()
        if norm_in_config and norm_in_config != max_norm:
            raise ContradictionError(
                f"max_norm={max_norm!r} contradicts gradient_clipping={norm_in_config!r} in DeepSpeed's configuration",
                why="DeepSpeed would clip every step by the configured value",
                hint='set gradient_clipping to "auto"',
            )
        if self._clipping is None:
            self._clipping = (norm_in_config, torch.full((), float("nan"), device=engine.device))
            engine.optimizer.clip_grad = float("inf")
        engine.optimizer.clip_grad = min(engine.optimizer.clip_grad, float(max_norm))
        return self._clipping[1]

    def clip_grad_value_(self, parameters: torch.Tensor | Iterable[torch.Tensor], clip_value: float) -> None:
        """Raise an error, because DeepSpeed cannot clip gradients by value.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(
            "DeepSpeed does not support clipping gradients by value",
            plugin=self.plugin,
            why="it partitions the gradients",
            hint="use rt.clip_grad_norm_",
        )

    def teardown(self) -> None:
        """Destroy the engine and release DeepSpeed's references to the process groups. The Runtime can then destroy the groups."""
        deepspeed = sys.modules.get("deepspeed")
        engine = self._held() if self._held is not None else None
        self._held = self._clipping = None
        if deepspeed is not None and engine is not None:
            engine.destroy()
            deepspeed.utils.groups._release_process_group_references()  # deepspeed.comm.destroy_process_group also does this

    @property
    def _engine(self) -> Any:
        engine = self._held() if self._held is not None else None
        if engine is None:
            raise UnsupportedError(
                "DeepSpeed has no model to train",
                plugin=self.plugin,
                why="no module was prepared together with its optimizer, or the objects that prepare returned were deleted",
                hint="call model, optimizer = rt.prepare(model, optimizer)",
            )
        return engine
