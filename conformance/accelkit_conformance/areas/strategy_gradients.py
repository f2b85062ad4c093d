"""After each step, every process has the weights that a single process gets when it trains on the batches of the whole job. The weights
differ by at most 1e-12 in float64 and 1e-4 in float32. If the largest absolute weight is more than 1, these limits are multiplied by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelkit_conformance.checks import SIZES, check, one_and_several
from accelkit_conformance.results import DECLARED_NONE, NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


@check("smoke", kind="strategy", over=lambda: [("smoke", ("1",)), ("smoke", ("2",)), ("distributed", ("3",))], is_distributed=True)
def steps_equal_one_process(subject: Subject, size: str) -> None:
    """Two steps give the same weights as training in a single process. The Runtime uses the process's own device, and the result of the
    model is on this device."""
    from accelkit_conformance.oracle.strategy_models import BlockModel, make
    from accelkit_conformance.oracle.strategy_training import ModelPair, dtype_of, runtime

    dtype = dtype_of(subject)
    with runtime(subject) as rt:
        assert rt.device == subject.device, f"rank {subject.rank} computes on {rt.device}, not on its own device {subject.device}"
        pair = ModelPair(subject, rt, make(BlockModel, dtype))
        for batch in pair.batches(2):
            pair.train(batch)
        subject.assert_on_device(pair.model(batch.to(rt.device)))


@check("distributed", kind="strategy", over=SIZES, is_distributed=True)
def uneven_batches(subject: Subject, size: str) -> None:
    """If the processes have batches of different sizes, and each process divides the sum of its losses by the mean number of samples per
    process, a step is the same as in a single process."""
    from accelkit_conformance.oracle.strategy_models import BlockModel
    from accelkit_conformance.oracle.strategy_training import training

    with training(subject, BlockModel) as pair:
        for batch in pair.batches(2):
            pair.train(batch, is_uneven=True)


@check("training", kind="strategy", over=one_and_several, is_distributed=True)
def accumulation(subject: Subject, size: str) -> None:
    """With ``gradient_accumulation_steps=3``, a model is trained on six batches inside ``accumulate``, and the optimizer's ``step`` is
    called after each batch. The weights are then the same as after training in a single process that takes one step after every third
    batch.
    """
    from accelkit_conformance.oracle.strategy_models import BlockModel
    from accelkit_conformance.oracle.strategy_training import training

    with training(subject, BlockModel, gradient_accumulation_steps=3) as pair:
        for index, batch in enumerate(pair.batches(6), 1):
            with pair.rt.accumulate(pair.model):
                pair.backward(batch, factor=1 / 3)
                if index % 3:
                    pair.optimizer.step()
                    pair.optimizer.zero_grad()
                else:
                    pair.step()
        pair.check()


@check("training", kind="strategy", over=one_and_several, is_distributed=True)
def no_sync(subject: Subject, size: str) -> None:
    """The gradients of a backward pass inside ``no_sync`` are part of the next step: after a further backward pass outside ``no_sync``, the
    step is the same as in a single process that trains on both batches. A later step without ``no_sync`` is also the same as in a single
    process."""
    from accelkit_conformance.oracle.strategy_models import BlockModel
    from accelkit_conformance.oracle.strategy_training import training

    with training(subject, BlockModel) as pair:
        first, second, third = pair.batches(3)
        with pair.rt.no_sync(pair.model):
            pair.backward(first)
        pair.train(second)
        pair.train(third)


@check("distributed", kind="strategy", over=SIZES, is_distributed=True)
def no_sync_does_not_reduce(subject: Subject, size: str) -> None:
    """If the strategy overrides ``no_sync``, a backward pass inside ``no_sync`` does not reduce gradients. After this pass, each gradient
    on a process is the gradient of the process's own samples. Gradients that are sharded or None are not compared."""
    import torch

    from accelkit import Strategy
    from accelkit.specs.overrides import overrides
    from accelkit_conformance.oracle.strategy_models import BlockModel, make
    from accelkit_conformance.oracle.strategy_training import agree, dtype_of, is_engine, share, training

    if not overrides(subject.plugin(), Strategy, "no_sync") or is_engine(subject):
        raise NotSupported(f"passes without reduction: {DECLARED_NONE} (no_sync is not overridden)")
    with training(subject, BlockModel) as pair:
        rt = pair.rt
        (batch,) = pair.batches(1)
        with rt.no_sync(pair.model):
            pair.backward(batch)
        own = make(BlockModel, dtype_of(subject))
        (own(share(rt, batch)).square().sum() * rt.data_parallel_size / len(batch)).backward()
        problem = ""
        for (name, mine), theirs in zip(rt.unwrap_model(pair.model).named_parameters(), own.parameters(), strict=True):
            if mine.grad is None or hasattr(mine.grad, "full_tensor"):
                continue  # sharded gradients contain only passes that have been reduced
            assert theirs.grad is not None
            if not torch.allclose(mine.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-6):
                problem = problem or f"inside no_sync, the gradient of {name} is not that of this process alone: it is reduced already"
        agree(subject, problem)
        pair.backward(batch)


@check("training", kind="strategy", over=one_and_several, is_distributed=True)
def unused_parameters(subject: Subject, size: str) -> None:
    """If no process uses a certain layer of a model, there are two acceptable outcomes. Either training gives the same weights as training
    in one process, where this layer stays unchanged, or the backward pass or the step raises an error that mentions parameters."""
    from accelkit_conformance.oracle.strategy_models import UnusedModel
    from accelkit_conformance.oracle.strategy_training import agree, training

    with training(subject, UnusedModel) as pair:
        problem = refusal = ""
        for batch in pair.batches(2):
            try:
                pair.backward(batch)
                pair.step()
            except Exception as error:
                refusal = str(error)
                if "parameter" not in refusal.lower():
                    problem = f"a layer that is not used gives an error that does not mention parameters: {type(error).__name__}: {refusal}"
                break
        agree(subject, problem or ("" if refusal else pair.problem()))


