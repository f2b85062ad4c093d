"""Gradients: backward passes, accumulation and clipping. Names and behaviour follow Accelerate."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from accelkit.errors import UnsupportedError, UsageError
from accelkit.plugin_calls import call, is_context, note_plugin, wrong_result
from accelkit.runtime.accumulation import Accumulation
from accelkit.runtime.data.loaders import PreparedLoader, innermost
from accelkit.runtime.optimizer_step import Stepping
from accelkit.specs.overrides import overrides
from accelkit.specs.precision import Precision
from accelkit.specs.strategy import Strategy


class Gradients:
    """The part of a Runtime that handles gradients."""

    strategy: Strategy
    _accumulation: Accumulation
    _stepping: Stepping
    _optimizers: list[torch.optim.Optimizer]
    _loaders: list[PreparedLoader]

    if TYPE_CHECKING:

        @property
        def precision(self) -> Precision: ...
        @property
        def device(self) -> torch.device: ...
        @property
        def num_processes(self) -> int: ...

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether any optimizer's last step was skipped because a gradient was infinite (``16-mixed``)."""
        _ = self.device
        return self._stepping.has_skipped

    @property
    def gradient_accumulation_steps(self) -> int:
        """Number of backward passes per optimizer step, inside ``accumulate``."""
        return self._accumulation.num_steps

    @property
    def sync_gradients(self) -> bool:
        """Whether gradients are complete, so that an optimizer step updates the parameters."""
        return self._accumulation.is_complete

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Run ``loss.backward(**kwargs)`` in the precision of the Runtime. The loss is divided by the number of accumulation steps.

        Args:
            loss: A scalar tensor, or a tensor of any shape if ``gradient=`` is given.
            kwargs: The arguments ``gradient``, ``retain_graph``, ``create_graph`` and ``inputs`` of ``torch.Tensor.backward``.
        """
        if self._accumulation.num_steps > 1:
            loss = loss / self._accumulation.num_steps
        self._backward(loss, **kwargs)

    def _backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Run the backward pass of the precision or of the strategy.

        Starting the device sets that function on the instance, where it replaces this method.
        """
        _ = self.device
        self._backward(loss, **kwargs)

    def accumulate(self, *models: torch.nn.Module) -> AbstractContextManager[None]:
        """Return a context manager for one micro-batch.

        Prepared optimizers and schedulers step only once every ``gradient_accumulation_steps`` micro-batches. The last batch of a
        prepared loader always completes the step. Until then, the gradients of ``models`` stay on each process, so that they are reduced
        only once.

        Args:
            models: The prepared models that the block runs backward through.
        """
        if self._accumulation.num_steps > 1:
            loader = innermost(self._loaders)
            self._accumulation.begin(loader is not None and loader.is_at_end)
            if not self._accumulation.is_complete and overrides(self.strategy, Strategy, "no_sync"):
                return self._keeping_gradients(models)
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def _keeping_gradients(self, models: Sequence[torch.nn.Module]) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for model in models:
                stack.enter_context(self.no_sync(model))
            yield

    def no_sync(self, model: torch.nn.Module) -> AbstractContextManager[Any]:
        """Return a context manager inside which the gradients of ``model`` are not reduced over processes.

        The next backward pass outside the context reduces them.
        """
        return _context(self.strategy, "no_sync", model)

    def join_uneven_inputs(self, joinables: Sequence[torch.nn.Module], even_batches: bool | None = None) -> AbstractContextManager[Any]:
        """Return a context manager inside which processes may have different numbers of batches.

        A process that has no batches left takes part in the reductions of the other processes.

        Args:
            joinables: The prepared models that are trained inside the context.
            even_batches: Replaces the Runtime's ``even_batches`` for all prepared loaders inside the context: whether passes that begin
                there fill their last batches. None leaves the setting unchanged.

        Raises:
            UnsupportedError: If the strategy does not support uneven inputs.
        """
        joined: AbstractContextManager[Any] | None = call(self.strategy, "join", joinables)
        if joined is None:
            raise UnsupportedError(
                f"strategy {self.strategy.name!r} cannot join uneven inputs",
                plugin=self.strategy.plugin,
                why="each of its steps needs every process",
                hint="give every process equally many batches (even_batches=True), or use strategy='ddp'",
            )
        if even_batches is None or self.num_processes == 1:
            return joined
        from accelkit.runtime.data.distribute import filling, warn_of_workers

        warn_of_workers(self._loaders)
        return filling(self._loaders, even_batches, joined)

    def clip_grad_norm_(
        self, parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float = 2.0, **kwargs: Any
    ) -> torch.Tensor:
        """Scale gradients in place so that their norm over the whole model is at most ``max_norm``.

        Args:
            parameters: Parameters of prepared modules. The norm of a sharded parameter includes all of its shards.
            max_norm: The largest norm allowed.
            norm_type: The order of the norm.
            kwargs: The arguments ``error_if_nonfinite`` and ``foreach`` of ``torch.nn.utils.clip_grad_norm_``.

        Returns:
            The norm before clipping, as a 0-d tensor.
        """
        given = self._unscaled(parameters)
        try:
            norm = self.strategy.clip_grad_norm_(given, max_norm, norm_type, **kwargs)
        except Exception as error:
            note_plugin(error, self.strategy, "clip_grad_norm_")
            raise
        if norm is None:
            raise wrong_result(self.strategy, "clip_grad_norm_", norm, "a tensor with the norm before clipping")
        return norm

    def clip_grad_value_(self, parameters: torch.Tensor | Iterable[torch.Tensor], clip_value: float) -> None:
        """Clamp every gradient in place to ``[-clip_value, clip_value]``."""
        given = self._unscaled(parameters)
        try:
            self.strategy.clip_grad_value_(given, clip_value)
        except Exception as error:
            note_plugin(error, self.strategy, "clip_grad_value_")
            raise

    def unscale_gradients(self, optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None) -> None:
        """Divide gradients by the loss scale, in place. In ``16-mixed``, ``backward`` leaves gradients scaled.

        The clipping methods call this themselves.

        Args:
            optimizer: The optimizers whose gradients are unscaled; None for all prepared optimizers.

        Raises:
            UsageError: If gradients are not complete inside ``accumulate``. The next backward pass would add scaled gradients to
                unscaled ones.
        """
        if not overrides(self.precision, Precision, "unscale_gradients"):
            return
        if not self.sync_gradients:
            raise UsageError(
                "gradients cannot be unscaled or clipped yet",
                why=f"precision {self.precision.name!r} scales them, and they are not complete: "
                f"{self.gradient_accumulation_steps} backward passes make a step",
                hint="if rt.sync_gradients: rt.clip_grad_norm_(...)",
            )
        chosen = self._optimizers if optimizer is None else [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else optimizer
        try:
            for one in chosen:
                self.precision.unscale_gradients(one)
        except Exception as error:
            note_plugin(error, self.precision, "unscale_gradients")
            raise

    def _unscaled(self, parameters: torch.Tensor | Iterable[torch.Tensor]) -> torch.Tensor | Iterable[torch.Tensor]:
        """Unscale the gradients of every optimizer that trains one of ``parameters``, and return ``parameters``."""
        if not overrides(self.precision, Precision, "unscale_gradients"):
            return parameters
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        wanted = {id(parameter) for parameter in given}
        self.unscale_gradients(
            [one for one in self._optimizers if any(id(parameter) in wanted for group in one.param_groups for parameter in group["params"])]
        )
        return given

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the forward context of the precision, for computations outside a prepared module, such as a loss function."""
        return _context(self.precision, "forward_context")


def _context(plugin: Precision | Strategy, method: str, *arguments: Any) -> AbstractContextManager[Any]:
    """Return the context manager that ``method`` of the plugin creates.

    Raises:
        BrokenPluginError: If the result is not a context manager.
    """
    try:
        context = getattr(plugin, method)(*arguments)
    except Exception as error:
        note_plugin(error, plugin, method)
        raise
    if not is_context(context):
        raise wrong_result(plugin, method, context, "a context manager")
    return context  # type: ignore[no-any-return]
