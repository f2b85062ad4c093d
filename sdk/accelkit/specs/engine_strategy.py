"""The specification of a strategy that trains through an engine, which wraps a module together with its optimizer.

The Runtime calls the methods of the base class ``Strategy`` in the same order as for any other strategy. After ``wrap_module``, the Runtime
calls ``wrap_training`` once for each optimizer. From then on, a backward pass calls the strategy's ``backward``, and the optimizer's
``step`` and ``zero_grad`` call the strategy's methods of the same names. A complete strategy with an engine of its own::

    from accelkit import EngineStrategy

    class MyStrategy(EngineStrategy):
        \"\"\"Trains through my engine.\"\"\"

        is_distributed = True

        def wrap_training(self, module, optimizer, settings):
            self.engine = MyEngine(module, optimizer)
            return self.engine

        def backward(self, loss, **kwargs):
            self.engine.backward(loss)

        def step(self, optimizer):
            self.engine.step()
            return True

        def zero_grad(self, optimizer):
            self.engine.zero_grad()

        def unwrap_module(self, module):
            return module.module if isinstance(module, MyEngine) else module

If the state dicts of the module and of its optimizer do not hold the whole state, as when an engine shards the optimizer's state, the
strategy also implements ``save_engine`` and ``load_engine``.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, Any

from accelkit.errors import UnsupportedError
from accelkit.specs.strategy import Strategy

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from accelkit.specs.precision import Precision


@dataclasses.dataclass(frozen=True, slots=True)
class EngineSettings:
    """The settings of the training, passed to ``EngineStrategy.wrap_training``.

    Attributes:
        device: The device of this process.
        precision: The precision of the Runtime. The module already computes in this precision.
        num_processes: The number of processes in the job.
        accumulation_steps: The number of micro-batches per step. The Runtime divides each loss by this number. While a step still needs
            further micro-batches, the optimizer's ``step`` does nothing, and the strategy's ``step`` is not called.
        batch_size: The number of samples in a batch of this process. None unless a ``DataLoader`` that has a ``batch_size`` was passed to
            ``prepare`` together with the module.
    """

    device: torch.device
    precision: Precision
    num_processes: int
    accumulation_steps: int = 1
    batch_size: int | None = None


class EngineStrategy(Strategy, abc.ABC):
    """A strategy that wraps a module together with its optimizer, and runs backward passes and optimizer steps itself, as DeepSpeed does.

    A subclass must implement ``wrap_training``, ``backward``, ``step`` and ``zero_grad``; otherwise, it cannot be instantiated. These four
    methods are called in every process, after the device is set up. The training loop stays as it is: the user's optimizer remains the same
    object, and its ``step`` and ``zero_grad`` call the strategy's methods of the same names.
    """

    @abc.abstractmethod
    def wrap_training(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer, settings: EngineSettings) -> torch.nn.Module:
        """Wrap the module together with its optimizer, and return the module that the training loop calls.

        Args:
            module: The module returned by ``wrap_module``. It holds all parameters of the optimizer.
            optimizer: The user's optimizer, which the training loop continues to use. After this method has returned, the optimizer's
                ``step`` and ``zero_grad`` call the strategy's methods of the same names. If one of these methods of the strategy
                calls ``optimizer.step`` or ``optimizer.zero_grad``, the optimizer's original method runs.
            settings: The settings of the training, such as the device and the precision.
        """

    @abc.abstractmethod
    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Run the backward pass.

        Args:
            loss: The loss, already divided by the number of accumulation steps.
            kwargs: The keyword arguments of ``torch.Tensor.backward``.
        """

    @abc.abstractmethod
    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Apply the gradients of all backward passes since the last step. Called by the optimizer's ``step``.

        Returns:
            Whether the gradients were applied. False if a gradient was infinite or NaN, in which case the optimizer's schedulers do not
            step either.
        """

    @abc.abstractmethod
    def zero_grad(self, optimizer: torch.optim.Optimizer) -> None:
        """Discard the gradients of all backward passes since the last step. Called by the optimizer's ``zero_grad``.

        The argument ``set_to_none`` of the optimizer's ``zero_grad`` is ignored, because the engine owns the gradients.
        """

    def save_engine(self, module: torch.nn.Module, folder: Path) -> None:
        """Write the state of a wrapped module and of its optimizer into a folder of a checkpoint.

        A subclass overrides both ``save_engine`` and ``load_engine``, or neither. If it overrides neither, the Runtime never calls these
        methods, and saves the state dicts of the module and of its optimizer. If it overrides both, the Runtime does not save these state
        dicts, but still saves everything else. ``Runtime.save_state`` then calls ``save_engine`` on every process at the same point, so
        the method may communicate. When the method has returned on every process, the Runtime flushes the files to disk and adds their
        checksums to the checkpoint.

        Args:
            module: The module that ``wrap_training`` returned.
            folder: An empty folder, the same for all processes. The method may write regular files into it, and into folders below it.

        Raises:
            UnsupportedError: If a subclass overrides ``load_engine``, but not ``save_engine``.
        """
        raise _incomplete(self, "save_engine")

    def load_engine(self, module: torch.nn.Module, folder: Path) -> None:
        """Restore the state that ``save_engine`` wrote.

        ``Runtime.load_state`` calls this method on every process at the same point, after it has compared every file with its checksum.
        Checksums do not protect against forgery, so the method should not read files in a way that can run code, such as ``pickle.load``.

        Args:
            module: The module that ``wrap_training`` returned.
            folder: The folder that ``save_engine`` filled, perhaps in a job with a different number of processes or other options.

        Raises:
            CheckpointError: If this job cannot use the files. In this case, every process must raise the error, and must do so before
                changing anything.
            UnsupportedError: If a subclass overrides ``save_engine``, but not ``load_engine``.
        """
        raise _incomplete(self, "load_engine")


def _incomplete(strategy: Strategy, method: str) -> UnsupportedError:
    return UnsupportedError(
        f"strategy {strategy.name!r} does not implement {method}",
        plugin=strategy.plugin,
        why="a strategy that implements one of the methods save_engine and load_engine must implement both",
        hint=f"add {method} to the class {type(strategy).__name__}",
    )
