"""Gradients are clipped by value, or by the norm of the whole model's gradients. With ``16-mixed``, all processes skip the step if the
gradients of one process are infinite. The optimizer takes a step only when the program calls ``optimizer.step()``, even if the strategy
owns the optimizer, and ``optimizer.zero_grad()`` discards the gradients. Steps of AdamW are the same as in a single process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelkit_conformance.checks import check, one_and_several
from accelkit_conformance.results import DECLARED_NONE, NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


def _norms() -> list[Any]:
    return [(profile, (*parameters, norm)) for profile, parameters in one_and_several() for norm in ("2", "inf")]


@check("training", kind="strategy", over=_norms, is_distributed=True)
def clip_by_norm(subject: Subject, size: str, norm: str) -> None:
    """``clip_grad_norm_`` returns the 2-norm or the infinity norm of the gradients of the whole model. The next step is the same as in a
    single process that clips the gradients to the same norm."""
    import torch

    from accelkit_conformance.oracle.strategy_models import BlockModel
    from accelkit_conformance.oracle.strategy_training import agree, optional, training, whole

    with training(subject, BlockModel) as pair:
        rt = pair.rt
        (batch,) = pair.batches(1)
        pair.backward(batch)
        with optional(f"clipping by the {norm}-norm"):
            found = rt.clip_grad_norm_(pair.model.parameters(), 0.1, float(norm))
        expected = float(torch.nn.utils.clip_grad_norm_(pair.single.parameters(), 0.1, float(norm)))
        pair.step()
        value = float(whole(found))
        is_right = abs(value - expected) <= pair.tolerance * max(1.0, expected)
        agree(subject, "" if is_right else f"clip_grad_norm_ returned {value}, and the norm over the whole model is {expected}")
        pair.check()


@check("training", kind="strategy", over=one_and_several, is_distributed=True)
def clip_by_value(subject: Subject, size: str) -> None:
    """After ``clip_grad_value_``, the step is the same as in a single process that clips each gradient to the same value."""
    import torch

    from accelkit_conformance.oracle.strategy_models import BlockModel
    from accelkit_conformance.oracle.strategy_training import optional, training

    with training(subject, BlockModel) as pair:
        rt = pair.rt
        (batch,) = pair.batches(1)
        pair.backward(batch)
        with optional("clipping by value"):
            rt.clip_grad_value_(pair.model.parameters(), 0.01)
        torch.nn.utils.clip_grad_value_(pair.single.parameters(), 0.01)
        pair.step()
        pair.check()


@check("training", kind="strategy", over=one_and_several, is_distributed=True)
def infinite_gradients_make_all_processes_skip(subject: Subject, size: str) -> None:
    """With ``16-mixed``, if rank 0 has infinite gradients, all processes skip the step: weights and learning rate do not change, and
    ``optimizer_step_was_skipped`` is True. The next step has finite gradients: weights and learning rate change, and
    ``optimizer_step_was_skipped`` is False.
    """
    import torch

    from accelkit_conformance.oracle.strategy_models import BlockModel, make, make_batches
    from accelkit_conformance.oracle.strategy_training import ModelPair, agree, are_equal, optional, runtime

    if subject.capabilities["autocast.float16"] == "none":
        raise NotSupported(f"autocast.float16: {DECLARED_NONE}")
    with optional("16-mixed"), runtime(subject, precision="16-mixed") as rt:
        pair = ModelPair(subject, rt, make(BlockModel, torch.float32))
        scheduler = rt.prepare(torch.optim.lr_scheduler.StepLR(pair.optimizer, 1, gamma=0.5))
        (batch,) = make_batches(1, torch.float32)
        for is_infinite in (True, False):
            before = pair.weights()
            factor = float("inf") if is_infinite and subject.rank == 0 else 1e-3
            rt.backward(pair.model(batch.to(rt.device)).square().mean() * factor)
            pair.optimizer.step()
            scheduler.step()
            pair.optimizer.zero_grad()
            is_unchanged, rate = are_equal(pair.weights(), before), pair.optimizer.param_groups[0]["lr"]
            when = f"after a step with {'infinite' if is_infinite else 'finite'} gradients"
            problem = ""
            if is_infinite and not is_unchanged:
                problem = "an infinite gradient of rank 0 changed the weights: the step is not skipped on every process"
            elif not is_infinite and is_unchanged:
                problem = "the step after a skipped one changed nothing"
            elif rt.optimizer_step_was_skipped is not is_infinite:
                problem = f"optimizer_step_was_skipped is {rt.optimizer_step_was_skipped} {when}"
            elif rate != (1.0 if is_infinite else 0.5):
                problem = f"the learning rate is {rate} {when}"
            agree(subject, problem)


@check("training", kind="strategy", over=one_and_several, is_distributed=True)
def zero_grad_discards_gradients(subject: Subject, size: str) -> None:
    """Backward passes before ``optimizer.zero_grad()`` do not affect the next step."""
    from accelkit_conformance.oracle.strategy_models import BlockModel
    from accelkit_conformance.oracle.strategy_training import training

    with training(subject, BlockModel) as pair:
        first, second = pair.batches(2)
        pair.backward(first)
        pair.zero_grad()
        pair.train(second)


@check("training", kind="strategy", over=one_and_several, is_distributed=True)
def adaptive_steps(subject: Subject, size: str) -> None:
    """Three steps of AdamW are the same as in a single process. ``prepare`` returns the same optimizer object that it was given."""
    import torch

    from accelkit_conformance.oracle.strategy_models import BlockModel
    from accelkit_conformance.oracle.strategy_training import agree, training

    made: list[Any] = []

    def adaptive(parameters: Any) -> Any:
        made.append(torch.optim.AdamW(parameters, lr=0.01))
        return made[-1]

    with training(subject, BlockModel, adaptive) as pair:
        agree(subject, "" if pair.optimizer is made[-1] else "prepare returned an optimizer other than the user's")
        pair.tolerance *= 100  # AdamW divides by the root of small numbers
        for batch in pair.batches(3):
            pair.train(batch)
