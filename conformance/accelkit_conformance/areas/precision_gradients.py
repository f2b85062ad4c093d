"""Gradients, optimizer steps and accumulation in a precision match those in float64, within a tolerance that depends on the dtypes and
quantised formats that the precision declares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelkit_conformance.checks import check

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


@check("smoke", kind="precision")
def gradients_match_float64(subject: Subject) -> None:
    """After ``backward`` and ``unscale_gradients``, the gradients of all trainable parameters match gradients that the CPU computes in
    float64. The permitted relative error is eight times the largest eps of the dtypes and quantised formats that the precision declares."""
    _check_gradients(subject, "perceptron")


@check("training", kind="precision", over=["convolution", "attention", "normalization"])
def gradients_of_layers_match_float64(subject: Subject, name: str) -> None:
    """The gradients of a model match gradients that the CPU computes in float64, within the tolerance of ``gradients_match_float64``. The
    model is a small convolutional network, a transformer layer, or a model with batch and layer normalisation."""
    _check_gradients(subject, name)


def _check_gradients(subject: Subject, name: str) -> None:
    from accelkit_conformance.oracle.precision_training import check_close, exact_gradients, trainer

    check_close(subject, trainer(subject, name).finite_gradients(), exact_gradients(name), "gradients")


@check("smoke", kind="precision")
def a_step_matches_float64(subject: Subject) -> None:
    """After one step of SGD, the parameters match the parameters after the same step in float64, within the tolerance of
    ``gradients_match_float64``. The check fails if the step is taken twice or with scaled gradients."""
    from accelkit_conformance.oracle.precision_training import check_close, exact, mean_square, sgd, trainer, weights_of

    trained = trainer(subject)
    trained.step()
    model, x, y = exact()
    optimizer = sgd(model.parameters())
    mean_square(model(x), y).backward()
    optimizer.step()
    check_close(subject, weights_of(trained.model), weights_of(model), "weights after a step")


@check("training", kind="precision", over=["Adam", "RMSprop", "momentum"])
def optimizers_match_float64(subject: Subject, name: str) -> None:
    """After two steps of Adam, RMSprop or SGD with Nesterov momentum, the parameters match the parameters after the same steps in float64.
    Adam and RMSprop use ``eps=0.01``, and Adam uses ``betas=(0.9, 0.9)``, because squares of gradients underflow in float16. The
    permitted error is four times the permitted error of gradients, because Adam and RMSprop divide by small numbers. The same limit
    applies to SGD.
    """
    import torch

    from accelkit_conformance.oracle.precision_training import check_close, exact, mean_square, trainer, weights_of

    make: Any = {
        "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.05, betas=(0.9, 0.9), eps=1e-2),
        "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.02, eps=1e-2),
        "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1.0, momentum=0.9, nesterov=True),
    }[name]
    trained = trainer(subject, optimizer=make)
    model, x, y = exact()
    optimizer = make(model.parameters())
    for _ in range(2):
        trained.step()
        optimizer.zero_grad()
        mean_square(model(x), y).backward()
        optimizer.step()
    check_close(subject, weights_of(trained.model), weights_of(model), f"weights after two steps of {name}", times=4)


@check("training", kind="precision", seconds=300)
def a_model_learns(subject: Subject) -> None:
    """After 40 steps, the loss is below half of its first value, or below 1.2 times the loss of a float64 model after the same steps.
    Parameters that the precision freezes, such as quantised weights, are also frozen in the float64 model."""
    from accelkit_conformance.oracle.precision_training import exact, freeze_like, mean_square, sgd, trainer

    trained = trainer(subject)
    model, x, y = exact()
    freeze_like(model, trained.model)
    optimizer = sgd(model.parameters())
    first = float(trained.loss())
    for _ in range(40):
        trained.step()
        optimizer.zero_grad()
        mean_square(model(x), y).backward()
        optimizer.step()
    last, best = float(trained.loss()), float(mean_square(model(x), y))
    assert last < max(first / 2, best * 1.2), f"the loss went from {first:.3f} to {last:.3f}; in float64, to {best:.3f}"


@check("training", kind="precision", over=["accumulate", "passes"])
def accumulation_adds_up(subject: Subject, how: str) -> None:
    """If the Runtime was created with ``gradient_accumulation_steps=2``, the gradients of two backward passes inside ``accumulate`` are
    averaged. Otherwise, they are added. The weights after the next optimizer step match the weights after the same step in float64."""
    from accelkit_conformance.oracle.precision_training import check_close, exact, mean_square, sgd, trainer, weights_of

    is_mean = how == "accumulate"
    trained = trainer(subject, gradient_accumulation_steps=2) if is_mean else trainer(subject)
    x, y = trained.data
    halves = [(x[:8], y[:8]), (x[8:], y[8:])]
    for _ in range(40):  # a scaler may skip the first steps
        trained.optimizer.zero_grad()
        for half in halves:
            with trained.runtime.accumulate(trained.model):
                trained.runtime.backward(mean_square(trained.model(half[0]), half[1]) * 0.5)
                if is_mean:
                    trained.optimizer.step()
        if not is_mean:
            trained.optimizer.step()
        if not trained.runtime.optimizer_step_was_skipped:
            break
    model, x, y = exact()
    optimizer = sgd(model.parameters())
    (mean_square(model(x), y) * (0.5 if is_mean else 1)).backward()
    optimizer.step()
    check_close(subject, weights_of(trained.model), weights_of(model), "weights after two passes and a step")


@check("training", kind="precision", over=["SGD", "LBFGS"])
def closures_are_used_or_refused(subject: Subject, name: str) -> None:
    """If the precision supports closures, ``optimizer.step(closure)`` uses unscaled gradients, and returns the loss that the closure
    computes. After the step, the parameters match the parameters after the same step in float64. If the precision does not support
    closures, ``step`` raises one of accelkit's errors. The error names the precision, and no parameter changes."""
    import torch

    from accelkit import AccelkitError
    from accelkit_conformance.oracle.precision_training import check_close, exact, mean_square, trainer, weights_of

    make: Any = {
        "SGD": lambda parameters: torch.optim.SGD(parameters, lr=2.0),
        "LBFGS": lambda parameters: torch.optim.LBFGS(parameters, lr=0.5, max_iter=2, history_size=2),
    }[name]
    trained = trainer(subject, optimizer=make)

    def closure() -> torch.Tensor:
        trained.optimizer.zero_grad()
        loss = trained.loss()
        trained.runtime.backward(loss)
        return loss

    before = weights_of(trained.model)
    try:
        returned = trained.optimizer.step(closure)
    except AccelkitError as error:
        unchanged = all(torch.equal(value, before[key]) for key, value in weights_of(trained.model).items())
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert trained.precision.name in refusal, f"the error does not name the precision: {refusal}"
        assert unchanged, "a refused step changed parameters"
        return
    model, x, y = exact()
    optimizer = make(model.parameters())

    def exact_closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = mean_square(model(x), y)
        loss.backward()
        return loss

    right = float(optimizer.step(exact_closure))
    assert returned is not None, "step(closure) returned None instead of the loss of the closure"
    assert abs(float(returned) - right) <= 0.05 * right, f"step(closure) returned {float(returned):.3g}; the loss is {right:.3g}"
    check_close(subject, weights_of(trained.model), weights_of(model), f"weights after a step of {name} with a closure", times=4)


