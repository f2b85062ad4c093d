"""Training with a strategy and, for comparison, the same training in one process on the batches of the whole job.

The samples of the job are divided into shares: one for each process, unless the strategy gives several processes the same samples. The
loss of a share is the sum of the losses of its samples, multiplied by the number of shares and divided by the number of samples of the
whole job. The average of the gradients of all shares is then the gradient of the training in one process. The default optimizer is SGD
with a learning rate of 1, so that a step subtracts the gradient.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from accelkit import EngineStrategy, Runtime, UnsupportedError
from accelkit_conformance.oracle.strategy_models import make, make_batches
from accelkit_conformance.results import DECLARED_NONE, NotSupported
from accelkit_conformance.subject import Subject


def share(rt: Runtime, batch: torch.Tensor, *, is_uneven: bool = False) -> torch.Tensor:
    """Return this process's share of a batch. If ``is_uneven``, each share has about half as many samples as the share before it."""
    index, size = rt.data_parallel_index, rt.data_parallel_size
    weights = [2 ** (size - 1 - each) for each in range(size)] if is_uneven else [1] * size
    ends = [len(batch) * sum(weights[:end]) // sum(weights) for end in range(size + 1)]
    return batch[ends[index] : ends[index + 1]]


def whole(tensor: Any) -> torch.Tensor:
    """Return a CPU copy of a tensor. The copy of a DTensor is the full (unsharded) tensor. Every process must call this function."""
    full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    copied: torch.Tensor = full.detach().cpu().clone()
    return copied


def whole_buffers(subject: Subject, model: torch.nn.Module, names: list[str]) -> dict[str, torch.Tensor]:
    """Return CPU copies (see ``whole``) of the buffers ``names``. Raise AssertionError on every process if a process lacks one of them."""
    found = dict(model.named_buffers())
    agree(subject, ", ".join(f"the model has no buffer {name}" for name in names if name not in found))
    return {name: whole(found[name]) for name in names}


def agree(subject: Subject, problem: str) -> None:
    """Raise an error on every process if any process has a problem, so that no process waits for a process that has failed.

    The error describes the problem of the first rank that has a problem.

    Args:
        subject: The plugin under test.
        problem: The problem of this process; empty if there is none.

    Raises:
        AssertionError: If a process has a problem.
    """
    problems: list[Any] = [problem]
    if subject.world_size > 1:
        problems = [None] * subject.world_size
        dist.all_gather_object(problems, problem)
    for rank, found in enumerate(problems):
        assert not found, f"{found} (rank {rank} of {subject.world_size})" if subject.world_size > 1 else found


def check_is_suitable(subject: Subject) -> None:
    """Check that the strategy under test runs on this accelerator and on this number of processes.

    Raises:
        NotSupported: If the strategy does not run on this accelerator or on this number of processes. The result of the check is then
            ``unsupported``.
    """
    if subject.world_size > 1 and not subject.cls.is_distributed:  # type: ignore[attr-defined]
        raise NotSupported(f"several processes: {DECLARED_NONE} (is_distributed is False)")
    try:
        subject.plugin().check(subject.accelerator)
    except UnsupportedError as error:
        raise NotSupported(f"{subject.record.name} does not support {subject.accelerator.name}: {error}") from error


@contextlib.contextmanager
def runtime(subject: Subject, **options: Any) -> Iterator[Runtime]:
    """Return a context manager that yields a Runtime with a new instance of the strategy.

    At the end of the block, the Runtime is torn down, unless the block raised an error.

    By default, the Runtime computes in float64, or in float32 if the device or the strategy lacks float64. The option ``precision``
    overrides this default.

    Raises:
        NotSupported: If the strategy does not run on this accelerator or on this number of processes.
    """
    check_is_suitable(subject)
    options.setdefault("precision", precision_of(subject))
    rt = subject.runtime(**options)
    yield rt
    rt.teardown()  # not after an error, because other processes may be waiting in a collective


@contextlib.contextmanager
def training(
    subject: Subject,
    model_class: type[torch.nn.Module],
    make_optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
    **options: Any,
) -> Iterator[ModelPair]:
    """Return a context manager that yields a ``ModelPair`` for a new instance of ``model_class``.

    ``options`` are passed to ``runtime``.
    """
    with runtime(subject, **options) as rt:
        yield ModelPair(subject, rt, make(model_class, dtype_of(subject)), make_optimizer)


@contextlib.contextmanager
def optional(what: str) -> Iterator[None]:
    """Return a context manager for a block that uses an optional feature of a strategy.

    Args:
        what: The name of the feature, for the error message.

    Raises:
        NotSupported: If the block raises UnsupportedError because the strategy does not support the feature. The result of the check is
            then ``unsupported``.
    """
    try:
        yield
    except UnsupportedError as error:
        raise NotSupported(f"{what}: {DECLARED_NONE} ({error})") from error


class ModelPair:
    """A model that the strategy trains, and a copy that each process trains without the strategy, for comparison.

    Each process trains its copy on the CPU with the batches of the whole job.

    Args:
        subject: The plugin under test.
        rt: The Runtime.
        model: The model on the CPU, before the Runtime prepares it.
        make_optimizer: A function that returns an optimizer for the given parameters. The default is SGD with learning rate 1.

    Attributes:
        rt: The Runtime.
        model: The prepared model.
        optimizer: The prepared optimizer.
        single: The copy that this process trains.
        single_optimizer: The optimizer of ``single``.
    """

    def __init__(
        self, subject: Subject, rt: Runtime, model: torch.nn.Module, make_optimizer: Callable[[Any], torch.optim.Optimizer] | None = None
    ) -> None:
        make_optimizer = make_optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=1.0))
        self._subject, self.rt = subject, rt
        self.single = copy.deepcopy(model)
        self.single_optimizer = make_optimizer(self.single.parameters())
        self._own = copy.deepcopy(model)  # trained on this process's share alone, to recognise gradients that were not reduced
        self._own_optimizer = make_optimizer(self._own.parameters())
        self._start = weights_of(self.single)
        self.tolerance = 1e-12 if next(model.parameters()).dtype == torch.float64 else 1e-4
        self.model, self.optimizer = rt.prepare(model, make_optimizer(model.parameters()))

    def batches(self, number: int) -> list[torch.Tensor]:
        """Return ``number`` batches, on the CPU and in the dtype of the model. Each batch contains the samples of all processes."""
        return make_batches(number, next(self.single.parameters()).dtype)

    def train(self, batch: torch.Tensor, *, is_uneven: bool = False) -> None:
        """Train on one batch of the whole job: pass the arguments to ``backward``, then call ``step`` and ``check``."""
        self.backward(batch, is_uneven=is_uneven)
        self.step()
        self.check()

    def backward(self, batch: torch.Tensor, *, is_uneven: bool = False, factor: float = 1.0) -> None:
        """Run a forward and a backward pass of each model.

        The input of ``model`` is this process's share of the batch, and that of ``single`` is the whole batch. ``_own`` is another copy of
        the model, which also gets this process's share, but trains without the strategy. It shows whether the strategy fails to average
        gradients.

        Args:
            batch: The batch of the whole job.
            is_uneven: Whether the shares are uneven.
            factor: The losses of ``single`` and ``_own`` are multiplied by this number. With n accumulation steps, it must be 1 / n,
                because the Runtime divides the loss of ``model`` by n.
        """
        mine = share(self.rt, batch, is_uneven=is_uneven)
        scale = self.rt.data_parallel_size / len(batch)
        result = self.model(mine.to(self.rt.device))
        self.rt.backward(result.square().sum() * scale)
        (self.single(batch).square().sum() / len(batch) * factor).backward()
        (self._own(mine).square().sum() * scale * factor).backward()

    def step(self) -> None:
        """Step all optimizers and clear the gradients."""
        for optimizer in (self.optimizer, self.single_optimizer, self._own_optimizer):
            optimizer.step()
        self.zero_grad()

    def zero_grad(self) -> None:
        """Clear the gradients of all models."""
        for optimizer in (self.optimizer, self.single_optimizer, self._own_optimizer):
            optimizer.zero_grad()

    def weights(self) -> list[torch.Tensor]:
        """Return the full (unsharded) parameters of the strategy's model. Every process must call this."""
        with self.rt.strategy.whole_parameters(self.model):
            return weights_of(self.rt.unwrap_model(self.model))

    def problem(self) -> str:
        """Return a message that says how ``model`` differs from ``single`` and names the likely mistake.

        The message is empty if their weights agree. Every process must call this.
        """
        names = [name for name, _ in self.single.named_parameters()]
        ours, theirs, own = self.weights(), weights_of(self.single), weights_of(self._own)
        if len(ours) != len(theirs):
            return f"the model has {len(ours)} parameters after prepare, and had {len(theirs)} before"
        scale = max(1.0, *(float(tensor.abs().max()) for tensor in theirs))
        for name, one, other in zip(names, ours, theirs, strict=True):
            if one.shape != other.shape:
                return f"{name} has the shape {tuple(one.shape)} instead of {tuple(other.shape)}"
        errors = [float((one - other).abs().max()) for one, other in zip(ours, theirs, strict=True)]
        worst = max(range(len(errors)), key=errors.__getitem__)
        if errors[worst] <= self.tolerance * scale:
            self._own.load_state_dict(self.single.state_dict())  # the next comparison starts from these weights
            self._start = theirs
            return ""
        cause = self._cause(ours, theirs, own)
        return f"the weights differ from those of one process on the whole batch by up to {errors[worst]:.1e}, in {names[worst]}: {cause}"

    def check(self) -> None:
        """Check on every process that the weights of ``model`` agree with the weights of ``single``.

        Raises:
            AssertionError: If the weights differ. The message names the likely mistake.
        """
        agree(self._subject, self.problem())

    def _cause(self, ours: list[torch.Tensor], theirs: list[torch.Tensor], own: list[torch.Tensor]) -> str:
        size = self._subject.world_size
        if size > 1 and _are_close(ours, own):
            return f"each process trains on its own share, because gradients are not averaged over the {size} processes"
        if _are_close(ours, self._start):
            return "the step changed nothing"
        for factor, cause in (
            (size, f"gradients are summed over the {size} processes, not averaged"),
            (1 / size, f"gradients are divided twice by the number of processes ({size})"),
        ):
            scaled = [start + factor * (other - start) for start, other in zip(self._start, theirs, strict=True)]
            if size > 1 and _are_close(ours, scaled):
                return cause
        if _are_close(ours, theirs):
            return "gradients are computed or reduced in a lower precision than that of the parameters"
        return "the gradients are wrong"


