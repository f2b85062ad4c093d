"""Training that is stopped and resumed from a checkpoint ends with the same parameters, bit for bit, as uninterrupted training."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelkit_conformance.checks import check

if TYPE_CHECKING:
    import torch

    from accelkit_conformance.subject import Subject


def _objects(subject: Subject) -> tuple[Any, Any, Any]:
    import torch

    from accelkit_conformance.oracle.layers import batch_norm

    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.2), batch_norm(subject, 16), torch.nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def _steps(runtime: Any, model: Any, optimizer: Any, scheduler: Any, count: int) -> None:
    import torch

    for _ in range(count):
        optimizer.zero_grad()
        runtime.backward(model(torch.randn(8, 4, device=runtime.device)).square().mean())
        optimizer.step()
        scheduler.step()


def _state(model: Any) -> list[torch.Tensor]:
    return [tensor.detach().cpu().clone() for tensor in model.state_dict().values()]


@check("training")
def resuming_equals_uninterrupted_training(subject: Subject) -> None:
    """If a checkpoint is saved after three steps and loaded into new objects, three more steps give the same parameters and buffers as six
    uninterrupted steps, even with dropout. After loading, the parameters and buffers are on the device."""
    import torch

    def seed() -> None:
        torch.default_generator.manual_seed(0)
        subject.accelerator.manual_seed(0)

    seed()
    runtime = subject.runtime()
    whole = runtime.prepare(*_objects(subject))
    _steps(runtime, *whole, count=6)
    with tempfile.TemporaryDirectory() as folder:
        seed()
        runtime = subject.runtime()
        first = runtime.prepare(*_objects(subject))
        _steps(runtime, *first, count=3)
        runtime.save_state(folder)
        torch.rand(100, device=subject.device)
        runtime = subject.runtime()
        second = runtime.prepare(*_objects(subject))
        runtime.load_state(folder)
        subject.assert_on_device(*second[0].parameters(), *second[0].buffers())
        _steps(runtime, *second, count=3)
    for mine, theirs in zip(_state(second[0]), _state(whole[0]), strict=True):
        assert torch.equal(mine, theirs), "three steps after loading did not give what six steps give"


@check("training")
def state_is_restored(subject: Subject) -> None:
    """Loading a checkpoint restores parameters, buffers, the optimizer's moments and step counts, the learning rate and, if the capability
    ``random_state`` is declared, the device's random state."""
    import torch

    runtime = subject.runtime()
    model, optimizer, scheduler = runtime.prepare(*_objects(subject))
    _steps(runtime, model, optimizer, scheduler, 2)
    with tempfile.TemporaryDirectory() as folder:
        runtime.save_state(folder)
        kept = _state(model)
        moments = [{key: value.cpu().clone() for key, value in state.items()} for state in optimizer.state.values()]
        rate = optimizer.param_groups[0]["lr"]
        drawn = torch.rand(9, device=subject.device).cpu()
        _steps(runtime, model, optimizer, scheduler, 2)
        runtime.load_state(folder)
    for mine, theirs in zip(_state(model), kept, strict=True):
        assert torch.equal(mine, theirs), "a parameter or buffer is not what was saved"
    for state, moment in zip(optimizer.state.values(), moments, strict=True):
        subject.assert_on_device(state["exp_avg"], state["exp_avg_sq"])
        for key, value in moment.items():
            assert torch.equal(state[key].cpu(), value), f"{key} of the optimizer is not what was saved"
    assert optimizer.param_groups[0]["lr"] == rate, f"the learning rate is {optimizer.param_groups[0]['lr']}, not {rate}"
    if subject.capabilities.can("random_state"):
        assert torch.equal(torch.rand(9, device=subject.device).cpu(), drawn), "the device's random state is not what was saved"


@check("training")
def loads_on_the_cpu(subject: Subject) -> None:
    """A checkpoint from the device can be loaded into a run on the CPU, with all parameters and buffers."""
    import torch

    from accelkit import Runtime

    runtime = subject.runtime()
    model, optimizer, scheduler = runtime.prepare(*_objects(subject))
    _steps(runtime, model, optimizer, scheduler, 2)
    with tempfile.TemporaryDirectory() as folder:
        runtime.save_state(folder)
        other = Runtime(cpu=True)
        elsewhere = other.prepare(*_objects(subject))
        other.load_state(folder)
    for mine, theirs in zip(_state(elsewhere[0]), _state(model), strict=True):
        assert torch.equal(mine, theirs)
    assert {parameter.device.type for parameter in elsewhere[0].parameters()} == {"cpu"}


@check("training")
def distributed_checkpoint(subject: Subject) -> None:
    """``torch.distributed.checkpoint`` saves tensors that are on the device, and loads a checkpoint into existing tensors on the device. An
    asynchronous save contains the values that the tensors had when ``async_save`` was called."""
    import torch
    import torch.distributed.checkpoint as dcp

    expected = torch.arange(2048.0)
    there = {"w": expected.to(subject.device, copy=True)}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("plain", "asynchronous"):
            path = Path(folder) / name
            if name == "plain":
                dcp.save(there, checkpoint_id=path, no_dist=True)
            else:
                pending = dcp.async_save(there, checkpoint_id=path, no_dist=True)
                there["w"].zero_()
                pending.result()  # type: ignore[union-attr]
            back = {"w": torch.zeros(2048, device=subject.device)}
            dcp.load(back, checkpoint_id=path, no_dist=True)
            subject.assert_on_device(back["w"])
            assert torch.equal(back["w"].cpu(), expected), f"the {name} save does not have the values at the time of the call"


@check("training", requires=["dtype.float32"])
def kinds_of_values(subject: Subject) -> None:
    """``torch.distributed.checkpoint`` restores tensors of every dtype that is not declared ``none``; transposed, strided, expanded,
    sliced, empty and 0-d tensors; tensors in nested dicts and lists; and numbers and strings. If a tensor is loaded into a slice of a
    larger tensor, the elements around the slice do not change. ``torch.save`` saves the states of a model, an optimizer, a scheduler and
    a gradient scaler. After the states have been loaded on the device or on the CPU, the next step gives the same parameters, buffers and
    scale as without saving."""
    from accelkit_conformance.oracle.checkpoint_values import check_saved_states, check_values

    check_values(subject)
    check_saved_states(subject)
