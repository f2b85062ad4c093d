"""The strategy specification: how one program spans devices.

A strategy is asked, in this order, by each process's Runtime: ``check`` (in the constructor), ``setup``, ``root_device`` and
``process_group_backend`` (at first use), then for every module ``place_module`` and ``wrap_module``, and if it ``wraps_optimizers`` for
every optimizer ``wrap_training``. A complete one that wraps modules in a class of its own::

    from accelkit import Strategy

    class MyParallel(Strategy):
        \"\"\"My own data parallelism.\"\"\"

        is_distributed = True

        def wrap_module(self, module, device):
            return MyWrapper(module)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from accelkit.errors import UnsupportedError

if TYPE_CHECKING:
    import torch

    from accelkit.specs.accelerator import Accelerator
    from accelkit.specs.precision import Precision


T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Training:
    """What a strategy is told that wraps a module together with its optimizer.

    Attributes:
        device: This process's.
        precision: The Runtime's. The module computes in it already.
        num_processes: Of the job.
        accumulation_steps: Backward passes a step. The Runtime divides losses by it, and steps when gradients are complete.
        batch_size: Samples of a batch of this process, if a loader that says it was prepared in the same call.
    """

    device: torch.device
    precision: Precision
    num_processes: int
    accumulation_steps: int = 1
    batch_size: int | None = None


class Strategy:
    """How one program spans devices, selected by name. It receives the accelerator and never keeps it.

    Args:
        device: Set if the strategy was made for one device or device type; the runtime refuses a contradiction.

    Attributes:
        is_distributed: Whether it trains on one process a device, in a process group of all of them (also of one).
        drives_all_devices: Whether one process drives all of its machine's devices, as one.
        wraps_optimizers: Whether it wraps a module together with its optimizer, and runs backward and steps itself. Then ``wrap_training``,
            ``backward``, ``step`` and ``zero_grad`` are required; of other strategies they are never called.
        name: The name it was selected by. Set by whoever loaded the class.
        plugin: ``dist==version``.
    """

    is_distributed: ClassVar[bool] = False
    drives_all_devices: ClassVar[bool] = False
    wraps_optimizers: ClassVar[bool] = False

    name: str = ""
    plugin: str = ""

    def __init__(self, device: torch.device | str | None = None) -> None:
        self.requested_device = device

    def check(self, accelerator: Accelerator) -> None:
        """Raise UnsupportedError if this accelerator cannot do it. Called by the constructor of a Runtime; initialises no driver.

        The default asks for ``process_group`` of a distributed strategy's accelerator, unless that declared nothing about it.
        """
        if self.is_distributed and accelerator.capabilities()["process_group"] == "none":
            raise UnsupportedError(
                f"{accelerator.name} cannot do strategy {self.name!r}",
                plugin=accelerator.plugin,
                why="it declares that it has no process_group",
                hint="use devices=1, or strategy='single_device'",
            )

    def setup(self, accelerator: Accelerator, devices: Sequence[int]) -> None:
        """Called once by each process's Runtime at first use, before the device is touched.

        Args:
            devices: The indices of the devices that were asked for.

        Raises:
            UnsupportedError: If these devices cannot do it.
        """

    def teardown(self) -> None:
        """Called by ``Runtime.teardown`` if ``setup`` was called, while the process group still exists."""

    def num_processes(self, num_devices: int, num_nodes: int) -> int:
        """How many processes the job has, for this many devices a machine."""
        return num_devices * num_nodes if self.is_distributed else 1

    def root_device(self, accelerator: Accelerator, devices: Sequence[int], local_rank: int) -> torch.device:
        """The device of process ``local_rank`` of its machine. ``devices`` has one index where each process sees its own device only."""
        return accelerator.device(devices[local_rank if len(devices) > 1 else 0])

    def process_group_backend(self, accelerator: Accelerator) -> str | None:
        """The torch.distributed backend for tensors on the device; None for torch's default. The accelerator's own word, by default."""
        return accelerator.process_group_backend

    def place_module(self, module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
        """The module on ``device``. Called before ``wrap_module``, unless the Runtime was told not to place anything."""
        return module.to(device)

    def place_batch(self, batch: T) -> T:
        """A batch that is on the device, laid out as the strategy wants it. Called for those of prepared loaders and of ``to_device``."""
        return batch

    def wrap_module(self, module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
        """The module as the training loop calls it: itself, or wrapped for communication. The one to override for another wrapper.

        Args:
            module: Placed, in its precision.
            device: This process's.
        """
        return module

    def wrap_training(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer, training: Training) -> torch.nn.Module:
        """The module as the training loop calls it, wrapped together with its optimizer.

        Args:
            module: What ``wrap_module`` returned. It holds all parameters of the optimizer.
            optimizer: The user's object, which stays the one in the loop. When this has returned, its ``step`` and ``zero_grad`` call
                those of the strategy; inside them, its ``step`` is its own.
            training: The rest.
        """
        raise NotImplementedError(f"{type(self).__name__}.wrap_training")

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Run the backward pass.

        Args:
            loss: Divided by the accumulation steps.
            kwargs: ``torch.Tensor.backward``'s.
        """
        raise NotImplementedError(f"{type(self).__name__}.backward")

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Apply the gradients of all backward passes since the last step. Called by the optimizer's ``step``.

        Returns:
            Whether they were applied. False if a gradient was infinite: then the optimizer's schedulers do not step either.
        """
        raise NotImplementedError(f"{type(self).__name__}.step")

    def zero_grad(self, optimizer: torch.optim.Optimizer) -> None:
        """Forget the gradients, as if there had been no backward pass since the last step. Called by the optimizer's ``zero_grad``."""
        raise NotImplementedError(f"{type(self).__name__}.zero_grad")

    def check_state(self) -> None:
        """Raise CheckpointError if modules and optimizers cannot be saved and loaded by ``state_dict`` and ``load_state_dict``."""

    def unwrap_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """What ``wrap_module`` was given."""
        return module

    def whole_parameters(self, module: torch.nn.Module) -> AbstractContextManager[Any]:
        """Inside, parameters of this module (wrapped or not) that are sharded in a way of the strategy's own are whole, to be read.

        Every process enters and leaves it together. Shards that are DTensors may stay so.
        """
        return nullcontext()

    def no_sync(self, module: torch.nn.Module) -> AbstractContextManager[Any]:
        """Inside, a backward pass through this wrapped module leaves gradients to the process: they are reduced by the next one outside."""
        return nullcontext()

    def join(self, modules: Sequence[torch.nn.Module]) -> AbstractContextManager[Any] | None:
        """Inside, processes may have different numbers of batches; None if the strategy cannot do that."""
        return nullcontext()

    def clip_grad_norm_(
        self, parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float, **kwargs: Any
    ) -> torch.Tensor:
        """Scale gradients in place so that the norm over the whole model is at most ``max_norm``; returns the norm before, a 0-d tensor.

        Args:
            kwargs: ``torch.nn.utils.clip_grad_norm_``'s others.
        """
        import torch

        norm: Any = torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, **kwargs)
        total: torch.Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return total

    def clip_grad_value_(self, parameters: torch.Tensor | Iterable[torch.Tensor], clip_value: float) -> None:
        """Clamp every gradient in place to ``[-clip_value, clip_value]``."""
        import torch

        torch.nn.utils.clip_grad_value_(parameters, clip_value)

    def __repr__(self) -> str:
        return f"<strategy {self.name or type(self).__name__}>"