def weights_of(module: torch.nn.Module) -> list[torch.Tensor]:
    """Return CPU copies of a module's parameters. The copy of a DTensor is the full tensor. Every process must call this function."""
    return [whole(parameter) for parameter in module.parameters()]


def are_equal(ours: Iterable[torch.Tensor], theirs: Iterable[torch.Tensor]) -> bool:
    """Return whether each tensor of ``ours`` is exactly equal to the corresponding tensor of ``theirs``. Tensors with NaN are unequal."""
    return all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def is_engine(subject: Subject) -> bool:
    return issubclass(subject.cls, EngineStrategy)


def dtype_of(subject: Subject) -> torch.dtype:
    """Return the dtype of the parameters of the models that the strategy trains.

    The dtype is float64 unless the device lacks float64 or the engine of the strategy does not support it. In these cases, the dtype is
    float32.
    """
    return torch.float32 if subject.lacks("float64") or _refuses_float64(subject) else torch.float64


def precision_of(subject: Subject) -> str:
    """Return the name of the precision that computes in ``dtype_of(subject)``. Every process must call this."""
    return "32-true" if dtype_of(subject) == torch.float32 else "64-true"


_refusals: dict[tuple[str, str], bool] = {}
"""Results of ``_refuses_float64``, by the plugin's fingerprint and the accelerator's name. Each process determines each result once."""


def _refuses_float64(subject: Subject) -> bool:
    """Return whether the plugin is an ``EngineStrategy`` that raises UnsupportedError for ``64-true``.

    Every process must call this.

    A strategy that is not an ``EngineStrategy`` leaves the choice of dtypes to the ``Precision``, so it has no reason to refuse float64.
    This function returns False for such a strategy without testing it. If such a strategy does refuse float64, its checks fail.
    """
    key = (subject.record.fingerprint, subject.accelerator.name)
    if key not in _refusals:
        _refusals[key] = False
        if is_engine(subject):
            check_is_suitable(subject)
            rt = subject.runtime(precision="64-true")
            module = torch.nn.Linear(2, 2, dtype=torch.float64)
            try:
                rt.prepare(module, torch.optim.SGD(module.parameters(), lr=1.0))
            except UnsupportedError:
                _refusals[key] = True
            rt.teardown()
    return _refusals[key]


def _are_close(ours: Iterable[torch.Tensor], theirs: Iterable[torch.Tensor]) -> bool:
    return all(torch.allclose(one, other, rtol=1e-4, atol=1e-6) for one, other in zip(ours, theirs, strict=True))
