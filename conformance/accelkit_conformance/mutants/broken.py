"""The base class of the mutants of the fake XPU. Most mutants override ``fault`` or ``install`` to add their fault.

This module does not import torch at module level.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelkit_fake_xpu.accelerator import FakeXPUAccelerator


class Broken(FakeXPUAccelerator):
    """The base class of accelerator mutants. Each mutant is the fake XPU with a fault.

    Most mutants override ``fault`` or ``install``.
    """

    def load(self) -> None:
        super().load()
        self.install()

    def install(self) -> None:
        """Install the fault. This method is called after torch and the device have been loaded."""
        faulty = self.fault

        import torch
        from torch.utils._python_dispatch import TorchDispatchMode

        def is_here(values: Any) -> bool:
            for value in values:
                if isinstance(value, torch.Tensor | torch.device):
                    if (value.device.type if isinstance(value, torch.Tensor) else value.type) == "fake_xpu":
                        return True
                elif isinstance(value, list | tuple) and is_here(value):
                    return True
            return False

        class Faults(TorchDispatchMode):
            """Dispatch mode that passes ATen calls on the device to the mutant's method ``fault``.

            A call is passed to ``fault`` if one of its arguments is the device or a tensor on the device. All other calls, such as those
            that compute expected results on the CPU, are unchanged.
            """

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                kwargs = kwargs or {}
                if is_here(args) or is_here(kwargs.values()):
                    return faulty(func.name().removeprefix("aten::"), lambda: func(*args, **kwargs), args, kwargs, func)
                return func(*args, **kwargs)

        Faults().__enter__()

    def fault(self, name: str, call: Callable[[], Any], args: Any, kwargs: Any, func: Any) -> Any:
        """Make an ATen call on the device and return its result. Mutants override this method.

        Args:
            name: The name of the overload, such as ``add.Tensor``. The name of a default overload has no suffix, as in ``topk``.
            call: A function that makes the call without the fault.
            args: The positional arguments of the call.
            kwargs: The keyword arguments of the call.
            func: The overload itself. A mutant can call it with different arguments.
        """
        return call()


def changed(result: Any, change: Callable[[Any], Any]) -> Any:
    """Apply ``change`` to each non-empty floating-point tensor in ``result``, and return the changed result.

    ``result`` is the result of a call.
    """
    import torch
    from torch.utils._pytree import tree_map

    def one(leaf: Any) -> Any:
        return change(leaf) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.numel() else leaf

    return tree_map(one, result)


def is_pure(func: Any) -> bool:
    """Return whether an overload only creates new tensors: it neither writes to an argument nor returns a view of an argument."""
    schema = func._schema
    return not schema.is_mutable and all(value.alias_info is None for value in schema.returns)


class Unbroken(Broken):
    """The fake XPU without a fault. No test may fail on it, because the dispatch mode that adds faults must not itself break a plugin."""