@check("training", kind="strategy", over=one_and_several, is_distributed=True)
def frozen_parameters(subject: Subject, size: str) -> None:
    """A model with some frozen parameters is prepared and trained for one step. ``requires_grad`` of each parameter stays as it was, frozen
    parameters keep their values, and the other parameters get the same values as in one process."""
    from accelkit_conformance.oracle.strategy_models import BlockModel, make
    from accelkit_conformance.oracle.strategy_training import ModelPair, agree, dtype_of, runtime

    dtype = dtype_of(subject)
    with runtime(subject) as rt:
        model = make(BlockModel, dtype)
        model.inward.requires_grad_(False)  # type: ignore[union-attr]
        model.blocks[1].linear.bias.requires_grad_(False)  # type: ignore[index,union-attr]
        pair = ModelPair(subject, rt, model)
        (batch,) = pair.batches(1)
        pair.backward(batch)
        frozen = [one.requires_grad for one in rt.unwrap_model(pair.model).parameters()]
        expected = [one.requires_grad for one in pair.single.parameters()]
        agree(subject, "" if frozen == expected else f"parameters were frozen or thawed: requires_grad is {frozen} and was {expected}")
        pair.step()
        pair.check()


@check("training", kind="strategy", over=one_and_several, is_distributed=True)
def shared_parameters(subject: Subject, size: str) -> None:
    """A weight that two layers share is still shared after ``prepare``, and is trained as in one process."""
    from accelkit_conformance.oracle.strategy_models import TiedModel
    from accelkit_conformance.oracle.strategy_training import agree, training

    with training(subject, TiedModel) as pair:
        model = pair.rt.unwrap_model(pair.model)
        is_tied = model.first.weight is model.second.weight  # type: ignore[union-attr]
        agree(subject, "" if is_tied else "two layers shared a weight before prepare, and no longer do")
        for batch in pair.batches(2):
            pair.train(batch)


@check("training", kind="strategy", over=one_and_several, is_distributed=True)
def two_models(subject: Subject, size: str) -> None:
    """Two models, each with an optimizer, are prepared one after the other and trained in turn. Both are trained as in one process, or
    preparing the second model raises UnsupportedError."""
    from accelkit_conformance.oracle.strategy_models import BlockModel, TiedModel, make
    from accelkit_conformance.oracle.strategy_training import ModelPair, dtype_of, optional, runtime

    dtype = dtype_of(subject)
    with runtime(subject) as rt:
        first = ModelPair(subject, rt, make(BlockModel, dtype))
        with optional("two models"):
            second = ModelPair(subject, rt, make(TiedModel, dtype))
        for batch in first.batches(2):
            for pair in (first, second):
                pair.train(batch)


@check("training", kind="strategy", over=one_and_several, is_distributed=True)
def buffers(subject: Subject, size: str) -> None:
    """After two training steps, the buffers of a prepared model are on the device, and have the same values and dtypes as after training in
    one process. The forward pass updates one of the buffers."""
    import torch

    from accelkit_conformance.oracle.strategy_models import BufferedModel
    from accelkit_conformance.oracle.strategy_training import agree, training, whole_buffers

    with training(subject, BufferedModel) as pair:
        rt = pair.rt
        for batch in pair.batches(2):
            pair.train(batch)
        problem, expected = "", dict(pair.single.named_buffers())
        for name, mine in whole_buffers(subject, rt.unwrap_model(pair.model), list(expected)).items():
            if mine.dtype != expected[name].dtype or not torch.equal(mine, expected[name]):
                problem = problem or f"after two steps, the buffer {name} is {mine} instead of {expected[name]}"
        agree(subject, problem)
        subject.assert_on_device(*rt.unwrap_model(pair.model).buffers())


@check("distributed", kind="strategy", over=SIZES, is_distributed=True)
def same_samples_have_the_same_dropout(subject: Subject, size: str) -> None:
    """After ``seed_everything(per_process=True)``, processes that train on the same samples, such as the processes of a tensor-parallel
    group, have the same dropout masks in every step. Processes that train on different samples have different masks."""
    import torch
    import torch.distributed as dist

    from accelkit_conformance.oracle.strategy_models import DropoutModel, make
    from accelkit_conformance.oracle.strategy_training import dtype_of, runtime

    with runtime(subject) as rt:
        if rt.data_parallel_size == rt.num_processes:
            raise NotSupported("each process trains on samples of its own")
        dtype = dtype_of(subject)
        model = make(DropoutModel, dtype)
        rt.seed_everything(7, per_process=True)
        model, optimizer = rt.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for step in (1, 2):
            result = model(torch.ones(64, 4, dtype=dtype, device=rt.device))
            mine = rt.data_parallel_index, (result.detach().cpu() != 0).tolist()
            masks: list[tuple[int, list[list[bool]]]] = [mine] * rt.num_processes
            dist.all_gather_object(masks, mine)
            for rank, (index, mask) in enumerate(masks):
                shares = f"step {step}: rank {rank} trains on share {index} of the samples, and rank {rt.process_index} on share {mine[0]}"
                assert (mask == mine[1]) == (index == mine[0]), f"{shares}, but their masks are {'' if mask == mine[1] else 'not '}the same"
            rt.backward(result.sum())
            optimizer.step()
            optimizer.zero_grad()
