"""All processes begin with the weights of rank 0. Together, the processes of a job save the state of the whole model. A job with a
different number of processes can load this state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelkit_conformance.checks import SIZES, check, one_and_several
from accelkit_conformance.results import DECLARED_NONE, NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


@check("distributed", kind="strategy", over=SIZES, is_distributed=True)
def initial_weights_are_those_of_rank_0(subject: Subject, size: str) -> None:
    """If the models of the processes have different parameters and buffers, ``prepare`` gives every model the values of rank 0."""
    import torch

    from accelkit_conformance.oracle.strategy_models import BufferedModel, make
    from accelkit_conformance.oracle.strategy_training import ModelPair, agree, dtype_of, runtime, whole_buffers

    dtype = dtype_of(subject)

    def model_of(rank: int) -> torch.nn.Module:
        model = make(BufferedModel, dtype, seed=rank)
        model.scale.fill_(rank + 1)  # type: ignore[union-attr,operator]
        return model

    with runtime(subject) as rt:
        first, pair = model_of(0), ModelPair(subject, rt, model_of(subject.rank))
        weights, problem = pair.weights(), ""
        for (name, theirs), mine in zip(first.named_parameters(), weights, strict=True):
            if not torch.equal(mine, theirs):
                problem = problem or f"after prepare, {name} is not that of rank 0: the weights of rank 0 are not broadcast"
        expected = dict(first.named_buffers())
        for name, mine in whole_buffers(subject, rt.unwrap_model(pair.model), list(expected)).items():
            if not torch.equal(mine, expected[name]):
                problem = problem or f"after prepare, the buffer {name} is not that of rank 0: the buffers of rank 0 are not broadcast"
        agree(subject, problem)


@check("training", kind="strategy", over=one_and_several, is_distributed=True)
def state_dict_is_that_of_the_model(subject: Subject, size: str) -> None:
    """After a step, ``get_state_dict`` returns the full weights, with the names and in the order that they have in the unwrapped model. The
    weights equal those of the same model trained without the strategy, to within 1e-4. On processes other than the main process, the
    state dict may be empty instead."""
    import torch

    from accelkit import AccelkitError
    from accelkit_conformance.oracle.strategy_models import BlockModel
    from accelkit_conformance.oracle.strategy_training import agree, training, whole

    with training(subject, BlockModel) as pair:
        rt = pair.rt
        (batch,) = pair.batches(1)
        pair.backward(batch)
        pair.step()
        try:
            found = rt.get_state_dict(pair.model)
        except AccelkitError as error:
            raise NotSupported(f"state dicts: {DECLARED_NONE} ({error})") from error
        problem, expected = "", pair.single.state_dict()
        if found or rt.is_main_process:
            if list(found) != list(expected):
                problem = f"the names in the state dict are {list(found)} instead of {list(expected)}: what does unwrap_module return?"
            for name in expected if not problem else ():
                if not torch.allclose(whole(found[name]), expected[name], rtol=0, atol=1e-4):
                    problem = f"{name} in the state dict is not the trained weight"
        agree(subject, problem)


@check("training", kind="strategy", over=one_and_several, is_distributed=True)
def state_is_restored(subject: Subject, size: str) -> None:
    """``load_state`` restores the weights that ``save_state`` saved, bit for bit. If a step with momentum follows ``save_state`` and is
    repeated after ``load_state``, both steps give exactly the same weights."""
    from accelkit_conformance.oracle.strategy_jobs import saving, shared_folder
    from accelkit_conformance.oracle.strategy_models import BlockModel
    from accelkit_conformance.oracle.strategy_training import agree, are_equal, training

    with training(subject, BlockModel, _with_momentum) as pair, shared_folder(subject) as folder:
        rt = pair.rt
        first, second = pair.batches(2)
        pair.backward(first)
        pair.step()
        saved = pair.weights()
        with saving():
            rt.save_state(folder)
        pair.backward(second)
        pair.step()
        after = pair.weights()
        rt.load_state(folder)
        agree(subject, "" if are_equal(pair.weights(), saved) else "load_state did not restore the weights that save_state saved")
        pair.backward(second)
        pair.step()
        agree(subject, "" if are_equal(pair.weights(), after) else "a step after load_state differs from the same step before it")


@check("full", kind="strategy", over=SIZES, is_distributed=True, seconds=90)
def state_loads_on_another_number_of_processes(subject: Subject, size: str) -> None:
    """A job with a different number of processes can load the state that a job of two processes saved. If the check runs on two processes,
    a job of one process loads the state. If the check runs on three processes, a job of three processes loads it. The next step with
    momentum is the same as in an uninterrupted run. A strategy that implements ``save_engine`` may refuse to load the state; the check
    is then ``unsupported``.
    """
    from accelkit import CheckpointError, EngineStrategy
    from accelkit.specs.overrides import overrides
    from accelkit_conformance.oracle.strategy_jobs import jobs, saving
    from accelkit_conformance.oracle.strategy_models import BlockModel, make, make_batches
    from accelkit_conformance.oracle.strategy_training import ModelPair, dtype_of

    dtype = dtype_of(subject)
    first, second = make_batches(2, dtype)
    strategy, refusal = subject.plugin(), ""
    with saving():
        strategy.check_state()
    may_refuse = isinstance(strategy, EngineStrategy) and overrides(strategy, EngineStrategy, "save_engine")
    reference = make(BlockModel, dtype)
    with jobs(subject) as (job, folder):
        with job(2) as rt:
            if rt is not None:
                pair = ModelPair(job.subject, rt, make(BlockModel, dtype), _with_momentum)
                pair.backward(first)
                pair.step()
                rt.save_state(folder)
        reference_optimizer = _with_momentum(reference.parameters())
        (reference(first).square().sum() / len(first)).backward()
        reference_optimizer.step()
        reference_optimizer.zero_grad()
        with job(1 if size == "2" else 3) as rt:
            if rt is not None:
                pair = ModelPair(job.subject, rt, make(BlockModel, dtype, seed=5), _with_momentum)
                try:
                    rt.load_state(folder)
                except CheckpointError as error:
                    if not may_refuse:
                        raise
                    refusal = str(error)
                else:
                    pair.single.load_state_dict(reference.state_dict())
                    pair.single_optimizer.load_state_dict(reference_optimizer.state_dict())
                    pair.check()
                    pair.train(second)
    if refusal:
        raise NotSupported(f"load_state with a different number of processes: {DECLARED_NONE} ({refusal})")


def _with_momentum(parameters: Any) -> Any:
    import torch

    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
