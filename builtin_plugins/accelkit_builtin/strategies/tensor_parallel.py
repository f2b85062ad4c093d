"""Tensor parallelism with torch's ``parallelize_module``: finding a plan, checking it, and applying it without untying parameters."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

from accelkit import PrepareError, UnsupportedError

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.parallel import ParallelStyle


def check_plan(module: torch.nn.Module, plan: Mapping[str, Any]) -> None:
    """Check that every pattern in a plan matches a module.

    If a pattern matches no module, torch itself only warns. The layer that the pattern was meant for is then not divided, and each process
    computes the whole layer.

    Raises:
        PrepareError: If a pattern matches no module. The error lists similar names of modules.
    """
    names = [name for name, _ in module.named_modules()]
    for pattern in plan:
        if not any(_matches(name, pattern) for name in names):
            similar = difflib.get_close_matches(pattern, names, n=3, cutoff=0.4)
            raise PrepareError(
                f"the tensor-parallel plan has {pattern!r}, but {type(module).__name__} has no module of that name",
                why=f"its modules include {', '.join(map(repr, similar or names[1:4]))}",
                hint="print the names with model.named_modules(); * stands for any part of a name that has no dot",
            )


def plan_of(module: torch.nn.Module, size: int, plugin: str) -> dict[str, ParallelStyle]:
    """Return a tensor-parallel plan for a model: a mapping from patterns of module names to torch's ``ParallelStyle`` objects.

    The plan is read from the model's attribute ``_tp_plan``. If the model has no ``_tp_plan``, or an empty one, the plan divides the
    feed-forward parts of all ``torch.nn.TransformerEncoderLayer`` and ``torch.nn.TransformerDecoderLayer`` modules, but not of instances of
    their subclasses.

    Models of Hugging Face's ``transformers`` have the attribute ``_tp_plan``, in which each style is given by its name. Entries that match
    no module are left out, because a model's ``_tp_plan`` may list modules that only other models of its class have.

    Args:
        module: The model.
        size: The number of processes over which layers are divided. The message of the PrepareError contains this number.
        plugin: The strategy's ``dist==version``. The message of the UnsupportedError contains this text.

    Raises:
        PrepareError: If no pattern in ``_tp_plan`` matches a module, or if the model has neither ``_tp_plan`` nor any of torch's
            transformer layers.
        UnsupportedError: If a pattern that matches a module has an unknown style.
    """
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

    styles: dict[str, Callable[[], ParallelStyle]] = {
        "colwise": ColwiseParallel,
        "rowwise": RowwiseParallel,
        "colwise_rep": lambda: ColwiseParallel(output_layouts=Replicate()),
        "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
        "rowwise_rep": lambda: RowwiseParallel(input_layouts=Replicate()),
        "rowwise_split_input": lambda: RowwiseParallel(input_layouts=Replicate()),
        "embedding_rowwise": lambda: RowwiseParallel(input_layouts=Replicate()),
    }
    given: Mapping[str, Any] = getattr(module, "_tp_plan", None) or _plan_of_torch_layers(module)
    names = [name for name, _ in module.named_modules()]
    found = {pattern: style for pattern, style in given.items() if any(_matches(name, pattern) for name in names)}
    if not found:
        raise PrepareError(
            f"tensor={size} needs a plan for {type(module).__name__}",
            why="it has neither a _tp_plan nor layers of torch.nn.Transformer" if not given else "no name in its _tp_plan matches a module",
            hint='use ParallelOptions(plan={"layers.*.linear1": ColwiseParallel(), "layers.*.linear2": RowwiseParallel()}), for example',
        )
    unknown = sorted({str(style) for style in found.values() if not isinstance(style, ParallelStyle) and style not in styles})
    if unknown:
        raise UnsupportedError(
            f"the _tp_plan of {type(module).__name__} has the style {', '.join(map(repr, unknown))}",
            plugin=plugin,
            why=f"known styles are {', '.join(styles)}, and the classes of torch.distributed.tensor.parallel",
            hint="give ParallelOptions a plan of your own",
        )
    return {pattern: style if isinstance(style, ParallelStyle) else styles[style]() for pattern, style in found.items()}


def _plan_of_torch_layers(module: torch.nn.Module) -> dict[str, str]:
    """Return a plan that divides the feed-forward parts of torch's own transformer layers.

    The attention of these layers is not divided, because ``MultiheadAttention`` has a fixed number of heads, and keeps the weights for
    queries, keys and values in one parameter.
    """
    import torch

    kinds = (torch.nn.TransformerEncoderLayer, torch.nn.TransformerDecoderLayer)
    return {
        f"{path}.{name}".lstrip("."): style
        for path, layer in module.named_modules()
        if type(layer) in kinds
        for name, style in (("linear1", "colwise"), ("linear2", "rowwise"))
    }


def parallelize(module: torch.nn.Module, mesh: DeviceMesh, plan: Mapping[str, ParallelStyle], plugin: str) -> None:
    """Divide layers of a module in place, as the plan says.

    All processes must already have the same weights. Each process takes its parts from its own weights; no weights are sent.

    Args:
        module: The module.
        mesh: A one-dimensional mesh of the processes over which layers are divided.
        plan: A mapping from patterns of submodule names to the styles by which these submodules are divided. Tied parameters stay tied if
            the plan divides them alike.
        plugin: The strategy's ``dist==version``. The message of the UnsupportedError contains this text.

    Raises:
        UnsupportedError: If the plan divides tied parameters differently, so that they would become separate parameters.
    """
    from torch.distributed.tensor.parallel import parallelize_module

    before = _places_of_parameters(module)
    frozen = [place for places in before.values() for place in places if not place[1].get_parameter(place[2]).requires_grad]
    parallelize_module(module, mesh, dict(plan), src_data_rank=None)
    for _, owner, name in frozen:  # SequenceParallel replaces parameters with ones that require gradients
        owner.get_parameter(name).requires_grad_(False)
    for places in before.values():
        now: list[Any] = [owner.get_parameter(name) for _, owner, name in places]
        if all(parameter is now[0] for parameter in now):
            continue
        if len({(type(parameter), getattr(parameter, "placements", None)) for parameter in now}) > 1:
            raise UnsupportedError(
                f"the tensor-parallel plan divides {' and '.join(path for path, _, _ in places)} differently",
                plugin=plugin,
                why="they are the same parameter, which would become several",
                hint="divide both modules alike, such as an Embedding with RowwiseParallel and a Linear with ColwiseParallel, or neither",
            )
        for _, owner, name in places[1:]:
            setattr(owner, name, now[0])


def _places_of_parameters(module: torch.nn.Module) -> dict[int, list[tuple[str, torch.nn.Module, str]]]:
    """Return the places where each parameter is registered, keyed by the ``id`` of the parameter.

    Each place consists of the path of the parameter, the module in which the parameter is registered, and the parameter's name in that
    module. A parameter has several places if it is tied, that is, registered in several modules or under several names.
    """
    places: dict[int, list[tuple[str, torch.nn.Module, str]]] = {}
    for path, owner in module.named_modules():
        for name, parameter in owner.named_parameters(recurse=False, remove_duplicate=False):
            places.setdefault(id(parameter), []).append((f"{path}.{name}".lstrip("."), owner, name))
    return places


def _matches(name: str, pattern: str) -> bool:
    """Return whether a module's name matches a pattern, such as ``layers.*.linear1``.

    As in ``parallelize_module``, ``fnmatch`` compares the parts between dots one by one, so ``*`` does not match a dot.
    """
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatch, parts, wanted))
