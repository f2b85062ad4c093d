"""Precisions that store the weights of ``Linear`` layers in fewer bits, with the package bitsandbytes.

These weights are frozen; other parameters are trained. Converted layers have bitsandbytes' own classes, because some libraries, such as
adapter libraries, look for layers of these classes. Weights are quantised on the device on which they are used. The ``to`` method of
bitsandbytes' layers cannot quantise on an out-of-tree device. Therefore, bitsandbytes' operators, which can quantise on such a device, are
called directly.
"""

from __future__ import annotations

import functools
import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, MutableMapping
from typing import TYPE_CHECKING, Any, Literal

from accelkit import Accelerator, Availability, UnsupportedError, UsageError
from accelkit_builtin.optional_package import OptionalPackage
from accelkit_builtin.precisions.linear_layers import choose_linears
from accelkit_builtin.precisions.true_precision import NarrowPrecision

if TYPE_CHECKING:
    import torch

PACKAGE = OptionalPackage("bitsandbytes", distribution="bitsandbytes", minimum="0.50", install="pip install 'accelkit[bitsandbytes]'")
ComputeDtype = Literal["bfloat16", "float16", "float32"]


class QuantizedPrecision(NarrowPrecision):
    """Base class of precisions that quantise the weights of ``Linear`` layers and use one dtype for all other floating-point tensors.

    These tensors are the other parameters, the buffers and the inputs.

    Args:
        compute_dtype: The dtype of computation, and of all floating-point tensors that are not quantised.
        ignore: Names of layers or modules. The weights of these layers, and of all layers inside these modules, are not quantised.

    Raises:
        UsageError: If ``compute_dtype`` is invalid.
    """

    def __init__(self, compute_dtype: ComputeDtype, ignore: Collection[str]) -> None:
        if compute_dtype not in ("bfloat16", "float16", "float32"):
            why = "it must be bfloat16, float16 or float32"
            raise UsageError(f"compute_dtype={compute_dtype!r} is invalid", why=why, hint="omit it to use bfloat16")
        self._dtype_name, self._ignore = compute_dtype, ignore
        needed = [one for one in self.required_capabilities if one != "dtype.bfloat16"]  # the class needs the default compute_dtype
        self.required_capabilities = tuple(dict.fromkeys([*needed, f"dtype.{compute_dtype}"]))  # type: ignore[misc] # is a ClassVar

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of computation, and of the parameters that are not quantised."""
        import torch

        found: torch.dtype = getattr(torch, self._dtype_name)
        return found

    @classmethod
    def probe(cls) -> Availability:
        return PACKAGE.probe()

    def setup(self, accelerator: Accelerator, device: torch.device) -> None:
        """Check that bitsandbytes supports the device, by quantising a small layer there and calling the layer.

        Raises:
            UnavailableError: If bitsandbytes is not installed, is too old, or cannot be imported.
            UnsupportedError: If bitsandbytes does not support this device.
        """
        import torch

        self._device = device
        self._package()
        layer = torch.nn.Linear(64, 64, bias=False, device="meta").to_empty(device=device)  # does not draw random numbers
        torch.nn.init.ones_(layer.weight)
        try:
            self._convert(layer)
            layer(torch.ones(2, 64, device=device, dtype=self.dtype)).max().item()  # item() waits until the device is done
        except (RuntimeError, ValueError, AssertionError) as error:
            raise UnsupportedError(
                f"{accelerator.name} does not support precision {self.name!r}",
                plugin=accelerator.plugin,
                why=f"bitsandbytes failed on {device}: {' '.join(str(error).split())}",
                hint="use precision='bf16-true', or ask the vendor for a bitsandbytes backend",
            ) from error

    def convert_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Quantise the weights of the ``Linear`` layers in place, cast the rest of the module to ``dtype``, and return the module.

        Complex and integer tensors are not cast. The layers remain the same objects, but get a new class and a new weight. Subclasses of
        ``Linear`` and the layers selected by ``ignore`` are not converted. If a layer shares its weight with a layer that is not converted,
        such as an embedding, the weight is not quantised. If several converted layers share a weight, each of them gets its own quantised
        copy. The copies stay equal, because they are frozen.

        Raises:
            UnsupportedError: If the module has parameters, but contains no layer that can be converted and no layer that is already
                converted.
        """
        chosen = choose_linears(module, self, converted=self._classes(), ignore=self._ignore)
        others = [layer for name, layer in module.named_modules() if name not in chosen]
        shared = {id(parameter) for layer in others for parameter in layer.parameters(recurse=False)}
        for layer in chosen.values():
            if id(layer.weight) not in shared:
                self._convert(layer)
        return super().convert_module(module)

    def optimizer_step(self, optimizer: torch.optim.Optimizer, step: Callable[..., Any], closure: Callable[[], Any] | None = None) -> Any:
        """Run ``step`` and return its result.

        Raises:
            UnsupportedError: If the optimizer is LBFGS and any of its parameters is a quantised weight. LBFGS updates all of its
                parameters as one vector, but quantised weights are frozen.
        """
        import torch

        held = (parameter for group in optimizer.param_groups for parameter in group["params"])
        is_plain = all(parameter.is_floating_point() or parameter.is_complex() for parameter in held)
        if isinstance(optimizer, torch.optim.LBFGS) and not is_plain:
            raise UnsupportedError(
                "LBFGS does not support quantised weights",
                plugin=self.plugin,
                why=f"it updates all parameters as one vector, and the weights that precision {self.name!r} has quantised are frozen",
                hint="prepare the model first, and give LBFGS [p for p in model.parameters() if p.requires_grad]",
            )
        return super().optimizer_step(optimizer, step, closure)

    @abstractmethod
    def _classes(self) -> tuple[type, ...]:
        """Return the bitsandbytes classes that converted layers have."""

    @abstractmethod
    def _quantized(self, layer: torch.nn.Linear, weight: torch.Tensor) -> tuple[torch.nn.Linear, Any]:
        """Quantise ``weight`` for ``layer``.

        Returns:
            A pair of a bitsandbytes layer and the quantised weight. The bitsandbytes layer has the sizes of ``layer`` and is on the meta
            device.
        """

    @abstractmethod
    def _load(self, layer: Any, state: MutableMapping[str, Any], prefix: str) -> None:
        """Move the quantisation state of the layer's weight, such as its scales, from the state dict to the layer.

        Called before the layer loads the state dict. If the weight in the state dict is not quantised, this method puts a quantised weight
        in its place. Without this method, bitsandbytes' layers refuse to load a state dict that they saved.
        """

    def _convert(self, layer: Any) -> None:
        made, weight = self._quantized(layer, layer.weight.detach().to(self._device))
        vars(layer).update({name: value for name, value in vars(made).items() if name not in vars(layer)})
        layer.__class__ = type(made)
        layer.weight = weight
        layer.register_load_state_dict_pre_hook(functools.partial(_loading, self))

    def _package(self) -> Any:
        package = PACKAGE.load(self)
        logger = logging.getLogger("bitsandbytes.autograd._functions")
        if _is_news not in logger.filters:
            logger.addFilter(_is_news)
        return package


def _is_news(record: logging.LogRecord) -> bool:
    """Return False for the message that bitsandbytes logs in every forward pass about casting inputs, and True for any other record."""
    return not str(record.msg).startswith("MatMul8bitLt: inputs will be cast")


def _loading(precision: QuantizedPrecision, layer: Any, state: MutableMapping[str, Any], prefix: str, *rest: Any) -> None:
    precision._load(layer, state, prefix)
