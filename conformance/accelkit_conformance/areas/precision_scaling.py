"""Gradients are unscaled exactly once, before they are clipped or used. A precision that scales losses must skip steps with infinite
gradients and adapt its scale, unless it has a fixed scale and does not compute in float16. A skipped step changes neither the parameters
nor the optimizer's state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelkit_conformance.checks import check

if TYPE_CHECKING:
    from accelkit_conformance.oracle.precision_training import Trainer
    from accelkit_conformance.subject import Subject


@check("smoke", kind="precision")
def clipping_by_norm(subject: Subject) -> None:
    """``clip_grad_norm_`` returns the norm of the unscaled gradients. After the gradients have been clipped to half of this norm, the
    optimizer step matches a step in float64 with the same clipping."""
    import torch

    from accelkit_conformance.oracle.precision_declarations import declaration_of
    from accelkit_conformance.oracle.precision_training import check_close, exact, mean_square, sgd, trainer, weights_of

    trained = trainer(subject)
    model, x, y = exact()
    mean_square(model(x), y).backward()
    own = [parameter for name, parameter in model.named_parameters() if name in weights_of(trained.model)]
    right = float(torch.nn.utils.clip_grad_norm_(own, float("inf")))
    norms: list[Any] = []
    trained.step(clip=lambda: norms.append(trained.runtime.clip_grad_norm_(trained.model.parameters(), right / 2)))
    tolerance = declaration_of(subject.plugin()).tolerance
    assert abs(float(norms[-1]) - right) <= tolerance * right, f"clip_grad_norm_ returned {float(norms[-1]):.4g}; the norm is {right:.4g}"
    torch.nn.utils.clip_grad_norm_(own, right / 2)
    sgd(own).step()
    check_close(subject, weights_of(trained.model), weights_of(model), "weights after clipping by norm and a step")


@check("training", kind="precision")
def clipping_by_value(subject: Subject) -> None:
    """``clip_grad_value_`` clips the unscaled gradients. After the gradients have been clipped to a third of their largest absolute value,
    the optimizer step matches a step in float64 with the same clipping."""
    import torch

    from accelkit_conformance.oracle.precision_training import check_close, exact, gradients_of, mean_square, sgd, trainer, weights_of

    trained = trainer(subject)
    model, x, y = exact()
    mean_square(model(x), y).backward()
    limit = max(float(gradient.abs().max()) for gradient in gradients_of(model).values()) / 3
    trained.step(clip=lambda: trained.runtime.clip_grad_value_(trained.model.parameters(), limit))
    torch.nn.utils.clip_grad_value_(model.parameters(), limit)
    sgd(model.parameters()).step()
    check_close(subject, weights_of(trained.model), weights_of(model), "weights after clipping by value and a step")


@check("training", kind="precision", over=["twice", "clip", "step", "another"])
def gradients_are_unscaled_once(subject: Subject, then: str) -> None:
    """After ``unscale_gradients``, nothing changes the gradients again: neither a second call to ``unscale_gradients``, nor clipping to a
    norm that the gradients do not exceed, nor the backward pass of another model, nor the optimizer step. The weights after the step match
    the weights after a step in float64."""
    import torch

    from accelkit_conformance.oracle.precision_training import (
        check_close,
        exact,
        gradients_of,
        mean_square,
        model_and_data,
        sgd,
        trainer,
        weights_of,
    )

    trained = trainer(subject)
    before = trained.finite_gradients()
    if then == "twice":
        trained.runtime.unscale_gradients(trained.optimizer)
    elif then == "clip":
        trained.runtime.clip_grad_norm_(trained.model.parameters(), 1e6)
    elif then == "another":
        other = trained.runtime.prepare(model_and_data()[0])
        trained.runtime.backward(mean_square(other(trained.data[0]), trained.data[1]))
    else:
        trained.optimizer.step()
    for name, gradient in gradients_of(trained.model).items():
        assert torch.equal(gradient, before[name]), f"the gradient of {name} was changed again after it was unscaled"
    if then != "step":
        trained.optimizer.step()
        for name, gradient in gradients_of(trained.model).items():
            assert torch.equal(gradient, before[name]), f"the step changed the gradient of {name}, which was unscaled"
    model, x, y = exact()
    mean_square(model(x), y).backward()
    sgd(model.parameters()).step()
    check_close(subject, weights_of(trained.model), weights_of(model), "weights after a step with unscaled gradients")


@check("training", kind="precision", over=["inf", "-inf", "nan"])
def infinite_gradients_are_skipped(subject: Subject, value: str) -> None:
    """A precision that scales losses skips a step if a gradient is infinite or NaN: the parameters and the optimizer's state keep their
    exact values, ``optimizer_step_was_skipped`` is true, and the next loss is multiplied by a smaller scale. Later steps with finite
    gradients are not skipped."""
    import torch

    from accelkit_conformance.oracle.precision_training import weights_of

    trained = _scaled(subject)
    trained.step()
    weights, state = weights_of(trained.model), str(trained.optimizer.state_dict())
    scale = trained.scale()
    trained.poisoned_step(float(value))
    assert trained.runtime.optimizer_step_was_skipped, f"a step with {value} in a gradient was not skipped"
    for name, weight in weights_of(trained.model).items():
        assert torch.equal(weight, weights[name]), f"a step with {value} in a gradient changed {name}"
    assert str(trained.optimizer.state_dict()) == state, "a skipped step changed the optimizer's state"
    assert trained.scale() < scale, f"after a step with {value} in a gradient, the scale is still {trained.scale():g}"
    trained.step()
    assert not trained.runtime.optimizer_step_was_skipped
    assert not all(torch.equal(weight, weights[name]) for name, weight in weights_of(trained.model).items()), "the next step had no effect"


@check("training", kind="precision")
def the_scale_adapts(subject: Subject) -> None:
    """After a step that is not skipped, three steps with an infinite gradient follow. If the precision scales losses, its scale becomes
    smaller after each of the three. The next step, which has finite gradients, does not make the scale smaller. Of 40 steps with a large
    loss, at least one is not skipped, and all parameters stay finite.
    """
    import itertools

    from accelkit_conformance.oracle.precision_training import weights_of

    trained = _scaled(subject)
    trained.step()  # the initial scale may be too large
    scales = [trained.scale()]
    for _ in range(3):
        trained.poisoned_step(float("inf"))
        scales.append(trained.scale())
    assert all(after < before for before, after in itertools.pairwise(scales)), f"the scales are {scales}"
    trained.step()
    assert trained.scale() >= scales[-1], "the scale became smaller after a step without an infinite gradient"
    steps = 0
    for _ in range(40):
        trained.optimizer.zero_grad()
        trained.runtime.backward(trained.model(trained.data[0]).sum() * 1024)
        trained.optimizer.step()
        steps += not trained.runtime.optimizer_step_was_skipped
        assert all(bool(weight.isfinite().all()) for weight in weights_of(trained.model).values()), "parameters became infinite or nan"
    assert steps, "40 steps of a large loss were all skipped"


@check("training", kind="precision")
def the_scale_grows(subject: Subject) -> None:
    """If the state of the precision contains a ``growth_interval``, as the state of torch's GradScaler does, the scale grows after every
    ``growth_interval`` steps without an infinite gradient, and does not change in between."""
    from accelkit_conformance.results import DECLARED_NONE, NotSupported

    trained = _scaled(subject)
    state = dict(trained.precision.state_dict())
    if "growth_interval" not in state:
        raise NotSupported(f"its state has no growth_interval: {DECLARED_NONE}")
    trained.precision.load_state_dict(state | {"growth_interval": 3, "scale": 256.0})
    scales = []
    for _ in range(6):
        trained.step()
        scales.append(trained.scale())
    assert scales[:2] == [256.0] * 2, f"the scale changed before the interval of 3 steps: {scales}"
    assert scales[2] > 256.0, f"the scale did not grow after 3 steps: {scales}"
    assert scales[3:5] == scales[2:3] * 2, f"the scale changed within the second interval: {scales}"
    assert scales[5] > scales[2], f"the scale did not grow after 6 steps: {scales}"


@check("training", kind="precision")
def schedulers_wait_for_steps(subject: Subject) -> None:
    """After an optimizer step, a call to the ``step`` method of a prepared scheduler changes the learning rate. If the precision skipped
    the optimizer step, the call leaves the learning rate as it is."""
    import torch

    from accelkit.specs.overrides import overrides
    from accelkit.specs.precision import Precision
    from accelkit_conformance.oracle.precision_training import trainer

    trained = trainer(subject)
    scheduler = trained.runtime.prepare(torch.optim.lr_scheduler.StepLR(trained.optimizer, 1, gamma=0.5))
    rate = trained.optimizer.param_groups[0]["lr"]
    trained.step()
    scheduler.step()
    assert trained.optimizer.param_groups[0]["lr"] == rate / 2, "a scheduler did not step after a step of its optimizer"
    if overrides(trained.precision, Precision, "pre_backward"):
        trained.poisoned_step(float("inf"))
        was_skipped = trained.runtime.optimizer_step_was_skipped
        scheduler.step()
        due = rate / 2 if was_skipped else rate / 4
        assert trained.optimizer.param_groups[0]["lr"] == due, "a scheduler stepped although the step of its optimizer was skipped"


@check("training", kind="precision")
def one_of_two_optimizers_is_skipped(subject: Subject) -> None:
    """Two optimizers step after one backward pass, and only the first optimizer has infinite gradients. The step of the first optimizer is
    skipped. The step of the second optimizer matches a step in float64. The next loss is multiplied by a smaller scale."""
    import torch

    from accelkit_conformance.oracle.precision_training import check_close, exact, mean_square, model_and_data, sgd, weights_of

    trained = _scaled(subject)
    other = trained.runtime.prepare(model_and_data()[0])
    optimizer = trained.runtime.prepare(sgd(other.parameters()))
    trained.step()  # after this step, the scale causes no overflow
    trained.optimizer.zero_grad()
    before, scale = weights_of(trained.model), trained.scale()
    trained.runtime.backward(trained.loss() + mean_square(other(trained.data[0]), trained.data[1]))
    trained.poison(float("inf"))
    optimizer.step()
    trained.optimizer.step()
    for name, weight in weights_of(trained.model).items():
        assert torch.equal(weight, before[name]), f"the optimizer with an infinite gradient changed {name}"
    model, x, y = exact()
    mean_square(model(x), y).backward()
    sgd(model.parameters()).step()
    check_close(subject, weights_of(other), weights_of(model), "weights of the other optimizer")
    assert trained.scale() < scale, "the scale did not decrease after the infinite gradient"


def _scaled(subject: Subject) -> Trainer:
    """Return a trainer whose precision scales losses and must skip steps with infinite gradients. Its optimizer uses momentum.

    A precision with a fixed scale need not skip steps, unless it computes in float16, which has a smaller range than float32. The scale
    counts as fixed if, after an infinite gradient, the step is not skipped and the scale stays the same.

    Raises:
        NotSupported: If the precision does not scale losses, or if its scale is fixed and it does not compute in float16.
    """
    import torch

    from accelkit_conformance.oracle.precision_declarations import declaration_of, needs_scaling
    from accelkit_conformance.oracle.precision_training import trainer
    from accelkit_conformance.results import DECLARED_NONE, NotSupported

    declared = declaration_of(subject.plugin())
    needs_scaling(subject.plugin())

    def begun() -> Trainer:
        return trainer(subject, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))

    trial = begun()
    scale = trial.scale()
    trial.poisoned_step(float("inf"))
    if not trial.runtime.optimizer_step_was_skipped and trial.scale() == scale and torch.float16 not in declared.computed:
        raise NotSupported(f"the scale is a fixed number, and float16 is not declared: {DECLARED_NONE}")
    return begun()
