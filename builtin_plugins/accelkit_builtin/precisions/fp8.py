"""``fp8``: the matrix products of ``Linear`` layers in float8, forward and backward, by the package torchao. The rest is ``bf16-mixed``.

Parameters, gradients and the optimizer's state stay float32. Each product scales its operands to the range of their float8 dtype first
(forward e4m3; gradients e5m2, which has more range and less precision), and gives bfloat16.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Literal, get_args

from accelkit import Accelerator, UnsupportedError, UsageError
from accelkit_builtin.precisions.autocast import AutocastOptions, AutocastPrecision
from accelkit_builtin.precisions.linear_layers import choose_linears
from accelkit_builtin.precisions.optional_package import load_package

if TYPE_CHECKING:
    import torch

Recipe = Literal["tensorwise", "rowwise"]
_MULTIPLE = 16  # of which float8 kernels want both sides of a weight


@dataclasses.dataclass(frozen=True, slots=True)
class Float8Options:
    """How torchao computes in float8.

    Args:
        recipe: What shares one scale. ``tensorwise``: a tensor, the fastest. ``rowwise``: a row, more exact; gradients are e4m3 too.
        ignore: Layers that stay in bfloat16: names or parts of names between dots, as ``lm_head`` or ``blocks.0``, with everything inside.
        pad: Whether the inner side of a product is filled with zeros to a multiple of 16 where it is none, as in a last batch that is not
            full. Without, it is an error on most devices.
    """

    recipe: Recipe = "tensorwise"
    ignore: Collection[str] = ()
    pad: bool = True


class Float8(AutocastPrecision):
    """float8 products over float32 parameters, under bfloat16 autocast.

    Args:
        options: How.
        autocast: Options of autocast.

    Raises:
        UsageError: If the recipe is none.
    """

    required_capabilities = ("fp8", "autocast.bfloat16")
    dtype_name = "bfloat16"

    def __init__(self, options: Float8Options | None = None, autocast: AutocastOptions | None = None) -> None:
        super().__init__(autocast)
        self.options = options or Float8Options()
        if self.options.recipe not in get_args(Recipe):
            why = f"one of {', '.join(get_args(Recipe))} is expected"
            raise UsageError(f"Float8Options(recipe={self.options.recipe!r})", why=why, hint="leave it out for the fastest")

    def setup(self, accelerator: Accelerator, device: torch.device) -> None:
        """Multiply two small matrices on the device.

        Raises:
            UnavailableError: If torchao is not installed.
            UnsupportedError: If this device cannot do it, whatever its kind declares.
        """
        import torch

        super().setup(accelerator, device)
        hint = "use precision='bf16-mixed'"
        if accelerator.capabilities(device)["fp8"] == "none":
            why = f"it declares that {device} has no fp8"
            raise UnsupportedError(f"{accelerator.name} cannot do {self.name}", plugin=accelerator.plugin, why=why, hint=hint)
        self._torchao()
        layer = torch.nn.Linear(_MULTIPLE, _MULTIPLE, bias=False, device="meta").to_empty(device=device)  # draws no random numbers
        torch.nn.init.ones_(layer.weight)
        self._convert(layer)
        self._class = type(layer)
        try:
            with self.forward_context(), torch.no_grad():
                found = layer(torch.ones(_MULTIPLE, _MULTIPLE, device=device)).max().item()
            if found != _MULTIPLE:
                raise RuntimeError(f"{_MULTIPLE} times 1 is {found}")
        except (RuntimeError, AssertionError) as error:
            raise UnsupportedError(
                f"{accelerator.name} cannot do {self.name}",
                plugin=accelerator.plugin,
                why=f"a product of float8 matrices on {device} says: {' '.join(str(error).split())}",
                hint=f"{hint}, or ask the vendor to declare none for the capability fp8, or to have a kernel of torch._scaled_mm",
            ) from error

    def convert_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """The same module, its ``Linear`` layers the same objects with another class, where both sides are multiples of 16.

        Raises:
            UnsupportedError: If it has parameters, and none is in such a layer.
        """
        chosen = choose_linears(module, self, converted=(self._class,), ignore=self.options.ignore, multiples=(_MULTIPLE, _MULTIPLE))
        for layer in chosen.values():
            self._convert(layer)
        return module

    def _convert(self, layer: torch.nn.Linear) -> None:
        """torchao makes another layer of the same parameters; what it has more is put into the user's, which keeps hooks."""
        torchao = self._torchao()
        from accelkit_builtin.precisions.float8_linear import AutocastFloat8Linear

        config = dataclasses.replace(torchao.Float8LinearConfig.from_recipe_name(self.options.recipe), pad_inner_dim=self.options.pad)
        made = torchao.convert_to_float8_training(layer, config=config)
        vars(layer).update({name: value for name, value in vars(made).items() if name not in vars(layer)})
        layer.__class__ = AutocastFloat8Linear

    def _torchao(self) -> Any:
        install = "pip install 'accelkit[fp8]'"
        return load_package(self, "torchao.float8", distribution="torchao", minimum="0.18", install=install)
