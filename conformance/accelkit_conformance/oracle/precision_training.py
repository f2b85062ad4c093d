"""Training in the precision under test, and the same training in float64 on the CPU."""

from __future__ import annotations

import copy
import dataclasses
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from accelkit import Precision, Runtime
from accelkit_conformance.oracle.precision_declarations import declaration_of
from accelkit_conformance.oracle.precision_models import FEATURES, MODELS, ROWS
from accelkit_conformance.subject import Subject

_MOST_SKIPPED = 40
_WRAPPERS = re.compile(r"(?<![^.])(module|_orig_mod)\.")  # added by DDP and torch.compile; no model of the suite has a submodule ``module``
MakeOptimizer = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]


def sgd(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return an SGD optimizer with a large learning rate: one step changes the weights of the test models by about their own size."""
    return torch.optim.SGD(parameters, lr=2.0)


def mean_square(result: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean squared error, which is the loss in all tests."""
    return (result - target.to(result.dtype)).square().mean()


def model_and_data(name: str = "perceptron", *, rows: int = ROWS) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    """Return the model ``MODELS[name]``, and a batch and its targets, both of shape ``(rows, FEATURES)``, on the CPU in float32.

    Seeds torch's default generator, so that every call with the same arguments returns equal values.
    """
    torch.default_generator.manual_seed(0)
    return MODELS[name](), torch.randn(rows, FEATURES), torch.randn(rows, FEATURES)


@dataclasses.dataclass(slots=True)
class Trainer:
    """A model that is trained in the precision under test.

    Attributes:
        runtime: The Runtime, which uses a new instance of the precision.
        model, optimizer: The prepared model and optimizer.
        data: The batch and its targets on the device.
    """

    runtime: Runtime
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    data: tuple[torch.Tensor, torch.Tensor]

    @property
    def precision(self) -> Precision:
        """The precision under test."""
        return self.runtime.precision

    def loss(self) -> torch.Tensor:
        """Return the loss of the batch."""
        return mean_square(self.model(self.data[0]), self.data[1])

    def backward(self, times: float = 1.0) -> None:
        """Run a forward pass, multiply the loss by ``times``, and run a backward pass."""
        self.runtime.backward(self.loss() * times)

    def scale(self) -> float:
        """Return the factor by which the precision multiplies the next loss."""
        return float(self.precision.pre_backward(torch.ones((), device=self.data[0].device)))

    def poison(self, value: float) -> None:
        """Set the last element of the last parameter's gradient to ``value``."""
        last = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None][-1]
        with torch.no_grad():
            last.view(-1)[-1] = value

    def poisoned_step(self, value: float) -> None:
        """Run a backward pass, set one element of a gradient to ``value`` (see ``poison``), and call the optimizer's ``step``."""
        self.optimizer.zero_grad()
        self.backward()
        self.poison(value)
        with warnings.catch_warnings():  # a precision may warn that gradients were changed while they were scaled
            warnings.simplefilter("ignore")
            self.optimizer.step()

    def finite_gradients(self) -> dict[str, torch.Tensor]:
        """Run backward passes until the unscaled gradients are finite, and return the gradients in float64 on the CPU.

        A loss scaler may begin with a scale that is too large. After each pass whose gradients are not finite, the optimizer's ``step`` is
        called, so that the scaler skips the update and lowers the scale.

        Raises:
            AssertionError: If the gradients are not finite after 40 passes.
        """
        for _ in range(_MOST_SKIPPED):
            self.optimizer.zero_grad()
            self.backward()
            self.runtime.unscale_gradients(self.optimizer)
            found = gradients_of(self.model)
            if all(bool(gradient.isfinite().all()) for gradient in found.values()):
                return found
            self.optimizer.step()
        raise AssertionError(f"the gradients of {_MOST_SKIPPED} passes are infinite or nan")

    def step(self, clip: Callable[[], object] | None = None) -> None:
        """Run training steps until the precision performs an optimizer step instead of skipping it.

        ``clip`` is called before each optimizer step.

        Raises:
            AssertionError: If 40 optimizer steps in a row are skipped.
        """
        for _ in range(_MOST_SKIPPED):
            self.optimizer.zero_grad()
            self.backward()
            if clip is not None:
                clip()
            self.optimizer.step()
            if not self.runtime.optimizer_step_was_skipped:
                return
        raise AssertionError(f"{_MOST_SKIPPED} steps in a row were skipped")


