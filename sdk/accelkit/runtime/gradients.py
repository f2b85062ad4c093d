"""Gradients: backward passes, accumulation over several micro-batches, reduction over processes, and clipping."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from accelkit.errors import UnsupportedError, UsageError
from accelkit.plugin_calls import call, call_in_step, note_plugin, wrong_result
from accelkit.runtime.data.loaders import innermost
from accelkit.runtime.module_placement import refuse_steps_of_unprepared
from accelkit.runtime.precision_forward import check_loss
from accelkit.specs.engine_strategy import EngineStrategy
from accelkit.specs.overrides import overrides
from accelkit.specs.precision import Precision
from accelkit.specs.strategy import Strategy
from accelkit.whole_number import whole_number

if TYPE_CHECKING:
    from accelkit.runtime.preparation import PreparedObjects
    from accelkit.runtime.session import Session


_NOTHING = contextlib.nullcontext()


class Accumulation:
    """Counter of micro-batches that determines whether the current one completes an optimizer step.

    Attributes:
        num_steps: Number of micro-batches per optimizer step.
        is_complete: Whether a call to the optimizer's ``step`` has an effect now. True until ``accumulate`` is first used; after that,
            ``begin`` sets it.
        has_begun: Whether ``accumulate`` has been used, or the user has been warned that the program does not use it. Always True if
            ``num_steps`` is 1.
        num_backwards: Number of backward passes whose loss was divided by ``num_steps``. Not counted if ``num_steps`` is 1.

    Raises:
        UsageError: If ``num_steps`` is not a whole number of at least 1.
    """

    def __init__(self, num_steps: int) -> None:
        number = whole_number(num_steps)
        if number is None or number < 1:
            raise UsageError(
                f"gradient_accumulation_steps must be a whole number of at least 1, got {num_steps!r:.80}",
                why="it is the number of micro-batches per optimizer step",
                hint="use 1 to step after every micro-batch",
            )
        self.num_backwards = 0
        self.restart(number)

    def restart(self, num_steps: int) -> None:
        """Set the number of micro-batches per step, and forget all micro-batches, as if ``accumulate`` had never been used."""
        self.num_steps = num_steps
        self.is_complete = True
        self.has_begun = num_steps == 1
        self._step = 0

    def begin(self, is_last_batch: bool) -> bool:
        """Begin the next micro-batch, and return whether it completes the optimizer step. The last batch of a loader always does."""
        self.has_begun = True
        self._step = step = 0 if is_last_batch else (self._step + 1) % self.num_steps
        self.is_complete = not step
        return not step


class Gradients:
    """Computes, accumulates, reduces, unscales and clips the gradients of the prepared models.

    Most methods implement the method of the same name in ``Runtime``. See ``Runtime`` for their documentation.

    Args:
        session: The session, which has the strategy, the precision and the function that runs backward passes.
        accumulation: The counter of micro-batches.
        objects: The prepared objects: the optimizers, whose gradients are unscaled before clipping, and the loaders, whose last batch
            completes an accumulation.
    """

    def __init__(self, session: Session, accumulation: Accumulation, objects: PreparedObjects) -> None:
        self._session = session
        self._accumulation = accumulation
        self._objects = objects
        self._strategy = session.configuration.strategy
        self._has_no_sync = overrides(self._strategy, Strategy, "no_sync")
        self._is_checked = False

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """See ``Runtime.backward``."""
        check_loss(loss)
        if not self._is_checked:
            self._check_prepared()
        self.backward_function()(loss, **kwargs)

    @property
    def has_to_check(self) -> bool:
        """Whether the next backward pass must be run by ``backward``, which checks first that the program has prepared what it trains.

        Otherwise, ``backward_function`` may run it. Reading this property starts the device.
        """
        if self._is_checked:
            return False
        return self._scales_gradients() or self._lacks_model()

    def _lacks_model(self) -> bool:
        """Return whether a job of several processes has prepared no model. An engine strategy has an error of its own for this."""
        is_engine = isinstance(self._strategy, EngineStrategy)
        return not is_engine and not self._objects.modules and self._session.configuration.num_processes > 1

    def _scales_gradients(self) -> bool:
        """Return whether only the steps of prepared optimizers divide the gradients of ``backward`` by a scale."""
        is_scaling = overrides(self._session.precision, Precision, "unscale_gradients")
        return is_scaling and not isinstance(self._strategy, EngineStrategy)

    def _check_prepared(self) -> None:
        """Check that the program has passed to ``prepare`` what the gradients of a backward pass need.

        Raises:
            UsageError: If a job of several processes has prepared no model, or if the precision scales gradients and no optimizer is
                prepared.
        """
        is_scaling, session, objects = self._scales_gradients(), self._session, self._objects
        if self._lacks_model():
            raise UsageError(
                "no model has been passed to rt.prepare",
                why=f"each of the {session.configuration.num_processes} processes would train its own model, because only the gradients "
                "of prepared models are reduced across processes",
                hint="call model, optimizer = rt.prepare(model, optimizer), or call loss.backward() if the model is distributed in another "
                "way",
            )
        if is_scaling and not objects.optimizers:
            raise UsageError(
                "no optimizer has been passed to rt.prepare",
                why=f"precision {session.precision.name!r} multiplies gradients by a scale, and only the step of a prepared optimizer "
                "divides them by it",
                hint="call model, optimizer = rt.prepare(model, optimizer)",
            )
        if is_scaling:
            refuse_steps_of_unprepared(objects.modules, objects.optimizers, session.precision)
        self._is_checked = True

    def backward_function(self) -> Callable[..., None]:
        """Return the function that runs the backward pass. The function first divides the loss by the number of micro-batches per step."""
        own, accumulation = self._session.backward, self._accumulation
        if accumulation.num_steps == 1:
            return own

        def backward(loss: torch.Tensor, **kwargs: Any) -> None:
            accumulation.num_backwards += 1
            try:
                own(loss / accumulation.num_steps, **kwargs)
            except Exception:
                check_loss(loss)
                raise

        return backward

    def accumulate(self, *models: torch.nn.Module) -> AbstractContextManager[None]:
        """See ``Runtime.accumulate``."""
        accumulation, loaders = self._accumulation, self._objects.loaders
        if accumulation.num_steps == 1:
            return _NOTHING
        loader = innermost(loaders) if loaders else None
        is_complete = accumulation.begin(loader is not None and loader.is_at_end)
        return _NOTHING if is_complete or not self._has_no_sync else self._keeping_local(models)

    @contextlib.contextmanager
    def _keeping_local(self, models: Sequence[torch.nn.Module]) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for model in models:
                stack.enter_context(self.no_sync(model))
            yield

    def no_sync(self, model: torch.nn.Module) -> AbstractContextManager[Any]:
        """See ``Runtime.no_sync``."""
        context: AbstractContextManager[Any] = call_in_step(self._strategy, "no_sync", model)
        return context

    def join_uneven_inputs(self, joinables: Sequence[torch.nn.Module], even_batches: bool | None) -> AbstractContextManager[Any]:
        """See ``Runtime.join_uneven_inputs``. The caller passes None as ``even_batches`` in a job of one process."""
        joined: AbstractContextManager[Any] | None = call(self._strategy, "join", joinables)
        if joined is None:
            raise UnsupportedError(
                f"the strategy {self._strategy.name!r} does not support uneven inputs",
                plugin=self._strategy.plugin,
                why="each of its steps needs every process",
                hint="give every process the same number of batches (even_batches=True), or use strategy='ddp'",
            )
        if even_batches is None:
            return joined
        from accelkit.runtime.data.prepare_loader import filling, warn_about_persistent_workers

        warn_about_persistent_workers(self._objects.loaders)
        return filling(self._objects.loaders, even_batches, joined)

    def clip_grad_norm_(
        self, parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float = 2.0, **kwargs: Any
    ) -> torch.Tensor:
        """See ``Runtime.clip_grad_norm_``."""
        given = self._unscaled(parameters)
        try:
            norm = self._strategy.clip_grad_norm_(given, max_norm, norm_type, **kwargs)
        except Exception as error:
            note_plugin(error, self._strategy, "clip_grad_norm_")
            raise
        if norm is None:
            raise wrong_result(self._strategy, "clip_grad_norm_", norm, "a tensor with the norm before clipping")
        return norm

    def clip_grad_value_(self, parameters: torch.Tensor | Iterable[torch.Tensor], clip_value: float) -> None:
        """See ``Runtime.clip_grad_value_``."""
        given = self._unscaled(parameters)
        try:
            self._strategy.clip_grad_value_(given, clip_value)
        except Exception as error:
            note_plugin(error, self._strategy, "clip_grad_value_")
            raise

    def unscale_gradients(self, optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None) -> None:
        """See ``Runtime.unscale_gradients``."""
        precision = self._session.precision
        if not overrides(precision, Precision, "unscale_gradients"):
            return
        if not self._accumulation.is_complete:
            raise UsageError(
                "gradients cannot be unscaled or clipped yet",
                why=f"the precision {precision.name!r} scales them, and they are complete only after "
                f"{self._accumulation.num_steps} micro-batches",
                hint="if rt.sync_gradients: rt.clip_grad_norm_(...)",
            )
        optimizers = (
            self._objects.optimizers if optimizer is None else [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else optimizer
        )
        try:
            for each in optimizers:
                precision.unscale_gradients(each)
        except Exception as error:
            note_plugin(error, precision, "unscale_gradients")
            raise

    def _unscaled(self, parameters: torch.Tensor | Iterable[torch.Tensor]) -> torch.Tensor | Iterable[torch.Tensor]:
        """Unscale the gradients of every optimizer that trains one of ``parameters``, and return the parameters.

        They are returned as a list, because ``parameters`` may be an iterator. If the precision does not scale gradients, ``parameters``
        itself is returned.

        Raises:
            UsageError: If the gradients are still being accumulated.
        """
        if not overrides(self._session.precision, Precision, "unscale_gradients"):
            return parameters
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        wanted = {id(parameter) for parameter in given}

        def trains_one(optimizer: torch.optim.Optimizer) -> bool:
            return any(id(parameter) in wanted for group in optimizer.param_groups for parameter in group["params"])

        self.unscale_gradients([optimizer for optimizer in self._objects.optimizers if trains_one(optimizer)])
        return given

    def autocast(self) -> AbstractContextManager[Any]:
        """See ``Runtime.autocast``."""
        context: AbstractContextManager[Any] = call_in_step(self._session.precision, "forward_context")
        return context
