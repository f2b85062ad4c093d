"""The base of broken accelerators: the fake XPU, and between it and whoever calls, a place for a fault. Imports no torch at module
level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelkit_fake_xpu.accelerator import FakeXPUAccelerator


class Broken(FakeXPUAccelerator):
    """The fake XPU with a fault."""

    def load(self) -> None:
        super().load()
        self.install()

    def install(self) -> None:
        """Put the fault in place; torch and the device are there."""
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
            """Every ATen call that concerns the device passes through ``fault``; those of the CPU, the oracle's among them, do not."""

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                kwargs = kwargs or {}
                if is_here(args) or is_here(kwargs.values()):
                    return faulty(func.name().removeprefix("aten::"), lambda: func(*args, **kwargs), args, kwargs, func)
                return func(*args, **kwargs)

        Faults().__enter__()

    def fault(self, name: str, call: Callable[[], Any], args: Any, kwargs: Any, func: Any) -> Any:
        """One ATen call on the device.

        Args:
            name: Its overload, as ``add.Tensor``.
            call: Makes it, as it is.
            args, kwargs: Its arguments.
            func: The overload, to be called with others.
        """
        return call()


def changed(result: Any, change: Callable[[Any], Any]) -> Any:
    """The result with ``change`` made of every floating-point tensor in it that is no view of something."""
    import torch
    from torch.utils._pytree import tree_map

    def one(leaf: Any) -> Any:
        return change(leaf) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.numel() else leaf

    return tree_map(one, result)


def is_pure(func: Any) -> bool:
    """Whether the call makes something new: it writes into no argument, and returns no view of one."""
    schema = func._schema
    return not schema.is_mutable and all(value.alias_info is None for value in schema.returns)


class Unbroken(Broken):
    """The fake XPU with a fault that does nothing: what every test must pass, though each call goes through Python."""
