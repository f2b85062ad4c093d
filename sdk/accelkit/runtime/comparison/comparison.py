"""``Runtime.compare_to_cpu``: a forward and a backward pass on the device, in which each operator's results are compared with the CPU's."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from accelkit.errors import UnsupportedError, UsageError
from accelkit.plugin_calls import call as call_plugin
from accelkit.pytree import tree_leaves
from accelkit.runtime import seeding
from accelkit.runtime.comparison.cotangents import cotangents
from accelkit.runtime.comparison.module_calls import ModuleCalls
from accelkit.runtime.comparison.operator_call import describe
from accelkit.runtime.comparison.operator_watch import OperatorWatch, Wrong
from accelkit.runtime.comparison.report import Comparison, Finding
from accelkit.runtime.comparison.reproducer import write_program
from accelkit.runtime.session import Session

Loss = Callable[[Any, Any], torch.Tensor]


def compare_to_cpu(model: torch.nn.Module, batch: Any, loss: Loss | None, folder: str | Path | None, session: Session) -> Comparison:
    """Run the model, compare the results of each operator with the CPU's, and return the report. See ``Runtime.compare_to_cpu``.

    Args:
        model: The model, without the wrappers of a strategy and of torch.compile.
        batch: The batch, on the device.
        loss: A function that takes the model and the batch, runs the model and returns the loss. If None, the loss in the model's output is
            used or, if there is none, a randomly weighted sum of the outputs.
        folder: The folder for programs that reproduce wrong results. If None and there is a wrong result, a temporary folder is created.
        session: The Runtime's session, with the device, the accelerator and the precision in use.
    """
    device, accelerator = session.device, session.configuration.accelerator
    _check_model(model, device)
    calls = ModuleCalls(model)
    watch = OperatorWatch(device, calls)
    with _unchanged(model, session), torch.enable_grad(), calls:
        with watch:
            value = _default_loss(model, batch) if loss is None else loss(model, batch)
            calls.follow_graph(value)
        if loss is not None and (not isinstance(value, torch.Tensor) or value.numel() != 1):
            raise UsageError(
                f"loss(model, batch) must return a tensor with one element, got {_description(value)}",
                why="the backward pass starts from it",
                hint="return the loss of your training step, such as cross_entropy(model(batch[0]), batch[1])",
            )
        trained = [leaf for leaf in [*model.parameters(), *tree_leaves(batch)] if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        has_backward = isinstance(value, torch.Tensor) and value.requires_grad and bool(trained)
        if has_backward:
            with watch:
                scaled = call_plugin(session.precision, "pre_backward", value)
                calls.follow_graph(scaled)
                torch.autograd.grad(scaled, trained, allow_unused=True)  # unlike backward(), this leaves the parameters' gradients alone
    target = Path(folder) if folder is not None else None
    findings = []
    for wrong in watch.wrong.values():
        target = target or Path(tempfile.mkdtemp(prefix="accelkit-compare-"))
        target.mkdir(parents=True, exist_ok=True)
        findings.append(_finding(wrong, target, accelerator.name, device))
    return Comparison(
        accelerator=accelerator.name,
        device=str(device),
        precision=session.precision.name,
        findings=tuple(findings),
        not_compared=watch.not_compared,
        num_compared=watch.compared.total(),
        num_operators=len({name.partition(".")[0] for name in watch.compared}),
        has_backward=has_backward,
    )


def _check_model(model: torch.nn.Module, device: torch.device) -> None:
    """Check that the model is a module and is entirely on the device.

    Raises:
        UsageError: If the model is not a module, or a part of it is not on the device.
        UnsupportedError: If the model is sharded.
    """
    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            f"compare_to_cpu needs a torch.nn.Module, got {type(model).__name__}",
            why="it says which module's operators are wrong",
            hint="pass the model that rt.prepare returned; loss=lambda model, batch: ... may call it in any way",
        )
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if hasattr(tensor, "device_mesh"):
            raise UnsupportedError(
                "compare_to_cpu does not support sharded models",
                why=f"this process has only a part of {name}",
                hint="compare the model on one device: Runtime(devices=1) in a program without a launcher",
            )
        if tensor.device != device:
            raise UsageError(
                f"{name} is on {tensor.device}, not on {device}",
                why="compare_to_cpu compares what the model computes on the device of the Runtime",
                hint="prepare the model first: model = rt.prepare(model)",
            )


def _default_loss(model: torch.nn.Module, batch: Any) -> torch.Tensor | None:
    """Run the model on the batch, and return a loss.

    If the model's output contains a ``loss`` with one element, this ``loss`` is returned. Otherwise, a randomly weighted mean is computed
    for each output tensor that requires a gradient, and the sum of these means is returned.

    Returns:
        The loss. None if the output contains no such ``loss`` and no tensor that requires a gradient.
    """
    output = model(**batch) if isinstance(batch, Mapping) else model(*batch) if isinstance(batch, tuple | list) else model(batch)
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, torch.Tensor) and own.numel() == 1:
        return own
    outputs = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if not outputs:
        return None
    means = [(one * weight).mean() for one, weight in zip(outputs, cotangents(outputs, "compare_to_cpu"), strict=True)]
    first, *others = [one.abs() if one.is_complex() else one for one in means]
    return sum(others, start=first)


@contextlib.contextmanager
def _unchanged(model: torch.nn.Module, session: Session) -> Iterator[None]:
    """At the end of the ``with`` block, restore the buffers of the model and the state of all generators."""
    accelerator, device = session.configuration.accelerator, session.device
    kept = [(module, name, one, one.detach().clone()) for module in model.modules() for name, one in module.named_buffers(recurse=False)]
    random_state = seeding.capture(accelerator, device)
    try:
        yield
    finally:
        seeding.restore(random_state, accelerator, device)
        with torch.no_grad():
            for module, name, buffer, values in kept:
                if getattr(module, name, None) is not buffer:
                    setattr(module, name, buffer)
                buffer.copy_(values)


def _finding(wrong: Wrong, folder: Path, accelerator: str, device: torch.device) -> Finding:
    call = wrong.call
    comment = f"{call.name} gave a wrong result on {device}, in {wrong.place}"
    program, path = write_program(call, folder, accelerator, device, comment)
    return Finding(
        operator=call.name,
        overload=str(call.operator).replace(".", "::", 1),
        place=wrong.place,
        wrong=wrong.wrong,
        inputs=describe(call.given_inputs) or "none",
        num_wrong=wrong.num_wrong,
        num_wrong_repetitions=wrong.repetitions[0],
        num_repetitions=wrong.repetitions[1],
        program=program,
        path=path,
    )


def _description(value: Any) -> str:
    return f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
