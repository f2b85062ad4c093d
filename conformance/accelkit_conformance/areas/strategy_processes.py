"""Processes with different numbers of batches train correctly or raise UnsupportedError. An error on one rank is not swallowed, and ends
the job. Sharding saves memory. A process group that the Runtime creates ends with the Runtime."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

from accelkit.discovery import subprocess_env
from accelkit_conformance.checks import SIZES, check, one_and_several
from accelkit_conformance.results import DECLARED_NONE, NotSupported
from accelkit_conformance.subprocess_checks import as_request

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_PURPOSE = "rank 1 fails on purpose"


@check("distributed", kind="strategy", over=SIZES, is_distributed=True, seconds=40)
def uneven_numbers_of_batches(subject: Subject, size: str) -> None:
    """If the strategy supports different numbers of batches per process, all processes finish training inside ``join_uneven_inputs``, and
    have equal weights afterwards. Otherwise, ``join_uneven_inputs`` raises UnsupportedError."""
    import torch.distributed as dist

    from accelkit_conformance.oracle.strategy_models import BlockModel
    from accelkit_conformance.oracle.strategy_training import agree, are_equal, optional, training

    with training(subject, BlockModel) as pair:
        rt = pair.rt
        with optional("uneven numbers of batches"):
            joined = rt.join_uneven_inputs([pair.model])
        with joined:
            for batch in pair.batches(subject.rank + 1):
                rt.backward(pair.model(batch.to(rt.device)).square().mean())
                pair.optimizer.step()
                pair.optimizer.zero_grad()
        everyone: list[Any] = [None] * int(size)
        dist.all_gather_object(everyone, pair.weights())
        is_equal = all(are_equal(everyone[0], other) for other in everyone)
        agree(subject, "" if is_equal else "after join_uneven_inputs, the processes have different weights")


@check("training", kind="strategy", over=one_and_several, is_distributed=True)
def errors_are_passed_on(subject: Subject, size: str) -> None:
    """``accumulate`` and ``no_sync`` of the Runtime, and ``whole_parameters`` and ``join`` of the strategy, neither swallow nor replace an
    error that is raised inside them."""
    from accelkit_conformance.oracle.strategy_models import BlockModel
    from accelkit_conformance.oracle.strategy_training import agree, training

    with training(subject, BlockModel, gradient_accumulation_steps=2) as pair:
        rt = pair.rt
        contexts = {
            "accumulate": lambda: rt.accumulate(pair.model),
            "no_sync": lambda: rt.no_sync(pair.model),
            "whole_parameters": lambda: rt.strategy.whole_parameters(pair.model),
            "join": lambda: rt.strategy.join([pair.model]),
        }
        for name, context in contexts.items():
            problem, entered = f"{name} swallows an error that is raised inside it", context()
            if entered is None:
                continue
            try:
                with entered:
                    raise LookupError(_PURPOSE)
            except LookupError as error:
                is_same = type(error) is LookupError and error.args == (_PURPOSE,)
                problem = "" if is_same else f"{name} replaces an error that is raised inside it with {type(error).__name__}: {error}"
            agree(subject, problem)


@check("training", kind="strategy", over=one_and_several, is_distributed=True)
def teardown_leaves_no_group(subject: Subject, size: str) -> None:
    """A process group that the Runtime creates is gone after ``teardown``. The same processes can then train with a second Runtime."""
    from accelkit_conformance.oracle.strategy_jobs import jobs
    from accelkit_conformance.oracle.strategy_models import BlockModel, make
    from accelkit_conformance.oracle.strategy_training import ModelPair, dtype_of

    with jobs(subject) as (job, _):
        for _ in range(2):
            with job(int(size)) as rt:
                assert rt is not None
                pair = ModelPair(subject, rt, make(BlockModel, dtype_of(subject)))
                (batch,) = pair.batches(1)
                pair.train(batch)


@check("full", kind="strategy", over=SIZES, is_distributed=True)
def sharding_saves_memory(subject: Subject, size: str) -> None:
    """If n processes shard the parameters, each process uses at most 1.3 / n of the device memory that the parameters and the state of Adam
    need without sharding. The memory is measured after a step, when the gradients have been freed."""
    import torch

    from accelkit_conformance.oracle.strategy_models import WideModel, make
    from accelkit_conformance.oracle.strategy_training import agree, dtype_of, runtime

    if subject.capabilities["memory_statistics"] == "none" or subject.device_type == "cpu":
        raise NotSupported(f"memory_statistics: {DECLARED_NONE}")
    with runtime(subject) as rt:
        before = subject.allocated_before()
        model = make(WideModel, dtype_of(subject))
        num_bytes = sum(parameter.nbytes for parameter in model.parameters())
        whole = 3 * num_bytes  # with the two moments of Adam
        model, optimizer = rt.prepare(model, torch.optim.Adam(model.parameters()))
        if sum((one.to_local() if hasattr(one, "to_local") else one).nbytes for one in model.parameters()) >= num_bytes:
            raise NotSupported(f"sharding: {DECLARED_NONE} (parameters are whole)")
        rt.backward(model(torch.ones(2, WideModel.WIDTH, dtype=dtype_of(subject), device=rt.device)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        rt.wait_for_everyone()
        used = subject.allocated_before() - before
        allowed = 1.3 * whole / int(size)
        agree(
            subject,
            ""
            if used <= allowed
            else f"parameters are sharded over {size} processes, and after a step this one holds {used:.0f} bytes; "
            f"its share of parameters and optimizer state is {whole / int(size):.0f} of {whole}",
        )


@check("full", kind="strategy", seconds=320)
def an_error_of_one_rank_ends_the_job(subject: Subject) -> None:
    """If one of two launched processes raises an error while the other process waits in a step, the whole job ends within 150 seconds. Its
    exit status is not 0, and its output contains the message of the error."""
    from accelkit_conformance.oracle.strategy_training import check_is_suitable

    if not subject.cls.is_distributed:  # type: ignore[attr-defined]
        raise NotSupported(f"several processes: {DECLARED_NONE} (is_distributed is False)")
    check_is_suitable(subject)
    subject.needs_devices(2)
    program = ["-m", "accelkit_conformance.oracle.strategy_failure", json.dumps(as_request(subject.record)), _PURPOSE]
    command = ["launch", "--accelerator", subject.accelerator.name, "--devices", "2", *program]
    try:
        run = subprocess.run(
            [*subprocess_env.command("accelkit"), *command], capture_output=True, text=True, errors="replace", timeout=150, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise AssertionError("rank 1 raised an error, and the job did not end within 150 s") from error
    output = run.stdout + run.stderr
    assert run.returncode != 0, "rank 1 raised an error, and the job ended with status 0: the error was swallowed"
    assert _PURPOSE in output, f"rank 1 raised an error, and the job does not report it: {output[-600:]}"
