"""The precision specification: how numbers are stored and computed.

The division of the work into conversion of inputs, a context around the forward pass and conversion of outputs is Lightning
Fabric's. The documentation has a complete example, on the page about precisions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

    def setup(self, accelerator: Accelerator, device: torch.device) -> None:
        """Called once by each process's Runtime at first use, before anything is prepared. The accelerator is not to be kept.

        Raises:
            UnsupportedError: If this device cannot do it.
        """

    def teardown(self) -> None:
        """Called by ``Runtime.teardown`` if ``setup`` was called."""

    # -- modules and data ---------------------------------------------------------------------------------------------

    def convert_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """The module with parameters and buffers stored as this precision wants, in place where possible."""
        return module

    def convert_input(self, data: T) -> T:
        """A forward pass's arguments (any nesting; tensors of any dtype) as this precision computes with them."""
        return data

    def convert_output(self, data: T) -> T:
        """A forward pass's result (any nesting) as the training loop expects it."""
        return data

    def check_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Warn or raise if this optimizer cannot train what is stored so. Called for each one that is prepared."""

    # -- contexts -----------------------------------------------------------------------------------------------------

    def forward_context(self) -> AbstractContextManager[Any]:
        """Entered around every forward pass of a prepared module."""
        return nullcontext()

    def module_init_context(self) -> AbstractContextManager[Any]:
        """Entered around the construction of modules, so that they are born in the right dtype."""
        return self.tensor_init_context()

    def tensor_init_context(self) -> AbstractContextManager[Any]:
        """Entered around the making of tensors, so that they are born in the right dtype."""
        return nullcontext()

    # -- gradients ----------------------------------------------------------------------------------------------------

    def pre_backward(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss that ``backward`` is given."""
        return loss

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Run the backward pass; ``kwargs`` are ``torch.Tensor.backward``'s."""
        loss.backward(**kwargs)  # type: ignore[no-untyped-call]

    def post_backward(self, loss: torch.Tensor) -> None:
        """Called after each backward pass, with what ``backward`` was given."""

    def unscale_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Give the optimizer's gradients their true size, in place. Called before they are clipped, and when the user asks; may be called
        again before the step."""

    def optimizer_step(self, optimizer: torch.optim.Optimizer, step: Callable[..., Any], closure: Callable[[], Any] | None = None) -> Any:
        """What a prepared optimizer's ``step`` does once gradients are complete. One that does not call ``step`` skips it, and with it the
        optimizer's schedulers.

        Args:
            optimizer: The user's.
            step: Its own step, which takes the closure.
            closure: Given by the user.
        """
        return step(closure) if closure is not None else step()

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold of this precision (a scaler's state)."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned; empty if another precision saved the checkpoint, and had nothing to save."""

    def __repr__(self) -> str:
        return f"<precision {self.name or type(self).__name__}>"
