"""``transformer-engine``: ``Linear`` and ``LayerNorm`` of NVIDIA's Transformer Engine, in float8; everything else as ``bf16-true``."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from accelkit import Accelerator, UnsupportedError
from accelkit_builtin.precisions.linear_layers import choose_linears
from accelkit_builtin.precisions.optional_package import load_package
from accelkit_builtin.precisions.true_precision import NarrowPrecision

if TYPE_CHECKING:
    import torch

_MULTIPLE = 16  # of which its float8 kernels want both sides of a weight


@dataclasses.dataclass(frozen=True, slots=True)
class TransformerEngineOptions:
    """What Transformer Engine is told.

    Args:
        recipe: One of ``transformer_engine.common.recipe``, as ``DelayedScaling(amax_history_len=16)``. None for its default on this GPU.
        ignore: Layers that stay torch's: names or parts of names between dots, as ``lm_head`` or ``blocks.0``, with everything inside.
    """

    recipe: Any = None
    ignore: Collection[str] = ()


class TransformerEngine(NarrowPrecision):
    """float8 by Transformer Engine, parameters in bfloat16.

    Args:
        options: What it is told.
    """

    required_capabilities: ClassVar[tuple[str, ...]] = ("transformer_engine",)
    dtype_name = "bfloat16"

    def __init__(self, options: TransformerEngineOptions | None = None) -> None:
        self.options = options or TransformerEngineOptions()

    def setup(self, accelerator: Accelerator, device: torch.device) -> None:
        """Ask Transformer Engine whether this GPU computes in float8. Initialises CUDA.

        Raises:
            UnsupportedError: If it does not, or the device is none of CUDA's.
            UnavailableError: If the package is not installed.
        """
        what, hint = f"{accelerator.name} cannot do {self.name}", "use precision='fp8' or 'bf16-mixed'"
        if device.type != "cuda":
            why = f"NVIDIA's Transformer Engine computes on CUDA devices, and this is {device}"
            raise UnsupportedError(what, plugin=accelerator.plugin, why=why, hint=hint)
        can, reason = self._package().is_fp8_available(return_reason=True)
        if not can:
            raise UnsupportedError(what, plugin=accelerator.plugin, why=f"Transformer Engine says: {reason}", hint=hint)
        self._device = device

    def convert_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """The module with Transformer Engine's layers in the places of torch's, with copies of their parameters. Hooks on those layers are
        not carried over. A module that has such layers already keeps those that it has.

        Raises:
            UnsupportedError: If it has parameters, and no ``Linear`` whose sides are multiples of 16.
        """
        import torch

        te = self._package()
        chosen = choose_linears(module, self, converted=self._classes(), ignore=self.options.ignore, multiples=(_MULTIPLE, _MULTIPLE))
        made: dict[int, torch.nn.Module] = {}
        for linear in chosen.values():
            has_bias = linear.bias is not None
            layer = te.Linear(linear.in_features, linear.out_features, bias=has_bias, params_dtype=self.dtype, device=self._device)
            made[id(linear)] = _with_parameters_of(linear, layer)
        for norm in module.modules():
            if type(norm) is torch.nn.LayerNorm and norm.elementwise_affine and norm.bias is not None:
                layer = te.LayerNorm(norm.normalized_shape, eps=norm.eps, dtype=self.dtype, device=self._device)
                made[id(norm)] = _with_parameters_of(norm, layer)
        for parent in [*module.modules()]:
            for name, child in parent._modules.items():
                if id(child) in made:
                    parent._modules[name] = made[id(child)]
        return super().convert_module(made.get(id(module), module))

    @contextlib.contextmanager
    def _in_float8(self) -> Iterator[None]:
        with super().forward_context(), self._package().autocast(enabled=True, recipe=self.options.recipe):
            yield

    def forward_context(self) -> AbstractContextManager[None]:
        return self._in_float8()

    def _classes(self) -> tuple[type, ...]:
        te = self._package()
        return te.Linear, te.LayerNormLinear, te.LayerNormMLP, te.TransformerLayer

    def _package(self) -> Any:
        install = "pip install --no-build-isolation 'transformer-engine[pytorch]'"
        return load_package(self, "transformer_engine.pytorch", distribution="transformer-engine", minimum="2.10", install=install)


def _with_parameters_of(layer: torch.nn.Module, made: Any) -> torch.nn.Module:
    import torch

    with torch.no_grad():
        for name, parameter in layer.named_parameters(recurse=False):
            made.get_parameter(name).copy_(parameter).requires_grad_(parameter.requires_grad)
    result: torch.nn.Module = made.train(layer.training)
    return result
