"""``fp8``: matrix products of ``Linear`` layers in float8, with the package torchao; everything else is as in ``bf16-mixed``.

Only layers whose ``in_features`` and ``out_features`` are multiples of 16 compute in float8. Parameters, their gradients and the
optimizer's state stay in float32. Before each product, in the forward and in the backward pass, torchao scales both operands to the range
of their float8 dtype. This dtype is e4m3 for inputs and weights. For output gradients, it is by default e5m2, which has more range and less
precision. The result of a product is bfloat16.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Literal, get_args

from accelkit import Accelerator, Availability, UnsupportedError, UsageError
from accelkit_builtin.optional_package import OptionalPackage
from accelkit_builtin.precisions.autocast import AutocastOptions, AutocastPrecision
from accelkit_builtin.precisions.linear_layers import choose_linears

if TYPE_CHECKING:
    import torch

Recipe = Literal["tensorwise", "rowwise"]
PACKAGE = OptionalPackage("torchao.float8", distribution="torchao", minimum="0.18", install="pip install 'accelkit[fp8]'")
_MULTIPLE = 16  # float8 kernels require both dimensions of a weight to be multiples of this


@dataclasses.dataclass(frozen=True, slots=True)
class Float8Options:
    """How torchao computes in float8.

    Args:
        recipe: The granularity of the scales. ``tensorwise`` uses one scale per tensor and is the fastest. ``rowwise`` uses one scale per
            row and is more accurate. Output gradients are in e5m2 with ``tensorwise`` and in e4m3 with ``rowwise``.
        ignore: Names of ``Linear`` layers that compute in bfloat16 instead of float8. The name of a module selects all layers inside the
            module. Instead of a full dotted name, one or more consecutive components of the name can be given: ``blocks.0`` also
            selects ``encoder.blocks.0``.
        pad: Whether the inner dimension of a product is padded with zeros to a multiple of 16. For the gradient of a weight, the inner
            dimension is the number of rows of the layer's input. Without padding, most devices raise an error if this number is not a
            multiple of 16, as can happen when the last batch is not full.
    """

    recipe: Recipe = "tensorwise"
    ignore: Collection[str] = ()
    pad: bool = True


class Float8(AutocastPrecision):
    """float8 matrix products with float32 parameters, under bfloat16 autocast.

    Args:
        options: Options for torchao, such as the recipe.
        autocast: Options for autocast.

    Raises:
        UsageError: If ``options.recipe`` is unknown.
    """

    required_capabilities = ("fp8", "autocast.bfloat16")
    dtype_name = "bfloat16"

    def __init__(self, options: Float8Options | None = None, autocast: AutocastOptions | None = None) -> None:
        super().__init__(autocast)
        self.options = options or Float8Options()
        if self.options.recipe not in get_args(Recipe):
            why = f"it must be one of {', '.join(get_args(Recipe))}"
            raise UsageError(f"Float8Options(recipe={self.options.recipe!r}) is invalid", why=why, hint="omit it to use the fastest recipe")

    @classmethod
    def probe(cls) -> Availability:
        return PACKAGE.probe()

    def setup(self, accelerator: Accelerator, device: torch.device) -> None:
        """Check that the device can compute in float8, by multiplying two small matrices.

        Raises:
            UnavailableError: If torchao is not installed.
            UnsupportedError: If torch does not support bfloat16 autocast for this device type, if the accelerator declares that the device
                does not support fp8, or if multiplying the matrices fails or gives a wrong result.
        """
        import torch

        super().setup(accelerator, device)
        hint = "use precision='bf16-mixed'"
        if accelerator.capabilities(device)["fp8"] == "none":
            why = f"it declares that {device} does not support fp8"
            raise UnsupportedError(
                f"{accelerator.name} does not support precision {self.name!r}", plugin=accelerator.plugin, why=why, hint=hint
            )
        self._torchao()
        layer = torch.nn.Linear(_MULTIPLE, _MULTIPLE, bias=False, device="meta").to_empty(device=device)  # does not draw random numbers
        torch.nn.init.ones_(layer.weight)
        self._convert(layer)
        self._class = type(layer)
        try:
            with self.forward_context(), torch.no_grad():
                found = layer(torch.ones(_MULTIPLE, _MULTIPLE, device=device)).max().item()
            if found != _MULTIPLE:
                raise RuntimeError(f"the sum of {_MULTIPLE} ones is {found}")
        except (RuntimeError, AssertionError) as error:
            raise UnsupportedError(
                f"{accelerator.name} does not support precision {self.name!r}",
                plugin=accelerator.plugin,
                why=f"multiplying float8 matrices failed on {device}: {' '.join(str(error).split())}",
                hint=f"{hint}, or ask the vendor to declare fp8 as none, or to add a kernel for torch._scaled_mm",
            ) from error

    def convert_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Convert in place the ``Linear`` layers whose ``in_features`` and ``out_features`` are multiples of 16, and return the module.

        The layers remain the same objects and get another class.

        Raises:
            UnsupportedError: If the module has parameters, but contains no layer that can be converted and no layer that is already
                converted.
        """
        chosen = choose_linears(module, self, converted=(self._class,), ignore=self.options.ignore, multiples=(_MULTIPLE, _MULTIPLE))
        for layer in chosen.values():
            self._convert(layer)
        return module

    def _convert(self, layer: torch.nn.Linear) -> None:
        """Convert a layer in place, so that it keeps its hooks.

        torchao creates a second layer with the same parameters. If the second layer has attributes that the user's layer lacks, these
        attributes are copied into the user's layer.
        """
        torchao = self._torchao()
        from accelkit_builtin.precisions.float8_linear import AutocastFloat8Linear

        config = dataclasses.replace(torchao.Float8LinearConfig.from_recipe_name(self.options.recipe), pad_inner_dim=self.options.pad)
        made = torchao.convert_to_float8_training(layer, config=config)
        vars(layer).update({name: value for name, value in vars(made).items() if name not in vars(layer)})
        layer.__class__ = AutocastFloat8Linear

    def _torchao(self) -> Any:
        return PACKAGE.load(self)
