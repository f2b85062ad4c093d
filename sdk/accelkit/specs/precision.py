"""The precision specification: how numbers are stored and computed.

As in Lightning Fabric, one method converts the inputs of a forward pass, one returns a context for the pass, and one converts
the outputs. The documentation page about precisions has a complete example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from accelkit.types import Availability

if TYPE_CHECKING:
    import torch

    from accelkit.specs.accelerator import Accelerator

T = TypeVar("T")


class Precision:
    """A precision: how numbers are stored and computed. It is selected by name.

    There is no cost for methods that a subclass does not override: the runtime checks once which methods are overridden.

    Attributes:
        name: The name by which the precision was selected, such as ``bf16-mixed``. Set when accelkit creates the instance.
        plugin: The plugin's ``dist==version``.
        required_capabilities: The capabilities that the precision needs, such as ``("autocast.bfloat16",)``. If an accelerator declares one
            of them as ``none``, it does not support the precision. Undeclared capabilities are accepted.
    """

    required_capabilities: ClassVar[tuple[str, ...]] = ()

    name: str = ""
    plugin: str = ""

    @classmethod
    def probe(cls) -> Availability:
        """Return whether what the precision needs on this machine, such as a package, is installed. The default implementation returns
        ``Availability.usable()``.

        Called in a child process, by commands such as ``accelkit list``, and when a third-party plugin is tried. It must not import torch.
        """
        return Availability.usable()

    def setup(self, accelerator: Accelerator, device: torch.device) -> None:
        """Prepare for computing on ``device``. The precision must not keep a reference to the accelerator.

        Called by the Runtime of each process before anything is prepared: at the first use of the device, and at the first use
        after each ``Runtime.teardown``.

        Raises:
            UnsupportedError: If this device does not support the precision.
        """

    def teardown(self) -> None:
        """Release resources. Called by ``Runtime.teardown`` if ``setup`` was called."""

    # -- modules and data ---------------------------------------------------------------------------------------------

    def convert_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Convert the module's parameters and buffers to the dtype in which this precision stores them, and return the module.

        The conversion should be in place if possible. Called by ``Runtime.prepare`` for every module, before the strategy places and wraps
        the module.
        """
        return module

    def convert_input(self, data: T) -> T:
        """Convert the floating-point tensors in the arguments of a forward pass to the dtype in which the precision computes.

        ``data`` may be nested, and may contain integer tensors and other objects, which should be returned unchanged.

        Called twice before each forward pass of a prepared module: with the tuple of positional arguments, and with the dict of keyword
        arguments. Lightning's Fabric calls this method once, with a tuple of both. Lightning's Trainer calls it with each batch.
        """
        return data

    def convert_output(self, data: T) -> T:
        """Convert the result of a forward pass, for example to float32, so that losses and metrics have full precision.

        The result may be nested. Called after each forward pass of a prepared module.
        """
        return data

    def check_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Check that this optimizer can train parameters in this precision.

        Called for each prepared optimizer. Does nothing by default. If the optimizer cannot train such parameters, an override should warn
        or raise UnsupportedError. Errors of other types are reported as defects of the plugin.
        """

    # -- contexts -----------------------------------------------------------------------------------------------------

    def forward_context(self) -> AbstractContextManager[Any]:
        """Return a context manager inside which one forward pass runs. The default context manager does nothing.

        Called before each forward pass of a prepared module, and by ``Runtime.autocast``.
        """
        return nullcontext()

    def module_init_context(self) -> AbstractContextManager[Any]:
        """Return a context manager inside which new modules have the dtype in which this precision stores parameters.

        The default returns the context manager of ``tensor_init_context``. Called by the user's program, as
        ``rt.precision.module_init_context()``.
        """
        return self.tensor_init_context()

    def tensor_init_context(self) -> AbstractContextManager[Any]:
        """Return a context manager inside which new floating-point tensors have the dtype in which this precision stores parameters.

        The default context manager does nothing.
        Called by the user's program, as ``rt.precision.tensor_init_context()``.
        """
        return nullcontext()

    # -- gradients ----------------------------------------------------------------------------------------------------

    def pre_backward(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss to pass to ``backward``, for example the scaled loss. Called before each backward pass."""
        return loss

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Run the backward pass from the loss that ``pre_backward`` returned. ``kwargs`` are passed to ``torch.Tensor.backward``.

        Called by ``Runtime.backward``, unless an EngineStrategy runs the backward pass.
        """
        loss.backward(**kwargs)  # type: ignore[no-untyped-call]

    def post_backward(self, loss: torch.Tensor) -> None:
        """Finish a backward pass.

        Called after each backward pass, with the loss that ``pre_backward`` returned. Does nothing by default.
        """

    def unscale_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Unscale the optimizer's gradients in place.

        Called before gradients are clipped, and by ``Runtime.unscale_gradients``. A second call before the step must change nothing.
        Does nothing by default.
        """

    def optimizer_step(self, optimizer: torch.optim.Optimizer, step: Callable[..., Any], closure: Callable[[], Any] | None = None) -> Any:
        """Run a step of a prepared optimizer, and return the result of the step.

        Called by the optimizer's ``step``, but not while gradients are still being accumulated. If an EngineStrategy runs the step, this
        method is not called. If an implementation does not call ``step``, the optimizer and its schedulers skip this step.

        Args:
            optimizer: The user's optimizer.
            step: The optimizer's original ``step``, to be called as ``step()`` or ``step(closure)``.
            closure: The closure that the user passed to the optimizer's ``step``, or None.
        """
        return step(closure) if closure is not None else step()

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, such as the scale of a gradient scaler. Called by ``Runtime.save_state`` on every process.

        The state may contain numbers, strings, tensors and containers of these.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state returned by ``state_dict``.

        Called by ``Runtime.load_state`` on every process. Does nothing by default.
        The checkpoint may have been saved with another precision. ``state`` is then the state of that precision, and may be empty.
        """

    def __repr__(self) -> str:
        return f"<precision {self.name or type(self).__name__}>"