def trainer(subject: Subject, name: str = "perceptron", optimizer: MakeOptimizer = sgd, **options: Any) -> Trainer:
    """Return a trainer of the named model, with a new Runtime and a new instance of the precision under test.

    If several processes run the check together, each process has its part of the batch.
    """
    runtime = subject.runtime(**options)
    model, *data = model_and_data(name, rows=ROWS * subject.world_size)
    model, made = runtime.prepare(model, optimizer(model.parameters()))
    own = slice(ROWS * subject.rank, ROWS * (subject.rank + 1))
    x, y = (one[own].to(runtime.device) for one in data)
    return Trainer(runtime, model, made, (x, y))


def gradients_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the gradients of a model by the names of its parameters, in float64 on the CPU. Parameters without a gradient are left out."""
    return {name: whole(parameter.grad) for name, parameter in model.named_parameters() if parameter.grad is not None}


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of the trainable parameters of a model by name, in float64 on the CPU."""
    return {name: whole(parameter.detach()).clone() for name, parameter in model.named_parameters() if parameter.requires_grad}


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float64 on the CPU. The shards of a DTensor are first gathered from all processes."""
    gathered: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return gathered.cpu().double()


def exact(name: str = "perceptron", *, rows: int = ROWS) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    """Return what ``model_and_data`` returns, in float64."""
    model, x, y = model_and_data(name, rows=rows)
    return copy.deepcopy(model).double(), x.double(), y.double()


def freeze_like(model: torch.nn.Module, trained: torch.nn.Module) -> None:
    """Freeze the parameters of the float64 reference ``model`` that are frozen in ``trained``, such as quantised weights."""
    trainable = {bare_name(name) for name in weights_of(trained)}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trainable)


def bare_name(name: str) -> str:
    """Return the name of a parameter without the prefixes that DDP and ``torch.compile`` add to it, in any order."""
    return _WRAPPERS.sub("", name)


def exact_gradients(name: str = "perceptron", *, rows: int = ROWS) -> dict[str, torch.Tensor]:
    """Return the gradients of one forward and backward pass of the named model in float64 on the CPU, by the names of its parameters."""
    model, x, y = exact(name, rows=rows)
    mean_square(model(x), y).backward()
    return gradients_of(model)


def check_close(
    subject: Subject, found: Mapping[str, torch.Tensor], truth: Mapping[str, torch.Tensor], what: str, *, times: float = 1.0
) -> None:
    """Check that tensors match those of the same training in float64, within the tolerance of the precision under test.

    Args:
        subject: The plugin under test.
        found: The tensors to check, by name.
        truth: The tensors in float64, by name. Names that are missing from ``found``, such as those of parameters that the precision froze,
            are not checked.
        what: What the tensors are, for messages.
        times: A number by which the tolerance is multiplied.

    Raises:
        AssertionError: If ``found`` is empty, or if the error of a tensor exceeds the tolerance.
    """
    tolerance = times * declaration_of(subject.plugin()).tolerance
    assert found, f"there are no {what}"
    scale = max(float(value.norm()) for value in truth.values())
    for name, value in found.items():
        right = truth[bare_name(name)]
        error = float((value - right).norm()) / (float(right.norm()) + 0.05 * scale)
        assert error <= tolerance, (
            f"{what}: the relative error of {name}, compared with float64, is {error:.2g}; "
            f"at most {tolerance:.2g} is allowed for {declaration_of(subject.plugin()).source}"
        )
