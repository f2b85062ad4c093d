"""Find the module to which a running operator belongs, in the forward pass and in the backward pass."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections import Counter
from typing import Any, Self

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from accelkit.pytree import tree_leaves


@dataclasses.dataclass(frozen=True, slots=True)
class ModulePlace:
    """The place in a model where an operator was called.

    Attributes:
        module: The name of the innermost module, such as ``layers.0.linear1``. Empty for the model itself, and outside of all modules.
        module_type: The class of the module; empty outside of all modules.
        call: Which forward call to the module the operator belongs to, counted from 1. An operator in the backward pass belongs to the
            forward call that created the running node of the autograd graph.
        node: In the backward pass, the name of the running node of the autograd graph, such as ``MmBackward0``. Empty in the forward pass.
    """

    module: str = ""
    module_type: str = ""
    call: int = 1
    node: str = ""

    @property
    def phase(self) -> str:
        """The pass in which the operator was called: ``forward`` or ``backward``."""
        return "backward" if self.node else "forward"

    def __str__(self) -> str:
        name = f"{self.module} ({self.module_type})" if self.module else self.module_type or "the loss, outside of all modules"
        call = f", call {self.call}" if self.call > 1 else ""
        return f"the backward pass of {name}{call}, in {self.node}" if self.node else f"the forward pass of {name}{call}"


class _Running(threading.local):
    """The modules and the graph node that are running in this thread. On a device, torch runs the backward pass in a separate thread."""

    def __init__(self) -> None:
        self.modules: list[ModulePlace] = []
        self.node: ModulePlace | None = None


class ModuleCalls:
    """Context manager that tracks module calls. Inside it, :meth:`place` returns where in the model the running operator was called.

    It uses torch's global module hooks, because some modules choose another implementation if they have hooks of their own. A node of the
    autograd graph is assigned to the module whose forward pass created the node. To find the nodes that a module created, the graph is
    followed back from the module's outputs; the search stops at nodes that are already assigned. The hooks see only positional arguments.
    Therefore, if the caller of a module computes a keyword argument, the nodes of this argument are assigned to the module instead of the
    caller.

    Args:
        model: The model. The name of a module in a :class:`ModulePlace` is the name that the module has in this model.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._names = {module: name for name, module in model.named_modules()}
        self._running = _Running()
        self._num_calls: Counter[torch.nn.Module] = Counter()
        self._places: dict[Any, ModulePlace] = {}
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        self._handles.append(register_module_forward_pre_hook(self._enter))
        self._handles.append(register_module_forward_hook(self._leave, always_call=True))
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._places.clear()

    def place(self) -> ModulePlace:
        """Return where in the model this thread's running operator was called."""
        if self._running.modules:  # also in the backward pass, if activations are recomputed
            return self._running.modules[-1]
        return self._running.node or ModulePlace()

    def follow_graph(self, outputs: Any) -> None:
        """Follow the autograd graph back from ``outputs``, and assign all nodes that have no module yet to the module that is running."""
        place = self._running.modules[-1] if self._running.modules else ModulePlace()
        nodes = [leaf.grad_fn for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
        while nodes:
            node = nodes.pop()
            if node is None or node in self._places or hasattr(node, "variable"):  # a leaf's node outlives the graph
                continue
            self._places[node] = dataclasses.replace(place, node=node.name())
            self._handles.append(node.register_prehook(functools.partial(self._enter_node, self._places[node])))
            nodes += [following for following, _ in node.next_functions]

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        self.follow_graph(args)
        self._num_calls[module] += 1
        self._running.modules.append(ModulePlace(self._names.get(module, ""), type(module).__name__, self._num_calls[module]))

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        self.follow_graph(output)
        self._running.modules.pop()

    def _enter_node(self, place: ModulePlace, gradients: Any) -> None:
        self._running.node = place
