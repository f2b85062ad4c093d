"""Models train on the device as they do on the CPU: gradients, losses and parameters match."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from accelkit_conformance.checks import check

if TYPE_CHECKING:
    import torch

    from accelkit_conformance.subject import Subject


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return a tensor of shape (400, 2) with noisy points on three spirals, and a tensor of shape (400,) with the index (0, 1 or 2) of each
    point's spiral.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    label = torch.randint(0, 3, (400,), generator=generator)
    radius = torch.rand(400, generator=generator)
    angle = radius * 4 + label * 2.1 + torch.randn(400, generator=generator) * 0.1
    return torch.stack([radius * angle.sin(), radius * angle.cos()], 1) * 3, label


def _model() -> torch.nn.Module:
    import torch

    torch.default_generator.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))


def _fit(
    model: Any, points: Any, labels: Any, *, steps: int, rate: float = 0.01, compute: Callable[[], None] = lambda: None
) -> list[float]:
    import torch

    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(points), labels)
        loss.backward()
        optimizer.step()
        compute()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


@check("smoke")
def one_step(subject: Subject) -> None:
    """One step of Adam changes every parameter by the same amount as on the CPU."""
    import torch

    subject.needs("int64")  # the dtype of the labels
    here = _model()
    there = copy.deepcopy(here).to(subject.device)
    start = [parameter.detach().clone() for parameter in here.parameters()]
    points, labels = _data()
    _fit(here, points, labels, steps=1)
    _fit(there, points.to(subject.device), labels.to(subject.device), steps=1, compute=subject.compute)
    for before, mine, theirs in zip(start, there.parameters(), here.parameters(), strict=True):
        assert not torch.equal(mine.detach().cpu(), before), "the step left a parameter unchanged"
        torch.testing.assert_close(mine.detach().cpu(), theirs.detach(), rtol=1e-3, atol=1e-4)


@check("training", seconds=120)
def a_classifier_learns(subject: Subject) -> None:
    """After 150 steps, a model distinguishes three spirals with an accuracy above 95 %. Each of the first 20 losses differs from the loss
    on the CPU by less than 0.02 plus 2 % of the loss on the CPU. The last loss differs by less than 0.05.
    """
    subject.needs("int64")  # the dtype of the labels
    points, labels = _data()
    here = _model()
    there = copy.deepcopy(here).to(subject.device)
    reference = _fit(here, points, labels, steps=150)
    found = _fit(there, points.to(subject.device), labels.to(subject.device), steps=150, compute=subject.compute)
    accuracy = float((there(points.to(subject.device)).argmax(1).cpu() == labels).double().mean())
    assert accuracy > 0.95, f"the accuracy is {accuracy:.3f} after 150 steps"
    assert abs(found[-1] - reference[-1]) < 0.05, f"the loss is {found[-1]:.4f}, but {reference[-1]:.4f} on the CPU"
    assert all(abs(mine - theirs) < 0.02 + 0.02 * theirs for mine, theirs in zip(found[:20], reference[:20], strict=True)), (
        "the first 20 losses differ"
    )


@check("training", seconds=120, over=["conv", "attention", "lstm"])
def architectures(subject: Subject, name: str) -> None:
    """A small convolutional network, a transformer layer and an LSTM can each be fitted to one batch: the first loss and the gradients of
    all parameters match those on the CPU, and the loss of the 60th step of Adam is less than a fifth of the first loss."""
    import torch
    from torch import nn

    subject.needs("int64")

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.lstm(x)[0][:, -1])  # type: ignore[no-any-return]

    torch.default_generator.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    models = {
        "conv": lambda: nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 3)),
        "attention": lambda: nn.Sequential(layer, nn.Flatten(), nn.Linear(64, 3)),
        "lstm": Last,
    }
    shape = (12, 1, 8, 8) if name == "conv" else (12, 8, 8)
    here: Any = models[name]()
    there = copy.deepcopy(here).to(subject.device)
    batch, labels = torch.randn(shape), torch.arange(12) % 3
    _compare_gradients(here, there, batch, labels)
    reference = _fit(here, batch, labels, steps=60)
    found = _fit(there, batch.to(subject.device), labels.to(subject.device), steps=60, compute=subject.compute)
    assert found[-1] < found[0] / 5, f"the loss went from {found[0]:.3f} to {found[-1]:.3f}"
    assert abs(found[0] - reference[0]) < 1e-3, f"the first loss is {found[0]:.6f}, but {reference[0]:.6f} on the CPU"


def _compare_gradients(here: Any, there: Any, batch: torch.Tensor, labels: torch.Tensor) -> None:
    """Check that a model has the same gradients on the device as on the CPU.

    The norm of the difference may be up to 2 % of the norm of the gradient, plus 0.1 % of the largest norm among all gradients.

    The gradients are computed with copies of ``here`` and ``there``, so that these models themselves do not change.

    Args:
        here: The model on the CPU.
        there: The same model on the device.
        batch: The input.
        labels: The labels for the cross-entropy loss.
    """
    import torch

    found = []
    for model in (copy.deepcopy(here), copy.deepcopy(there)):
        device = next(model.parameters()).device
        torch.nn.functional.cross_entropy(model(batch.to(device)), labels.to(device)).backward()
        found.append({name: parameter.grad.cpu() for name, parameter in model.named_parameters()})
    reference, mine = found
    largest = max(float(gradient.norm()) for gradient in reference.values())
    for name, gradient in reference.items():
        off = float((mine[name] - gradient).norm())
        # The gradient of a bias before a BatchNorm is only rounding error, so an error of 0.1 % of the largest gradient is allowed too.
        assert off <= 0.02 * float(gradient.norm()) + 1e-3 * largest, f"the gradient of {name} is off by {off:.3g} of {gradient.norm():.3g}"


@check("training", requires=["dtype.float32"], over=["transformer", "cnn", "diffusion", "rnn", "gnn"])
def typical_models(subject: Subject, name: str) -> None:
    """In each of three steps, a model has the same losses, gradients, buffers and parameters as on the CPU in double precision. The models
    are a small language model, an image classifier, a denoiser, a sequence classifier and a graph network. Each model is trained without
    dropout, and with an optimizer that is commonly used for such models. In each step, the gradients of two batches are accumulated and
    clipped. After each step, the parameters and buffers of the model on the CPU are copied to the model on the device, so that errors do
    not grow. After the last step, the loss in evaluation mode under ``no_grad`` is also the same as on the CPU.
    """
    from accelkit_conformance.oracle.model_steps import check_model

    check_model(subject, name)


@check("training", requires=["dtype.float32", "numbered_devices"])
def layers_on_two_devices(subject: Subject) -> None:
    """After three optimizer steps, a model whose layers are on two devices has the same parameters as on the CPU in double precision. The
    gradient of each parameter is on the device of the parameter, and the gradient of the input is on the device of the input.
    ``clip_grad_norm_`` returns the norm of the gradients of all parameters. Between the second and the third step, there is an
    additional step in which a gradient on one of the devices is infinite. The gradient scaler skips this step and halves the scale. The
    optimizer is AdamW; its for-loop implementation and its ``foreach`` implementation are both tested.
    """
    from accelkit_conformance.oracle.two_devices import check_two_devices

    check_two_devices(subject)


@check("training")
def runtime_trains(subject: Subject) -> None:
    """``Runtime.prepare`` keeps tied weights tied. An optimizer that was created before ``prepare`` trains the prepared model: after
    ``Runtime.backward``, a step changes the weights as it does on the CPU."""
    import torch

    runtime = subject.runtime()
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 3), "b": torch.nn.Linear(3, 3)})
    model["b"].weight = model["a"].weight
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = runtime.prepare(model, optimizer)
    assert model["a"].weight is model["b"].weight, "prepare untied weights"
    before = model["a"].weight.detach().clone()
    loss = model["b"](model["a"](runtime.to_device(torch.ones(2, 3)))).square().sum()
    runtime.backward(loss)
    optimizer.step()
    subject.assert_on_device(model["a"].weight)
    after = model["a"].weight.detach().cpu()
    assert not torch.equal(before.cpu(), after), "the step changed nothing: the optimizer has other parameters"
    plain["b"](plain["a"](torch.ones(2, 3))).square().sum().backward()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    torch.testing.assert_close(after, plain["a"].weight.detach(), rtol=1e-3, atol=1e-4)


@check("training")
def accumulation_equals_a_larger_batch(subject: Subject) -> None:
    """If the loss of each quarter of a batch is divided by 4, the accumulated gradients are the same as those of the whole batch."""
    import torch

    subject.needs("int64")
    model = _model().to(subject.device)
    points, labels = (one.to(subject.device) for one in _data())
    torch.nn.functional.cross_entropy(model(points), labels).backward()
    whole = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    for part, label in zip(points.chunk(4), labels.chunk(4), strict=True):
        (torch.nn.functional.cross_entropy(model(part), label) / 4).backward()
    for mine, parameter in zip(whole, model.parameters(), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(mine, parameter.grad, rtol=1e-4, atol=1e-6)


@check("training", seconds=120)
def processes_exit_cleanly(subject: Subject) -> None:
    """A process that calls ``sys.exit`` right after a backward pass neither crashes nor hangs while Python shuts down."""
    from accelkit_conformance.subprocess_checks import check_exit

    check_exit(subject.record, seconds=100 + subject.first_call_timeout)
