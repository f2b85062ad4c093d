"""Gradients: backward, accumulation and clipping. Names and behaviour are Accelerate's."""

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
    """The part of a Runtime that is about gradients."""

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
        """Whether the last step of one of the optimizers was skipped, because a gradient was infinite (``16-mixed``)."""
        _ = self.device
        return self._stepping.has_skipped

    @property
    def gradient_accumulation_steps(self) -> int:
        """Backward passes a step, inside ``accumulate``."""
        return self._accumulation.num_steps

    @property
    def sync_gradients(self) -> bool:
        """Whether gradients are complete, so that an optimizer step would act."""
        return self._accumulation.is_complete

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """``loss.backward(**kwargs)`` in the runtime's precision, divided by the accumulation steps.

        Args:
            loss: A scalar, or with ``gradient=`` any shape.
            kwargs: ``gradient``, ``retain_graph``, ``create_graph``, ``inputs``, as ``torch.Tensor.backward`` takes them.
        """
        if self._accumulation.num_steps > 1:
            loss = loss / self._accumulation.num_steps
        self._backward(loss, **kwargs)

    def _backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """The precision's, or the strategy's. Starting the device puts that itself on the instance."""
        _ = self.device
        self._backward(loss, **kwargs)

    def accumulate(self, *models: torch.nn.Module) -> AbstractContextManager[None]:
        """For ``with``: a micro-batch. Prepared optimizers and schedulers act only when ``gradient_accumulation_steps`` of them are done.

        The last batch of a prepared loader always completes the step. Until then gradients of ``models`` stay on each process, so that they
        are reduced once.

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
        """Gradients of ``model`` are not reduced over processes inside, but by the next backward pass outside."""
        return _context(self.strategy, "no_sync", model)

    def join_uneven_inputs(self, joinables: Sequence[torch.nn.Module], even_batches: bool | None = None) -> AbstractContextManager[Any]:
        """Inside, processes may have different numbers of batches: one that has none left takes part in the reductions of the others.

        Args:
            joinables: The prepared models that are trained inside.
            even_batches: Inside, for all prepared loaders, in place of the Runtime's ``even_batches``: whether passes that begin there fill
                their last batches. None leaves it.

        Raises:
            UnsupportedError: If the strategy cannot do that.
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
        """Scale gradients in place so that their norm over the whole model is at most ``max_norm``; returns the norm before, a 0-d tensor.

        Args:
            parameters: Of prepared modules; sharded ones count whole.
            kwargs: ``error_if_nonfinite`` and ``foreach``, as ``torch.nn.utils.clip_grad_norm_`` takes them.
        """
        given = self._unscaled(parameters)
        try:
            norm = self.strategy.clip_grad_norm_(given, max_norm, norm_type, **kwargs)
        except Exception as error:
            note_plugin(error, self.strategy, "clip_grad_norm_")
            raise
        if norm is None:
            raise wrong_result(self.strategy, "clip_grad_norm_", norm, "a tensor, the norm before,")
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
        """Give gradients their true size, in place: in ``16-mixed`` they are multiples of it after ``backward``. Clipping does that itself.

        Args:
            optimizer: Whose gradients; None for all prepared optimizers.

        Raises:
            UsageError: Inside ``accumulate``, before gradients are complete: those of the next backward pass would be added unscaled.
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
        """``parameters``, with the gradients of every optimizer that trains one of them unscaled."""
        if not overrides(self.precision, Precision, "unscale_gradients"):
            return parameters
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        wanted = {id(parameter) for parameter in given}
        self.unscale_gradients(
            [one for one in self._optimizers if any(id(parameter) in wanted for group in one.param_groups for parameter in group["params"])]
        )
        return given

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision's forward context, for computing outside a prepared module (a loss function)."""
        return _context(self.precision, "forward_context")


def _context(plugin: Precision | Strategy, method: str, *arguments: Any) -> AbstractContextManager[Any]:
    """What ``with`` is to enter, made by this method.

    Raises:
        BrokenPluginError: If it cannot be entered.
    """
    try:
        context = getattr(plugin, method)(*arguments)
    except Exception as error:
        note_plugin(error, plugin, method)
        raise
    if not is_context(context):
        raise wrong_result(plugin, method, context, "a context manager")
    return context  # type: ignore[no-any-return]
