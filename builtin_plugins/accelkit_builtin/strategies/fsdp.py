"""``fsdp``: parameters, gradients and optimizer state are sharded over the processes (torch's FSDP2, ``fully_shard``)."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal

from accelkit import Accelerator, BrokenPluginError, Precision, Strategy, UnsupportedError, UsageError, hookimpl, make_mesh
from accelkit_builtin.precisions.bitsandbytes_8bit import Bitsandbytes8Bit
from accelkit_builtin.strategies.fsdp_initialization import broadcast_weights, fill, owns_tensors
from accelkit_builtin.strategies.options import checked_options

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

WrapPolicy = Literal["blocks", "root"] | type | Collection[type] | Callable[["torch.nn.Module"], bool]


@dataclasses.dataclass(frozen=True, slots=True)
class FSDPOptions:
    """Options for ``fully_shard``.

    Args:
        wrap: Which inner modules are sharded and gathered separately. ``blocks`` selects every entry of every ``ModuleList``; in most
            models, these are the repeated blocks. ``root`` selects no inner module. A class or a collection of classes selects the
            instances of these classes. A function gets each inner module and returns whether to select the module. Parameters outside the
            selected modules are sharded and gathered together.
        reshard_after_forward: Whether gathered parameters are freed between forward and backward. This saves memory at the cost of one more
            gather.
        param_dtype: The name of the dtype of gathered parameters and computation, such as ``bfloat16``. None keeps the parameters' dtype.
            The sharded parameters always keep their own dtype.
        reduce_dtype: The name of the dtype in which gradients are reduced. None selects ``param_dtype``.
        output_dtype: The name of the dtype of floating-point outputs. None leaves outputs unchanged.
        cast_forward_inputs: Whether floating-point inputs are cast to ``param_dtype``.
        cpu_offload: Whether to keep sharded parameters, gradients and optimizer state in host memory.
        pin_memory: Whether to pin the host memory that ``cpu_offload`` uses, so that copies overlap with computation.
    """

    wrap: WrapPolicy = "blocks"
    reshard_after_forward: bool = True
    param_dtype: str | None = None
    reduce_dtype: str | None = None
    output_dtype: str | None = None
    cast_forward_inputs: bool = True
    cpu_offload: bool = False
    pin_memory: bool = True


class FSDPStrategy(Strategy):
    """Sharded data parallelism with torch's FSDP2.

    A model that was created on the meta device is never allocated as a whole. Each process allocates its shards, and initialises the
    modules one after another with their ``reset_parameters`` methods. The initial values do not depend on the number of processes.

    Args:
        options: How to shard. None means ``FSDPOptions()``.
        device: The device or device type that the strategy is for. None means any device.

    Raises:
        UsageError: If ``options`` is neither None nor an FSDPOptions object.
    """

    is_distributed = True

    def __init__(self, options: FSDPOptions | None = None, *, device: torch.device | str | None = None) -> None:
        super().__init__(device)
        self.options = checked_options(options, FSDPOptions, "FSDPStrategy(FSDPOptions(wrap='root'))")

    def check(self, accelerator: Accelerator) -> None:
        """Check that the accelerator supports what FSDP2 needs.

        FSDP2 needs process groups and a module ``torch.<device_type>``. It needs pinned memory only if the options ``cpu_offload`` and
        ``pin_memory`` are both set.

        Raises:
            UnsupportedError: If the accelerator declares that it lacks process groups, if there is no module ``torch.<device_type>``, or if
                offloading would use pinned memory but the accelerator declares that it lacks pinned memory.
        """
        super().check(accelerator)
        try:
            _ = accelerator.device_module
        except BrokenPluginError as error:
            raise UnsupportedError(
                f"{accelerator.name} does not support strategy {self.name!r}",
                plugin=accelerator.plugin,
                why=f"FSDP2 needs the streams and events of the module torch.{accelerator.device_type}, which does not exist",
                hint="use strategy='ddp'",
            ) from error
        if self.options.cpu_offload and self.options.pin_memory and accelerator.capabilities()["pinned_memory"] == "none":
            raise UnsupportedError(
                f"{accelerator.name} does not support offloading through pinned memory",
                plugin=accelerator.plugin,
                why="it declares that it does not support pinned_memory",
                hint="use FSDPOptions(cpu_offload=True, pin_memory=False)",
            )

    @hookimpl(wrapper=True)
    def make_precision(self) -> Generator[None, Precision, Precision]:
        """Hook wrapper that checks the precision made by the other implementations of ``make_precision`` and returns it unchanged.

        Parameters are sharded in the dtype in which the precision stores them. Autocast works as it does without sharding.

        Raises:
            UnsupportedError: If the precision is ``bitsandbytes-8bit``. bitsandbytes stores the scales of int8 weights on the parameters,
                which sharding replaces.
        """
        precision = yield
        if isinstance(precision, Bitsandbytes8Bit):
            raise UnsupportedError(
                f"strategy {self.name!r} does not support precision {precision.name!r}",
                plugin=self.plugin,
                why="bitsandbytes stores the scales of int8 weights on the parameters, which sharding replaces",
                hint="use precision='bitsandbytes-4bit', or strategy='ddp'",
            )
        return precision

    def place_module(self, module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
        """Move the module to the device and return it. A module on the meta device is not moved: its shards are allocated later."""
        return module if _is_on_meta(module) else module.to(device)

    def wrap_module(self, module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
        """Shard the module in place and return it. Unless the module is on ``meta``, every process gets rank 0's parameters and buffers.

        The module's parameters become sharded DTensors, and its class is replaced by a subclass that gathers parameters and reduces
        gradients.

        Raises:
            UnsupportedError: If a module on the meta device has parameters or buffers, but no ``reset_parameters``.
            UsageError: If ``FSDPOptions`` has an unknown wrapping policy or dtype, or if the module is only partly on ``meta``.
        """
        from torch.distributed.fsdp import fully_shard

        was_on_meta = _is_on_meta(module)
        if was_on_meta:
            self._check_resettable(module)
        else:
            broadcast_weights(module)
        self.before_sharding(module, device)
        settings = self._settings(device)
        for inner in self._inner(module):
            fully_shard(inner, **settings)
        fully_shard(module, **settings)
        if was_on_meta:
            module.to_empty(device="cpu" if self.options.cpu_offload else device)
            fill(module)
        return module

    def before_sharding(self, module: torch.nn.Module, device: torch.device) -> None:
        """Do nothing. A subclass can override this method to change the module before ``wrap_module`` shards it.

        Unless the module is on ``meta``, every process already has rank 0's parameters and buffers.
        """

    def sharding_mesh(self, device: torch.device) -> DeviceMesh:
        """Return the mesh over which modules are sharded. Its only dimension, ``shard``, contains all processes."""
        import torch.distributed as dist

        return make_mesh(device.type, {"shard": dist.get_world_size()})

    def no_sync(self, module: torch.nn.Module) -> AbstractContextManager[Any]:
        """Return a context manager inside which gradients are neither reduced over the processes nor sharded."""
        from torch.distributed.fsdp import FSDPModule

        return _without_reduction(module) if isinstance(module, FSDPModule) else contextlib.nullcontext()

    def join(self, modules: Sequence[torch.nn.Module]) -> None:
        """Return None: uneven inputs are not supported, because gathering parameters needs every process in every step."""

    def clip_grad_norm_(
        self, parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float, **kwargs: Any
    ) -> torch.Tensor:
        """Clip gradients and return their norm, as the base class does.

        If ``norm_type`` is infinity, this method computes the norm itself, because torch's own computation fails for an empty shard. It
        then ignores ``foreach``.
        """
        import torch

        if norm_type != math.inf:
            return super().clip_grad_norm_(parameters, max_norm, norm_type, **kwargs)
        held = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if not held:
            return torch.tensor(0.0)
        shards = [local_part(one.grad) for one in held if one.grad is not None]
        total = _largest(shards, local_part(held[0].detach()))
        scale_to_norm(shards, total, max_norm, norm_type, error_if_nonfinite=kwargs.get("error_if_nonfinite", False))
        return total

    def _settings(self, device: torch.device) -> dict[str, Any]:
        import torch
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy

        options = self.options

        def dtype(name: str | None) -> torch.dtype | None:
            found = getattr(torch, name, None) if name is not None else None
            if name is not None and not isinstance(found, torch.dtype):
                raise UsageError(
                    f"unknown dtype {name!r} in FSDPOptions",
                    why="torch has no dtype of that name",
                    hint="use param_dtype='bfloat16', for example",
                )
            return found

        return {
            "mesh": self.sharding_mesh(device),
            "reshard_after_forward": options.reshard_after_forward,
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=dtype(options.param_dtype),
                reduce_dtype=dtype(options.reduce_dtype),
                output_dtype=dtype(options.output_dtype),
                cast_forward_inputs=options.cast_forward_inputs,
            ),
            "offload_policy": CPUOffloadPolicy(pin_memory=options.pin_memory) if options.cpu_offload else OffloadPolicy(),
        }

    def _inner(self, module: torch.nn.Module) -> list[torch.nn.Module]:
        """Return the modules that are sharded separately, innermost first, as ``fully_shard`` requires."""
        import torch

        wrap = self.options.wrap
        others = [inner for inner in module.modules() if inner is not module]
        if wrap == "root":
            chosen = []
        elif wrap == "blocks":
            chosen = [block for holder in module.modules() if isinstance(holder, torch.nn.ModuleList) for block in holder]
        elif isinstance(wrap, str):
            raise UsageError(
                f"FSDPOptions(wrap={wrap!r}) is invalid",
                why="it is not a wrapping policy",
                hint="use 'blocks', 'root', a list of classes, or a function",
            )
        elif callable(wrap) and not isinstance(wrap, type):
            chosen = [inner for inner in others if wrap(inner)]
        else:
            chosen = [inner for inner in others if isinstance(inner, (wrap,) if isinstance(wrap, type) else tuple(wrap))]
        return [inner for inner in reversed(others) if any(inner is one for one in chosen) and any(True for _ in inner.parameters())]

    def _check_resettable(self, module: torch.nn.Module) -> None:
        unable = sorted(
            {type(owner).__name__ for owner in module.modules() if owns_tensors(owner) and not hasattr(owner, "reset_parameters")}
        )
        if unable:
            raise UnsupportedError(
                f"{type(module).__name__} is on the meta device and cannot be initialized",
                plugin=self.plugin,
                why=f"{', '.join(unable)} has parameters or buffers, but no method reset_parameters",
                hint="add reset_parameters(), or create the model on the CPU",
            )


def _is_on_meta(module: torch.nn.Module) -> bool:
    names = {is_meta: name for name, parameter in module.named_parameters() for is_meta in [parameter.is_meta]}
    if len(names) == 2:
        why = f"{names[True]} is on the meta device, and {names[False]} is not"
        raise UsageError(f"{type(module).__name__} is partly on the meta device", why=why, hint="create the whole model on one device")
    return True in names


def local_part(tensor: Any) -> torch.Tensor:
    """Return this process's part of a DTensor, or the tensor itself if it is not a DTensor."""
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def scale_to_norm(
    shards: Sequence[torch.Tensor], norm: torch.Tensor, max_norm: float, norm_type: float, *, error_if_nonfinite: bool
) -> None:
    """Multiply this process's shards of the gradients in place by ``max_norm / (norm + 1e-6)``, but by at most 1.

    Raises:
        RuntimeError: If ``error_if_nonfinite`` is set and the norm is infinite or NaN.
    """
    if error_if_nonfinite and not norm.isfinite():
        raise RuntimeError(f"the norm of order {norm_type} of the gradients is {norm.item()}, so they cannot be clipped")
    for shard in shards:
        shard.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0).to(shard.device))


def _largest(tensors: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """Return the largest absolute value in the tensors of all processes. It is 0 if all are empty, and NaN if one contains NaN.

    If this process's tensors are empty, the result has the dtype and device of ``like``.
    """
    import torch
    import torch.distributed as dist

    found = [tensor.detach().abs().max() for tensor in tensors if tensor.numel()]
    largest = torch.stack(found).max() if found else torch.zeros((), dtype=like.dtype, device=like.device)
    is_nan = largest.isnan()
    both = torch.stack([largest.masked_fill(is_nan, 0.0), is_nan.to(largest.dtype)])  # gloo's maximum of NaN and a number is the number
    dist.all_reduce(both, op=dist.ReduceOp.MAX)
    return both[0].masked_fill(both[1] > 0, math.nan)


@contextlib.contextmanager
def _without_reduction(module: Any) -> Iterator[None]:
    module.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        module.set_requires_gradient_sync(True)
