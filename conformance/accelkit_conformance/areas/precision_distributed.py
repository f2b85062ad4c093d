"""Under ``ddp`` and ``fsdp`` with two or three processes, a precision gives the same results as on one process, or refuses the strategy
with an error that names the precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelkit_conformance.checks import check

if TYPE_CHECKING:
    from accelkit_conformance.oracle.precision_training import Trainer
    from accelkit_conformance.subject import Subject

_CASES = ("2,ddp", "3,ddp", "2,fsdp", "3,fsdp")


def _trainer(subject: Subject, strategy: str, **options: Any) -> Trainer | None:
    """Return a trainer that uses the precision under test and the given strategy. If accelkit refuses this combination, check that the
    error names the precision, and return None."""
    from accelkit import AccelkitError
    from accelkit_conformance.oracle.precision_training import trainer

    try:
        return trainer(subject, strategy=strategy, **options)
    except AccelkitError as error:
        refusal = str(error)
    assert subject.record.name in refusal, f"the refusal does not name the precision: {refusal}"
    return None


@check("distributed", kind="precision", over=_CASES, is_distributed=True)
def gradients_equal_one_process(subject: Subject, size: str, strategy: str) -> None:
    """The gradients, and the weights after one optimizer step, match those that one process computes in float64 on the whole batch, within
    the tolerance of the precision. The weights are the same on all processes, bit for bit.
    """
    from accelkit_conformance.oracle.precision_models import ROWS
    from accelkit_conformance.oracle.precision_training import check_close, exact, gradients_of, mean_square, sgd, weights_of

    trained = _trainer(subject, strategy)
    if trained is None:
        return
    model, x, y = exact(rows=ROWS * int(size))
    mean_square(model(x), y).backward()
    check_close(subject, trained.finite_gradients(), gradients_of(model), "gradients")
    trained.optimizer.step()
    sgd(model.parameters()).step()
    weights = weights_of(trained.model)
    check_close(subject, weights, weights_of(model), "weights after a step")
    _check_same_everywhere(weights)


@check("distributed", kind="precision", over=_CASES, is_distributed=True)
def clipping_uses_the_norm_of_the_whole(subject: Subject, size: str, strategy: str) -> None:
    """On every process, ``clip_grad_norm_`` returns the norm of the gradients of the whole model for the whole batch. If the gradients are
    clipped to half of this norm, the weights after the optimizer step match those after a step in float64 with the same clipping. Both
    comparisons are within the tolerance of the precision."""
    import torch

    from accelkit_conformance.oracle.precision_declarations import declaration_of
    from accelkit_conformance.oracle.precision_models import ROWS
    from accelkit_conformance.oracle.precision_training import bare_name, check_close, exact, mean_square, sgd, weights_of, whole

    trained = _trainer(subject, strategy)
    if trained is None:
        return
    model, x, y = exact(rows=ROWS * int(size))
    mean_square(model(x), y).backward()
    names = {bare_name(name) for name in weights_of(trained.model)}
    own = [parameter for name, parameter in model.named_parameters() if name in names]
    right = float(torch.nn.utils.clip_grad_norm_(own, float("inf")))
    norms: list[Any] = []
    trained.step(clip=lambda: norms.append(trained.runtime.clip_grad_norm_(trained.model.parameters(), right / 2)))
    found = float(whole(norms[-1]))
    assert abs(found - right) <= declaration_of(subject.plugin()).tolerance * right, (
        f"clip_grad_norm_ returned {found:.4g}, not {right:.4g}"
    )
    torch.nn.utils.clip_grad_norm_(own, right / 2)
    sgd(own).step()
    check_close(subject, weights_of(trained.model), weights_of(model), "weights after clipping and a step")


@check("distributed", kind="precision", over=_CASES, is_distributed=True)
def all_processes_skip_together(subject: Subject, size: str, strategy: str) -> None:
    """After training, all processes have the same loss scale and the same weights. A precision that does not scale losses takes one step. A
    precision that scales losses takes three steps, and the loss of one process is infinite in the second step. If a process skips the
    second step or changes its loss scale in this step, its weights are the same as before the step, and its loss scale is lower than
    before.
    """
    import torch

    from accelkit.specs.overrides import overrides
    from accelkit.specs.precision import Precision
    from accelkit_conformance.oracle.precision_training import weights_of

    trained = _trainer(subject, strategy)
    if trained is None:
        return
    trained.step()
    before, scale = weights_of(trained.model), trained.scale()
    if overrides(trained.precision, Precision, "pre_backward"):
        trained.optimizer.zero_grad()
        trained.backward(float("inf") if subject.rank == 0 else 1.0)
        trained.optimizer.step()
        if trained.runtime.optimizer_step_was_skipped or trained.scale() != scale:
            for name, weight in weights_of(trained.model).items():
                assert torch.equal(weight, before[name]), f"a step with an infinite loss on one process changed {name}"
            assert trained.scale() < scale, f"the scale is still {scale:g}"
        trained.step()
    _check_same_everywhere({"the scale": torch.tensor(trained.scale()), **weights_of(trained.model)})


@check("distributed", kind="precision", over=_CASES, is_distributed=True)
def accumulation_over_processes(subject: Subject, size: str, strategy: str) -> None:
    """With ``gradient_accumulation_steps=2``, the step after two backward passes matches a step in float64 on the whole batch."""
    from accelkit_conformance.oracle.precision_models import ROWS
    from accelkit_conformance.oracle.precision_training import check_close, exact, mean_square, sgd, weights_of

    trained = _trainer(subject, strategy, gradient_accumulation_steps=2)
    if trained is None:
        return
    x, y = trained.data
    for _ in range(40):  # a scaler may skip the first steps
        trained.optimizer.zero_grad()
        for half in (slice(0, ROWS // 2), slice(ROWS // 2, ROWS)):
            with trained.runtime.accumulate(trained.model):
                trained.runtime.backward(mean_square(trained.model(x[half]), y[half]))
                trained.optimizer.step()
        if not trained.runtime.optimizer_step_was_skipped:
            break
    model, x, y = exact(rows=ROWS * int(size))
    mean_square(model(x), y).backward()
    sgd(model.parameters()).step()
    check_close(subject, weights_of(trained.model), weights_of(model), "weights after two passes and a step")


def _check_same_everywhere(tensors: dict[str, Any]) -> None:
    """Check that the tensors have exactly the same values on all processes."""
    import torch.distributed as dist

    everywhere: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, {name: tensor.tolist() for name, tensor in tensors.items()})
    for name, value in everywhere[0].items():
        different = [rank for rank, other in enumerate(everywhere) if other[name] != value]
        assert not different, f"{name} is not the same on rank 0 and rank {different[0]}"
