"""Gradients: backward, accumulation and clipping. Names and behaviour are Accelerate's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from accelkit.runtime.accumulation import Accumulation
from accelkit.runtime.data import PreparedLoader
from accelkit.specs.precision import Precision


class Gradients:
    """The part of a Runtime that is about gradients."""

    _accumulation: Accumulation
    _loaders: list[PreparedLoader]

    if TYPE_CHECKING:

        @property
        def precision(self) -> Precision: ...

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
        self.precision.backward(loss, **kwargs)

    @contextlib.contextmanager
    def accumulate(self, *models: torch.nn.Module) -> Iterator[None]:
        """One micro-batch: prepared optimizers and schedulers act only when ``gradient_accumulation_steps`` of them are done.

        The last batch of a prepared loader always completes the step.
        """
        if self._accumulation.num_steps > 1:
            self._accumulation.begin(any(loader.is_at_end for loader in self._loaders))
        yield

    @contextlib.contextmanager
    def no_sync(self, model: torch.nn.Module) -> Iterator[None]:
        """Gradients are not averaged over processes inside. One process has nothing to average."""
        yield

    def clip_grad_norm_(
        self, parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float = 2.0, **kwargs: Any
    ) -> torch.Tensor:
        """Scale gradients in place so that their norm is at most ``max_norm``; returns the norm before, a 0-d tensor."""
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, **kwargs)

    def clip_grad_value_(self, parameters: torch.Tensor | Iterable[torch.Tensor], clip_value: float) -> None:
        """Clamp every gradient in place to ``[-clip_value, clip_value]``."""
        torch.nn.utils.clip_grad_value_(parameters, clip_value)

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision's forward context, for computing outside a prepared module (a loss function)."""
        return self.precision.forward_context()
