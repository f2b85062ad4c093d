"""The precision specification: how numbers are stored and computed.

Conversion of inputs, a context around the forward pass and conversion of outputs are Lightning Fabric's division of the work. A precision
receives the accelerator when it is made and never keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    import torch

    from accelkit.specs.accelerator import Accelerator

T = TypeVar("T")


class Precision:
    """How numbers are stored and computed, selected by name.

    A method that a subclass leaves as it is costs nothing: the runtime asks once which were overridden.

    Attributes:
        name: The name it was selected by, as ``bf16-mixed``. Set by whoever loaded the class.
        plugin: ``dist==version``.
        required_capabilities: What the accelerator must not have declared ``none``, as ``("autocast.bfloat16",)``.
    """

    required_capabilities: ClassVar[tuple[str, ...]] = ()

    name: str = ""
    plugin: str = ""

    @classmethod
    def for_accelerator(cls, accelerator: Accelerator, device: torch.device) -> Precision:
        """An instance for this device. The default takes no argument."""
        return cls()

    def convert_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """The module with parameters and buffers stored as this precision wants, in place where possible."""
        return module

    def convert_input(self, data: T) -> T:
        """A forward pass's arguments (any nesting; tensors of any dtype) as this precision computes with them."""
        return data

    def forward_context(self) -> AbstractContextManager[Any]:
        """Entered around every forward pass of a prepared module."""
        return nullcontext()

    def convert_output(self, data: T) -> T:
        """A forward pass's result (any nesting) as the training loop expects it."""
        return data

    def module_init_context(self) -> AbstractContextManager[Any]:
        """Entered around the construction of modules, so that they are born in the right dtype."""
        return nullcontext()

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Run the backward pass; ``kwargs`` are ``torch.Tensor.backward``'s."""
        loss.backward(**kwargs)  # type: ignore[no-untyped-call]

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold of this precision (a scaler's state)."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""

    def __repr__(self) -> str:
        return f"<precision {self.name or type(self).__name__}>"