@check("training", kind="precision")
def several_models_and_optimizers(subject: Subject) -> None:
    """Two models with two optimizers are trained first with one loss for both models, and then with one loss for each model in turn. The
    weights of each model match those of a model that is trained alone in float64."""
    import torch

    from accelkit_conformance.oracle.precision_training import check_close, exact, mean_square, model_and_data, sgd, weights_of

    runtime = subject.runtime()
    models = [runtime.prepare(model_and_data()[0]) for _ in range(2)]
    optimizers = [runtime.prepare(sgd(model.parameters())) for model in models]
    x, y = (one.to(runtime.device) for one in model_and_data()[1:])
    right, exact_x, exact_y = exact()
    optimizer = sgd(right.parameters())

    def step_all() -> None:
        for one in optimizers:
            one.step()

    def together() -> None:
        runtime.backward(torch.stack([mean_square(model(x), y) for model in models]).sum())
        step_all()

    def in_turn() -> None:
        for model, one in zip(models, optimizers, strict=True):
            runtime.backward(mean_square(model(x), y))
            one.step()

    for train in (together, in_turn):
        for _ in range(40):
            for one in optimizers:
                one.zero_grad()
            train()
            if not runtime.optimizer_step_was_skipped:
                break
        optimizer.zero_grad()
        mean_square(right(exact_x), exact_y).backward()
        optimizer.step()
        for number, model in enumerate(models):
            check_close(subject, weights_of(model), weights_of(right), f"weights of model {number} after {train.__name__}", times=2)
