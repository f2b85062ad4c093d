"""The strategy specification: how one program spans devices.

The Runtime of each process calls the main methods of a strategy in this order:

- In the constructor of the Runtime: ``check``.
- At the first use of the device: ``setup`` and ``root_device``. If the strategy is distributed, then also ``process_group_backend`` (unless
  the user named a backend) and ``device_mesh``.
- For every module: ``place_module`` and ``wrap_module``.

A strategy that also runs the optimizer's steps is an ``EngineStrategy``.

This example is a complete strategy, which wraps modules in ``MyWrapper``::

    from accelkit import Strategy

    class MyParallel(Strategy):
        \"\"\"My own data parallelism.\"\"\"

        is_distributed = True

        def wrap_module(self, module, device):
            return MyWrapper(module)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from accelkit.errors import UnsupportedError
from accelkit.types import Availability

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from accelkit.specs.accelerator import Accelerator


T = TypeVar("T")


class Strategy:
    """A strategy: how one program spans devices. It is selected by name, and must not keep a reference to the accelerator.

    Args:
        device: The device or device type that the strategy was created for, if any. The runtime raises an error if this device contradicts
            the selected device.

    Attributes:
        is_distributed: Whether the strategy trains with one process per device and a process group of all processes (even if there is only
            one process).
        drives_all_devices: Whether one process drives all devices of its machine as if they were one.
        name: The name by which the strategy was selected. Set when accelkit creates the instance.
        plugin: The plugin's ``dist==version``.
    """

    is_distributed: ClassVar[bool] = False
    drives_all_devices: ClassVar[bool] = False

    name: str = ""
    plugin: str = ""

    def __init__(self, device: torch.device | str | None = None) -> None:
        self.requested_device = device

    @classmethod
    def probe(cls) -> Availability:
        """Return whether what the strategy needs on this machine, such as a package, is installed. The default implementation returns
        ``Availability.usable()``.

        Called in a child process, by commands such as ``accelkit list``, and when a third-party plugin is tried. It must not import torch.
        """
        return Availability.usable()

    def check(self, accelerator: Accelerator) -> None:
        """Check that this accelerator supports the strategy. Called by the constructor of a Runtime. Does not initialise the driver.

        If the strategy is distributed, the default implementation raises an error for an accelerator that declares the capability
        ``process_group`` as ``none``. It accepts an accelerator that declares nothing about this capability.

        Raises:
            UnsupportedError: If the accelerator does not support the strategy.
        """
        if self.is_distributed and accelerator.capabilities()["process_group"] == "none":
            raise UnsupportedError(
                f"{accelerator.name} does not support strategy {self.name!r}",
                plugin=accelerator.plugin,
                why="it declares the capability process_group as none",
                hint="use devices=1, or strategy='single_device'",
            )

    def setup(self, accelerator: Accelerator, devices: Sequence[int]) -> None:
        """Prepare the strategy for these devices.

        Called by the Runtime of each process before the first use of the device, and before the first use after each
        ``Runtime.teardown``.

        Args:
            accelerator: The accelerator of the devices.
            devices: The indices of the requested devices.

        Raises:
            UnsupportedError: If the strategy does not support these devices.
        """

    def teardown(self) -> None:
        """Release resources.

        Called by ``Runtime.teardown`` on each process if the device is set up, before the process leaves the process group.
        """

    def num_processes(self, num_devices: int, num_nodes: int) -> int:
        """Return the number of processes in a job with ``num_devices`` devices on each of ``num_nodes`` machines.

        The default is one process for each device, or a single process if the strategy is not distributed. Called by a Runtime before it
        uses a device, unless a launcher has started the processes. Does not initialise the driver.
        """
        return num_devices * num_nodes if self.is_distributed else 1

    def data_parallel_size(self, num_processes: int) -> int:
        """Return the number of shares into which the samples of a step are divided. The default is one share for each process.

        Called by the constructor of a Runtime. Does not initialise the driver. If several processes compute on the same samples, as in
        tensor parallelism, they must have consecutive ranks: if the method returns ``size``, process ``rank`` gets the share
        ``rank // (num_processes // size)``. Loaders, seeds, ``gather`` and ``reduce`` treat the processes of one share as one process.

        Args:
            num_processes: The number of processes in the job.

        Returns:
            A divisor of ``num_processes``.

        Raises:
            UsageError: If the strategy cannot use this number of processes.
        """
        return num_processes

    def device_mesh(self, device: torch.device) -> DeviceMesh | None:
        """Return a mesh of the devices of all processes, with named dimensions, or None (the default) if the strategy has no mesh.

        If the strategy is distributed, the Runtime of each process calls this method after the process has joined the process group: at
        the first use of the device, and at the first use after each ``Runtime.teardown``. All processes call this method at the same
        point, so it may create process groups. ``Runtime.mesh`` returns the result, or raises UnsupportedError if it is None.

        Args:
            device: The device of this process.
        """
        return None

    def root_device(self, accelerator: Accelerator, devices: Sequence[int], local_rank: int) -> torch.device:
        """Return the device of this process. Does not initialise the driver.

        Called by the Runtime after ``setup``. ``Runtime.state`` also calls this method, possibly before ``setup``.

        Args:
            accelerator: The accelerator of the devices.
            devices: The indices of the devices that the processes on this machine use. If each process sees only its own device, there is
                a single index.
            local_rank: The rank of this process on its machine.
        """
        return accelerator.device(devices[local_rank if len(devices) > 1 else 0])

    def process_group_backend(self, accelerator: Accelerator) -> str | None:
        """Return the torch.distributed backend for tensors on the device, or None for torch's default.

        If the strategy is distributed and the user has not named a backend, the Runtime of each process calls this method before the
        process joins the process group. The default implementation returns the accelerator's ``process_group_backend``.
        """
        return accelerator.process_group_backend

    def place_module(self, module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
        """Move the module to ``device``, and return it.

        Called before ``wrap_module``. Not called for a module for which the user set ``device_placement`` to False.

        Args:
            module: The module, already converted by the precision plugin.
            device: The device of this process.
        """
        return module.to(device)

    def place_batch(self, batch: T) -> T:
        """Return ``batch`` as the strategy needs it, for example with DTensors. The batch has already been moved to the device.

        If a subclass overrides this method, prepared loaders call it for every batch, and ``Runtime.to_device`` calls it too.
        """
        return batch

    def wrap_module(self, module: torch.nn.Module, device: torch.device) -> torch.nn.Module:
        """Return the module that the training loop calls: the module itself, or a wrapper that communicates.

        Override this method to use a wrapper of your own.

        Args:
            module: The module, which the precision plugin has converted. ``place_module`` has moved the module to ``device``, unless the
                user set ``device_placement`` to False.
            device: The device of this process.
        """
        return module

    def check_state(self) -> None:
        """Check that modules and optimizers can be saved and loaded with ``state_dict`` and ``load_state_dict``.

        Called by ``Runtime.save_state`` and ``Runtime.load_state`` on every process. The default implementation does nothing.

        Raises:
            CheckpointError: If modules or optimizers cannot be saved and loaded in this way.
        """

    def unwrap_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return the module that was passed to ``wrap_module``, or ``module`` itself if it is not a wrapper of this strategy.

        Called by ``Runtime.unwrap_model``, and by ``Runtime.prepare`` if ``wrap_module`` returns a wrapper. When a checkpoint is saved or
        loaded, the Runtime removes the wrappers of the strategy and of ``torch.compile`` until only the user's own module is left.
        """
        return module

    def whole_parameters(self, module: torch.nn.Module) -> AbstractContextManager[Any]:
        """Return a context manager inside which the module's parameters are unsharded, so that they can be read.

        Parameters that are DTensors may stay sharded, because the caller can unshard DTensors itself. ``module`` may or may not be wrapped.
        All processes must enter and leave the context together.
        """
        return nullcontext()

    def no_sync(self, module: torch.nn.Module) -> AbstractContextManager[Any]:
        """Return a context manager inside which a backward pass through this wrapped module does not reduce gradients.

        The gradients stay local to the process until the next backward pass outside the context reduces them. The default context manager
        does nothing, so gradients are reduced inside it, too. Called by ``Runtime.no_sync`` and, if overridden, by ``Runtime.accumulate``.
        """
        return nullcontext()

    def join(self, modules: Sequence[torch.nn.Module]) -> AbstractContextManager[Any] | None:
        """Return a context manager inside which processes may have different numbers of batches, or None if this is not supported.

        Called on every process by ``Runtime.join_uneven_inputs``, which raises UnsupportedError if the result is None. If the strategy is
        distributed, the default returns None. Otherwise, the default returns a context manager that does nothing.

        Args:
            modules: The modules that ``wrap_module`` returned.
        """
        return None if self.is_distributed else nullcontext()

    def clip_grad_norm_(
        self, parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float, **kwargs: Any
    ) -> torch.Tensor:
        """Scale the gradients of ``parameters`` in place so that their total norm is at most ``max_norm``.

        Called by ``Runtime.clip_grad_norm_`` on every process, before the optimizer step. If the precision scales gradients, they have
        been unscaled. If parameters are sharded, the norm covers the shards of all processes.

        Args:
            parameters: The parameters whose gradients are clipped.
            max_norm: The largest norm allowed.
            norm_type: The order of the norm.
            kwargs: The arguments ``error_if_nonfinite`` and ``foreach`` of ``torch.nn.utils.clip_grad_norm_``.

        Returns:
            The total norm before clipping, as a 0-d tensor. It is the same on every process.
        """
        import torch

        norm: Any = torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, **kwargs)
        total: torch.Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return total

    def clip_grad_value_(self, parameters: torch.Tensor | Iterable[torch.Tensor], clip_value: float) -> None:
        """Clamp every gradient in place to ``[-clip_value, clip_value]``. Called by ``Runtime.clip_grad_value_``.

        Args:
            parameters: The parameters whose gradients are clamped.
            clip_value: The largest absolute value.
        """
        import torch

        torch.nn.utils.clip_grad_value_(parameters, clip_value)

    def __repr__(self) -> str:
        return f"<strategy {self.name or type(self).__name__}>"
