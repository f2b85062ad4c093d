"""Placement of models and optimizers. Modules are placed first; then optimizers are pointed at the new parameters.

On XLA and PrivateUse1, ``Module.to`` creates new Parameters. Without the code here, an optimizer created before the move would keep
updating the old parameters and train nothing, and tied parameters would no longer be tied.
"""

from __future__ import annotations

import functools
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

from accelkit.errors import PrepareError, UsageError
from accelkit.plugin_calls import call
from accelkit.runtime import tensor_referrers
from accelkit.runtime.precision_forward import apply_to_forward
from accelkit.runtime.wrapper_attributes import show_attributes_of
from accelkit.specs.precision import Precision
from accelkit.specs.strategy import Strategy

_checks: weakref.WeakKeyDictionary[torch.optim.Optimizer, list[RemovableHandle]] = weakref.WeakKeyDictionary()
_ending: weakref.WeakKeyDictionary[torch.optim.Optimizer, RemovableHandle] = weakref.WeakKeyDictionary()


class ParameterMoves:
    """Mapping from the original parameters of prepared modules to the parameters that are in the modules now.

    All references are weak, so that a module's memory is freed when the program drops the module.
    """

    def __init__(self) -> None:
        self._now = WeakTensorKeyDictionary()
        self.has_replaced = False
        self.is_unsearched = False  # whether objects that still hold replaced parameters have yet to be searched for

    def record(self, before: torch.Tensor, after: torch.Tensor) -> None:
        self.has_replaced |= before is not after
        self._now[before] = self._now[after] = TensorWeakRef(after)

    def current(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """Return the replacement for ``parameter``, or ``parameter`` itself if it is in a prepared module and was not replaced.

        Return None if ``parameter`` was never in a prepared module, or if its replacement no longer exists.
        """
        now: TensorWeakRef | None = self._now.get(parameter)  # type: ignore[no-untyped-call]
        return None if now is None else now()

    def replaced(self) -> list[torch.Tensor]:
        """Return the replaced parameters that are still referenced somewhere. They are no longer trained."""
        return [before for before, now in self._now.items() if (new := now()) is not None and new is not before]  # type: ignore[no-untyped-call]

    def are_stale(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether the optimizer still holds a parameter that was replaced. If so, its steps do not train the replacement."""
        parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
        return any((now := self.current(parameter)) is not None and now is not parameter for parameter in parameters)


def place_module(
    module: torch.nn.Module,
    device: torch.device,
    precision: Precision,
    strategy: Strategy,
    moves: ParameterMoves,
    *,
    has_to_move: bool = True,
) -> torch.nn.Module:
    """Convert, move and wrap a module, and record its new parameters.

    Args:
        module: The module, which is changed in place. Tied parameters and buffers stay tied.
        device: The device of this process.
        precision, strategy: The precision and the strategy of the Runtime.
        moves: The record to which the new parameters are added.
        has_to_move: Whether to move the module to the device.

    Returns:
        The wrapped module.
    """
    before = _slots(module)
    converted = call(precision, "convert_module", module)
    if has_to_move:
        converted = call(strategy, "place_module", converted, device)
    _restore(before, converted)
    apply_to_forward(converted, precision)
    wrapped: torch.nn.Module = call(strategy, "wrap_module", converted, device)
    _record(before, _slots(converted), moves)
    if wrapped is not converted:
        show_attributes_of(call(strategy, "unwrap_module", wrapped), wrapped)
    return wrapped


@contextmanager
def moving(module: torch.nn.Module, moves: ParameterMoves) -> Iterator[None]:
    """Return a context manager for a block that moves the module in place.

    At the end of the block, parameters and buffers that were tied before the block are tied again, and those that were uninitialized (in
    lazy modules) are uninitialized again. The new parameters are recorded in ``moves``. If the block raises an error, none of this is done.
    """
    before = _slots(module)
    yield
    _restore(before, module)
    _record(before, _slots(module), moves)


def follow_parameters(optimizer: torch.optim.Optimizer, moves: ParameterMoves, *, has_to_know: bool = True) -> None:
    """Point the optimizer and its state at the current parameters. The state of each parameter is moved to the parameter's device.

    Args:
        optimizer: The optimizer, which is changed in place.
        moves: The mapping from the original parameters of prepared modules to the current parameters.
        has_to_know: Whether every parameter must be in a prepared module. If False, the optimizer keeps a parameter that is in no
            prepared module.

    Raises:
        PrepareError: If ``has_to_know`` is True and a parameter is in no prepared module.
    """
    state = optimizer.state_dict()
    has_changed = False
    for number, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            now = moves.current(parameter)
            if now is None and not has_to_know:
                continue
            if now is None:
                raise PrepareError(
                    f"parameter {index} of group {number} of {type(optimizer).__name__} does not belong to a prepared module",
                    why=f"training this parameter of shape {tuple(parameter.shape)} would not change any prepared model",
                    hint="also prepare the model that has the parameter, earlier or in the same call",
                )
            has_changed |= now is not parameter
            group["params"][index] = now
    if optimizer.state and (has_changed or _is_elsewhere(optimizer)):
        optimizer.state.clear()
        optimizer.load_state_dict(state)


def refuse_steps_of_others(moves: ParameterMoves) -> None:
    """Find the optimizers that still have parameters that ``prepare`` replaced, and make their next step raise PrepareError.

    An optimizer that is prepared before that step does not raise the error.

    The search takes tens of milliseconds, because it goes through all objects that Python's garbage collector tracks. It is done once for
    each call to ``prepare`` that replaced parameters.
    """
    for optimizer in _optimizers():
        if moves.are_stale(optimizer):
            _before_first_step(optimizer, functools.partial(_check_step, moves))


def _optimizers() -> Iterator[torch.optim.Optimizer]:
    """Yield all optimizers of the program. This takes tens of milliseconds."""
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.optim.Optimizer) and hasattr(thing, "param_groups"):
            yield thing


def _check_step(moves: ParameterMoves, optimizer: torch.optim.Optimizer) -> None:
    """Check that an optimizer has none of the parameters that ``prepare`` has replaced.

    Called before a step of the optimizer.

    Raises:
        PrepareError: If the optimizer has such parameters.
    """
    if moves.are_stale(optimizer):
        raise PrepareError(
            f"{type(optimizer).__name__} would not train the model",
            why="prepare replaced the model's parameters when it moved the model, and this optimizer still has the old ones",
            hint="prepare both in one call: model, optimizer = rt.prepare(model, optimizer)",
        )


def refuse_steps_of_unprepared(
    modules: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer], precision: Precision
) -> None:
    """Find the optimizers that are not prepared but train prepared modules, and make their first step raise UsageError.

    Called before the first backward pass in a precision that scales gradients. An optimizer may step if a prepared optimizer has the same
    parameters, because one of the two may wrap the other.

    Args:
        modules, optimizers: The prepared modules and optimizers. Objects that are added to these sequences later are prepared, too.
        precision: The precision.
    """

    def trained(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
        own = _parameters(optimizer).difference(*(_parameters(prepared) for prepared in optimizers))
        return [parameter for module in modules for parameter in module.parameters() if id(parameter) in own]

    def check(optimizer: torch.optim.Optimizer) -> None:
        if any(parameter.grad is not None for parameter in trained(optimizer)):
            raise UsageError(
                f"{type(optimizer).__name__} has not been passed to rt.prepare",
                why=f"precision {precision.name!r} multiplies the gradients of its parameters by a scale, and only the step of a prepared "
                "optimizer divides them by it",
                hint="call optimizer = rt.prepare(optimizer)",
            )

    for optimizer in _optimizers():
        if trained(optimizer):
            _before_first_step(optimizer, check)


def _parameters(optimizer: torch.optim.Optimizer) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def warn_of_holders_at_first_step(moves: ParameterMoves, optimizer: torch.optim.Optimizer) -> None:
    """Make a prepared optimizer warn at its first step if objects still hold replaced parameters.

    An object that averages weights, for example, would average weights that no longer change. ``prepare`` itself cannot warn, because the
    program may pass the new parameters to such an object right after ``prepare`` returns. The search for such objects takes tens of
    milliseconds.
    """
    _before_first_step(optimizer, lambda _: _warn_of_holders(moves))


def _warn_of_holders(moves: ParameterMoves) -> None:
    if names := tensor_referrers.names_of_holders(moves.replaced()):
        warnings.warn(
            f"{' and '.join(names)} still {'has' if len(names) == 1 else 'have'} parameters that the model had before prepare, and "
            "these are no longer trained: the model got new ones when it was moved to its device. Create the object after prepare, from "
            "model.parameters(), or delete it",
            stacklevel=tensor_referrers.stack_level_outside_of_torch(),
        )


def _before_first_step(optimizer: torch.optim.Optimizer, check: Callable[[torch.optim.Optimizer], None]) -> None:
    """Run ``check`` before each step of the optimizer until one step has completed."""
    _checks.setdefault(optimizer, []).append(optimizer.register_step_pre_hook(lambda one, *_: _check_and_end(one, check)))


def _check_and_end(optimizer: torch.optim.Optimizer, check: Callable[[torch.optim.Optimizer], None]) -> None:
    """Run ``check`` before a step, and register a post-hook that removes all of the optimizer's checks after the step.

    The checks are pre-hooks. A pre-hook must not remove them, because torch calls it while iterating over the pre-hooks. The post-hook may
    also remove itself, because it is the last of the optimizer's post-hooks.
    """
    check(optimizer)
    if optimizer not in _ending:
        _ending[optimizer] = optimizer.register_step_post_hook(lambda one, *_: _end_checks(one))


def _end_checks(optimizer: torch.optim.Optimizer) -> None:
    for handle in [*_checks.pop(optimizer, []), _ending.pop(optimizer)]:
        handle.remove()


def _record(before: Mapping[str, Slot], after: Mapping[str, Slot], moves: ParameterMoves) -> None:
    for path, (_, _, tensor) in before.items():
        if isinstance(tensor, torch.nn.Parameter) and path in after:  # a conversion may have replaced the module
            moves.record(tensor, after[path].tensor)


class Slot(NamedTuple):
    """An entry for a parameter or buffer in a module: the module, the name of the entry, and the tensor."""

    owner: torch.nn.Module
    name: str
    tensor: torch.Tensor


def _slots(module: torch.nn.Module) -> dict[str, Slot]:
    """Return the slots of all parameters and buffers of a module, by path. A tied tensor has several slots."""
    return {
        f"{prefix}.{name}": Slot(owner, name, tensor)
        for prefix, owner in module.named_modules(remove_duplicate=False)
        for named in (torch.nn.Module.named_parameters, torch.nn.Module.named_buffers)  # not the model's overrides, which may rename
        for name, tensor in named(owner, recurse=False, remove_duplicate=False)
    }


def _restore(before: Mapping[str, Slot], module: torch.nn.Module) -> None:
    """Undo what a move changed besides the device: uninitialized parameters and buffers, and tied ones, are so again."""
    if any(is_lazy(slot.tensor) for slot in before.values()):
        _keep_uninitialized(before, _slots(module))
    _tie_again(before, _slots(module))


def _keep_uninitialized(before: Mapping[str, Slot], after: Mapping[str, Slot]) -> None:
    """Make the parameters and buffers of lazy modules, such as ``torch.nn.LazyLinear``, uninitialized again after a move.

    On XLA and PrivateUse1, ``Module.to`` replaces an uninitialized parameter with an empty Parameter, and the first call to the module then
    fails.
    """
    for path, (_, _, tensor) in before.items():
        if is_lazy(tensor) and path in after and not is_lazy(after[path].tensor):
            owner, name, now = after[path]
            kind: Any = type(tensor)  # UninitializedParameter or UninitializedBuffer
            setattr(owner, name, kind(requires_grad=tensor.requires_grad, device=now.device, dtype=now.dtype))


def _tie_again(before: Mapping[str, Slot], after: Mapping[str, Slot]) -> None:
    """Tie again all tensors that were tied before a move.

    If several slots held the same tensor before the move, the new tensor of the first of these slots is stored in the others too. A slot
    keeps its own new tensor if that tensor differs in type, dtype or shape from the first slot's.
    """
    first: dict[int, torch.Tensor] = {}
    for path in (path for path in before if path in after):
        owner, name, tensor = after[path]
        now = first.setdefault(id(before[path].tensor), tensor)
        if tensor is not now and _are_alike(now, tensor):
            setattr(owner, name, now)


def _are_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    if (type(one), one.dtype) != (type(other), other.dtype):
        return False
    return is_lazy(one) or one.shape == other.shape  # an uninitialized parameter has no shape


def _is_elsewhere(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether any state is on a different device from its parameter. Scalars such as the step count may stay on the CPU."""
    return any(
        isinstance(value, torch.Tensor) and value.dim() > 0 and value.device != parameter.device
        for parameter, values in optimizer.state.items()
        for value in values.values()
    )
