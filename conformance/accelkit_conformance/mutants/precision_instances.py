"""Precisions that are slow, that keep or share objects wrongly, that do not restore a global setting, or that fail when copied, compiled,
set up again or used in several processes."""

from __future__ import annotations

import contextlib
import threading
from contextlib import AbstractContextManager
from typing import Any

from accelkit import Accelerator
from accelkit_builtin.precisions.bf16_mixed import BFloat16Mixed
from accelkit_builtin.precisions.bf16_true import BFloat16
from accelkit_builtin.precisions.p16_mixed import Float16Mixed
from accelkit_builtin.precisions.p32_true import Float32
from accelkit_conformance.mutants import mutant


@mutant("precision_state", "copies of a precision", kind="precision", base="bf16-true")
class HoldsALock(BFloat16):
    """An instance has a lock, which cannot be copied or pickled, so prepared modules cannot be copied or pickled either."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()


@mutant("precision_state", "copies of a precision", kind="precision", base="16-mixed")
class SharesItsScaler(Float16Mixed):
    """``deepcopy`` of the precision returns the precision itself, so steps with the original also change the scale of the copy."""

    def __deepcopy__(self, memo: Any) -> Any:
        return self


@mutant("precision_state", "compilation", kind="precision", base="bf16-mixed")
class ReturnsNarrowResultsWhenCompiled(BFloat16Mixed):
    """Results are not converted to float32 while torch.compile traces the module."""

    def convert_output(self, data: Any) -> Any:
        import torch

        return data if torch.compiler.is_compiling() else super().convert_output(data)


@mutant("precision_lifecycle", "cost", kind="precision", base="32-true")
class OverridesForNothing(Float32):
    """Methods are overridden by copies of the defaults, which makes every step slower."""

    def convert_input(self, data: Any) -> Any:
        return data

    def convert_output(self, data: Any) -> Any:
        return data


@mutant("precision_lifecycle", "cost", kind="precision", base="32-true")
class EntersAnEmptyContext(Float32):
    """Every forward pass enters a context manager that does nothing."""

    def forward_context(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()


@mutant("precision_lifecycle", "teardown", kind="precision", base="32-true")
class LowersMatmulPrecision(Float32):
    """``setup`` lowers the precision of float32 matmuls for the whole process, and ``teardown`` does not restore it."""

    def setup(self, accelerator: Accelerator, device: Any) -> None:
        import torch

        torch.set_float32_matmul_precision("medium")


@mutant("precision_lifecycle", "teardown", kind="precision", base="16-mixed")
class CannotStartAgain(Float16Mixed):
    """After ``teardown``, ``setup`` does not create a scaler again."""

    _was_torn_down = False

    def _make_scaler(self) -> None:
        if not self._was_torn_down:
            super()._make_scaler()

    def teardown(self) -> None:
        self._was_torn_down = True
        del self._scaler


@mutant("precision_lifecycle", "references", kind="precision", base="32-true")
class KeepsTheAccelerator(Float32):
    """The precision stores a reference to the accelerator that it receives."""

    def setup(self, accelerator: Accelerator, device: Any) -> None:
        self._accelerator = accelerator


@mutant("precision_lifecycle", "references", kind="precision", base="bf16-true")
class KeepsEveryBatch(BFloat16):
    """All arguments of forward passes are kept, so memory is never released."""

    def convert_input(self, data: Any) -> Any:
        self._kept = [*getattr(self, "_kept", []), data]
        return super().convert_input(data)


@mutant("precision_lifecycle", "shared state", kind="precision", base="16-mixed")
class SharesAScaler(Float16Mixed):
    """All instances use one scaler."""

    _shared: Any = None

    def _make_scaler(self) -> None:
        super()._make_scaler()
        if SharesAScaler._shared is None:
            SharesAScaler._shared = self._scaler
        self._scaler = SharesAScaler._shared


@mutant("precision_distributed", "agreement of processes", kind="precision", base="16-mixed")
class ScalesByRank(Float16Mixed):
    """Each process has a scale of its own, so a reduction over the processes gives wrong gradients."""

    def _make_scaler(self) -> None:
        import torch

        super()._make_scaler()
        if torch.distributed.is_initialized():
            self._scaler._scale = 1024.0 * (1 + torch.distributed.get_rank())


@mutant("precision_distributed", "agreement of processes", kind="precision", base="32-true")
class RoundsOnOneProcess(Float32):
    """Only rank 0 computes in float32; the other ranks round their inputs to bfloat16."""

    def convert_input(self, data: Any) -> Any:
        import torch

        from accelkit import tree_map

        if not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0:
            return data
        return tree_map(lambda leaf: leaf.bfloat16().float() if isinstance(leaf, torch.Tensor) else leaf, data)


@mutant("precision_distributed", "sharded parameters", kind="precision", base="bf16-true")
class LooksIntoParameters(BFloat16):
    """Before a step, gradients are copied to NumPy arrays and back. This fails for the sharded gradients of ``fsdp``."""

    def optimizer_step(self, optimizer: Any, step: Any, closure: Any = None) -> Any:
        import torch

        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.copy_(torch.from_numpy(parameter.grad.detach().cpu().float().numpy()))
        return super().optimizer_step(optimizer, step, closure)
