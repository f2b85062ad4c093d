"""``transformer-engine``: NVIDIA Transformer Engine computes ``Linear`` layers in float8.

Transformer Engine also computes ``LayerNorm`` layers, but not in float8. Everything else is as in ``bf16-true``.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from accelkit import Accelerator, Availability, UnsupportedError
from accelkit_builtin.optional_package import OptionalPackage
from accelkit_builtin.precisions.linear_layers import choose_linears, is_ignored
from accelkit_builtin.precisions.true_precision import NarrowPrecision

if TYPE_CHECKING:
    import torch

PACKAGE = OptionalPackage(
    "transformer_engine.pytorch",
    distribution="transformer-engine",
    minimum="2.10",
    install="pip install --no-build-isolation 'transformer-engine[pytorch]'",
)
_MULTIPLE = 16  # Transformer Engine's float8 kernels require both dimensions of a weight to be multiples of this


@dataclasses.dataclass(frozen=True, slots=True)
class TransformerEngineOptions:
    """Options for Transformer Engine.

    Args:
        recipe: A recipe of ``transformer_engine.common.recipe``, such as ``DelayedScaling(amax_history_len=16)``. None selects Transformer
            Engine's default for this GPU.
        ignore: Names of ``Linear`` and ``LayerNorm`` layers that are not replaced. The name of a module selects all ``Linear`` and
            ``LayerNorm`` layers inside the module. Instead of a full dotted name, one or more consecutive components of the name can be
            given: ``blocks.0`` also selects ``encoder.blocks.0``.
    """

    recipe: Any = None
    ignore: Collection[str] = ()


class TransformerEngine(NarrowPrecision):
    """float8 matrix products computed by Transformer Engine, with bfloat16 parameters.

    Args:
        options: Options for Transformer Engine.
    """

    required_capabilities: ClassVar[tuple[str, ...]] = ("transformer_engine", "dtype.bfloat16")
    dtype_name = "bfloat16"

    def __init__(self, options: TransformerEngineOptions | None = None) -> None:
        self.options = options or TransformerEngineOptions()

    @classmethod
    def probe(cls) -> Availability:
        return PACKAGE.probe()

    def setup(self, accelerator: Accelerator, device: torch.device) -> None:
        """Check that Transformer Engine can compute in float8 on this GPU. The check initialises CUDA.

        Raises:
            UnsupportedError: If Transformer Engine cannot compute in float8 on this GPU, or the device is not a CUDA device.
            UnavailableError: If Transformer Engine is not installed.
        """
        what, hint = f"{accelerator.name} does not support precision {self.name!r}", "use precision='fp8' or 'bf16-mixed'"
        if device.type != "cuda":
            why = f"NVIDIA's Transformer Engine needs a CUDA device, got {device}"
            raise UnsupportedError(what, plugin=accelerator.plugin, why=why, hint=hint)
        can, reason = self._package().is_fp8_available(return_reason=True)
        if not can:
            raise UnsupportedError(what, plugin=accelerator.plugin, why=f"Transformer Engine reports: {reason}", hint=hint)
        self._device = device

    def convert_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Replace ``Linear`` and ``LayerNorm`` layers of the module with layers of Transformer Engine, and return the module.

        If the module itself is such a layer, return the new layer. Floating-point parameters and buffers are cast to bfloat16.

        A ``Linear`` layer is replaced if its ``in_features`` and ``out_features`` are multiples of 16. A ``LayerNorm`` layer is replaced if
        it has a weight and a bias. Instances of subclasses, and layers that ``ignore`` selects, are not replaced. A new layer gets copies
        of the replaced layer's parameters, but not its hooks. Layers of Transformer Engine that the module already contains are kept. If a
        name in ``ignore`` matches no layer or module, this method warns.

        Raises:
            UnsupportedError: If the module has parameters, but contains no ``Linear`` layer that can be replaced and none of these layers
                of Transformer Engine: ``Linear``, ``LayerNormLinear``, ``LayerNormMLP`` and ``TransformerLayer``.
        """
        import torch

        te = self._package()
        chosen = choose_linears(module, self, converted=self._classes(), ignore=self.options.ignore, multiples=(_MULTIPLE, _MULTIPLE))
        made: dict[int, torch.nn.Module] = {}
        for linear in chosen.values():
            has_bias = linear.bias is not None
            layer = te.Linear(linear.in_features, linear.out_features, bias=has_bias, params_dtype=self.dtype, device=self._device)
            made[id(linear)] = _with_parameters_of(linear, layer)
        for name, norm in module.named_modules():
            is_replaced = type(norm) is torch.nn.LayerNorm and not is_ignored(name, self.options.ignore)
            if is_replaced and norm.elementwise_affine and norm.bias is not None:
                layer = te.LayerNorm(norm.normalized_shape, eps=norm.eps, dtype=self.dtype, device=self._device)
                made[id(norm)] = _with_parameters_of(norm, layer)
        for path, layer in [*module.named_modules(remove_duplicate=False)]:
            if path and id(layer) in made:
                module.set_submodule(path, made[id(layer)])
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
        return PACKAGE.load(self)


def _with_parameters_of(layer: torch.nn.Module, made: Any) -> torch.nn.Module:
    import torch

    with torch.no_grad():
        for name, parameter in layer.named_parameters(recurse=False):
            made.get_parameter(name).copy_(parameter).requires_grad_(parameter.requires_grad)
    result: torch.nn.Module = made.train(layer.training)
    return result
