"""Precisions that store, convert or return tensors incorrectly, or set a wrong default dtype."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from accelkit_builtin.precisions.bf16_mixed import BFloat16Mixed
from accelkit_builtin.precisions.bf16_true import BFloat16
from accelkit_builtin.precisions.p64_true import Float64
from accelkit_conformance.mutants import mutant


@mutant("precision_dtypes", "the declared dtype", kind="precision", base="64-true")
class StoresAnotherDtype(Float64):
    """Parameters and inputs are float32, although the name of the precision is ``64-true``."""

    dtype_name = "float32"


@mutant("precision_dtypes", "the declared dtype", kind="precision", base="bf16-mixed")
class SwitchesAutocastOff(BFloat16Mixed):
    """Forward passes run in an autocast region that is disabled, so they compute in float32."""

    def forward_context(self) -> AbstractContextManager[Any]:
        import torch

        return torch.autocast(self._device_type, self._dtype, enabled=False)


@mutant("precision_dtypes", "conversion of arguments", kind="precision", base="bf16-true")
class ConvertsOnlyTheTop(BFloat16):
    """An argument is converted only if it is a tensor or a dict of tensors. Tensors that are nested in any other way are not converted."""

    def convert_input(self, data: Any) -> Any:
        import torch

        def one(value: Any) -> Any:
            return value.to(self.dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

        def level(value: Any) -> Any:
            return {key: one(item) for key, item in value.items()} if isinstance(value, dict) else one(value)

        return {key: level(item) for key, item in data.items()} if isinstance(data, dict) else tuple(level(item) for item in data)


@mutant("precision_dtypes", "conversion of arguments", kind="precision", base="bf16-true")
class ConvertsIntegers(BFloat16):
    """Integer tensors are converted to bfloat16, which rounds indices above 256."""

    def convert_input(self, data: Any) -> Any:
        import torch

        from accelkit import tree_map

        return tree_map(lambda leaf: leaf.to(self.dtype) if isinstance(leaf, torch.Tensor) and leaf.dtype != torch.bool else leaf, data)


@mutant("precision_dtypes", "conversion of arguments", kind="precision", base="bf16-true")
class ConvertsTheCallersBatch(BFloat16):
    """``convert_input`` also writes the converted tensors into the dicts inside the caller's batch."""

    def convert_input(self, data: Any) -> Any:
        for value in data.values() if isinstance(data, dict) else data:
            if isinstance(value, dict):
                value.update(super().convert_input(value))
        return super().convert_input(data)


@mutant("precision_dtypes", "conversion of results", kind="precision", base="bf16-mixed")
class ReturnsWhatWasComputed(BFloat16Mixed):
    """Results stay in bfloat16, so losses are computed in bfloat16."""

    def convert_output(self, data: Any) -> Any:
        return data


@mutant("precision_dtypes", "conversion of results", kind="precision", base="bf16-mixed")
class WidensOnlyATensor(BFloat16Mixed):
    """A result that is a tensor is converted to float32, but tensors in dicts and lists are not."""

    def convert_output(self, data: Any) -> Any:
        import torch

        return super().convert_output(data) if isinstance(data, torch.Tensor) else data


@mutant("precision_dtypes", "contexts", kind="precision", base="bf16-true")
class LeavesTheDefaultDtype(BFloat16):
    """If a forward pass raises an error, the default dtype stays bfloat16."""

    @contextlib.contextmanager
    def forward_context(self) -> Iterator[None]:  # type: ignore[override]
        import torch

        before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        yield
        torch.set_default_dtype(before)


@mutant("precision_dtypes", "contexts", kind="precision", base="64-true")
class CreatesAnotherDtype(Float64):
    """Inside ``tensor_init_context`` and ``module_init_context``, the default dtype is float16 instead of float64."""

    def tensor_init_context(self) -> AbstractContextManager[None]:
        import torch

        from accelkit_builtin.precisions.casting import default_dtype

        return default_dtype(torch.float16)


@mutant("precision_dtypes", "structure", kind="precision", base="bf16-true")
class MakesNewParameters(BFloat16):
    """``convert_module`` replaces every parameter with a new parameter that requires a gradient, even if the original was frozen."""

    def convert_module(self, module: Any) -> Any:
        import torch

        for layer in module.modules():
            for name, parameter in list(layer.named_parameters(recurse=False)):
                setattr(layer, name, torch.nn.Parameter(parameter.detach().to(self.dtype)))
        return super().convert_module(module)
