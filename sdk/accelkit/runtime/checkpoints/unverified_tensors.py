"""Tensors that were loaded before their part of the checkpoint was verified. A thread that uses their values waits for the verification.

While a tensor is unverified, its class is a subclass of its original class. Before every operation on the tensor, torch calls the
method ``__torch_function__`` of the subclass. If the operation needs values, the method waits for the verification and then restores the
original class, so that later operations cost no extra time. torch changes the class of its lazily initialised parameters in the same way.
Some C++ code does not call ``__torch_function__``. Hooks of the prepared modules and optimizers therefore verify the tensors before each
forward pass and optimizer step.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from accelkit.runtime.checkpoints.block_verification import BlockVerification

_RECORD = "_accelkit_unverified"
_tensor: Any = torch.Tensor
_WITHOUT_VALUES = {
    *(getattr(_tensor, name).__get__ for name in ("shape", "dtype", "device", "layout", "is_meta", "requires_grad", "is_leaf", "grad")),
    _tensor.grad.__set__,
    *(getattr(_tensor, name) for name in ("size", "dim", "numel", "is_floating_point")),
}
"""Functions that do not depend on the values of a tensor."""


class UnverifiedTensors:
    """The tensors that were loaded from one checkpoint and have not been verified yet.

    Args:
        verification: The verification of the checkpoint's blocks.
    """

    def __init__(self, verification: BlockVerification) -> None:
        self._verification = verification
        self._marked: list[weakref.ref[torch.Tensor]] = []
        self._destinations: dict[int, torch.Tensor] = {}
        self._is_restoring = False
        self._hooks: list[Any] = []

    def mark(self, tensor: torch.Tensor, key: str) -> None:
        """Make the first use of the tensor wait until the data stored under ``key`` are verified.

        This is possible for the classes ``torch.Tensor`` and ``torch.nn.Parameter``. For a tensor of any other class, such as DTensor, this
        method itself waits until the data are verified.

        Raises:
            CheckpointError: If this method waits, and the data are damaged.
        """
        if self._verification.is_intact(key):
            return
        unverified = type(tensor) if type(tensor) in _VERIFIED else _UNVERIFIED.get(type(tensor))
        if unverified is None:
            self._verification.wait(key)
            return
        tensor.__dict__[_RECORD] = (self, key)
        tensor.__class__ = unverified
        self._marked.append(weakref.ref(tensor))

    def wait(self, key: str) -> None:
        """Wait until the tensor that is stored under ``key`` is verified.

        Raises:
            CheckpointError: If the tensor is damaged.
        """
        self._verification.wait(key)

    def wait_for_all(self) -> None:
        """Wait until the whole checkpoint is verified.

        Raises:
            CheckpointError: If the checkpoint is damaged.
        """
        self._verification.wait_for_all()
        self._release_intact()

    def close(self) -> None:
        """Verify the tensors that have not been verified yet, and remove the hooks that ``start`` registered.

        Raises:
            CheckpointError: If the checkpoint is damaged and no earlier error has reported the damage.
        """
        self.remove_hooks()
        self._verification.wait_for_all(once=True)
        self._release_intact()

    @contextlib.contextmanager
    def restoring(self, modules: Iterable[torch.nn.Module]) -> Iterator[None]:
        """Until the end of the ``with`` block, let ``load_state_dict`` copy unverified values into ``modules`` without waiting.

        If unverified values are copied into a parameter or buffer of ``modules``, this parameter or buffer becomes unverified too. A copy
        into any other tensor waits for the verification.
        """
        self._destinations = {id(tensor): tensor for module in modules for tensor in _tensors_of_module(module)}
        self._is_restoring = True
        try:
            yield
        finally:
            self._is_restoring, self._destinations = False, {}

    def start(self, modules: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Start verifying all tensors in threads. Forward passes and optimizer steps wait until the tensors that they use are verified.

        If a module contains a ScriptModule, the tensors of the module are verified before this method returns.

        Raises:
            CheckpointError: If a tensor of a module that contains a ScriptModule is damaged.
        """
        for module in modules:
            if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):  # its passes run without Python
                for tensor in _tensors_of_module(module):
                    verify(tensor)
            else:
                hook = _BeforeUse(self)
                self._hooks.append(module.register_forward_pre_hook(hook, prepend=True))
        self._hooks += [optimizer.register_step_pre_hook(_BeforeUse(self)) for optimizer in optimizers]
        self._verification.start(self._release_intact)

    def stop(self) -> None:
        """Stop the threads and wait until they have ended. Tensors that have not been verified are verified when they are used."""
        self._verification.stop()

    def remove_hooks(self) -> None:
        """Remove the hooks that ``start`` registered.

        Called when all tensors are verified, after another checkpoint has been loaded, and when the Runtime is closed.
        """
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def remove_finished_hooks(self) -> None:
        """Remove the hooks if everything is verified. Must be called between steps: during a step, torch may iterate over the hooks."""
        if self._hooks and self._verification.is_complete:
            self.remove_hooks()

    def _release_intact(self) -> None:
        for reference in self._marked:
            tensor = reference()
            record = None if tensor is None else tensor.__dict__.get(_RECORD)
            if tensor is not None and record is not None and record[0] is self and self._verification.is_intact(record[1]):
                _release(tensor)

    def copy_into(self, target: torch.Tensor, source: torch.Tensor, key: str, arguments: Any) -> bool:
        """Copy ``source`` into ``target`` before ``source`` is verified, if that is possible. Return whether the copy was made.

        The copy is possible if ``target`` is a parameter or buffer of the modules passed to ``restoring``, and its original class is
        ``torch.Tensor`` or ``torch.nn.Parameter``. After the copy, ``target`` is unverified too.
        """
        if id(target) not in self._destinations or type(target) not in (*_UNVERIFIED, *_VERIFIED):
            return False
        _release(source)
        try:
            _overwrite(target, source, arguments)
        finally:
            self.mark(source, key)
        self.mark(target, key)
        return True

    def convert(self, tensor: torch.Tensor, key: str, arguments: Any, options: Any) -> torch.Tensor | None:
        """Call ``tensor.to`` with the given arguments without waiting for the verification, and return the result.

        The result is unverified too. Outside a ``with`` block of ``restoring``, this method does nothing and returns None.
        """
        if not self._is_restoring:
            return None
        _release(tensor)
        try:
            result = tensor.to(*arguments, **options)
        finally:
            self.mark(tensor, key)
        if result is not tensor:
            self.mark(result, key)
        return result


def verify(tensor: torch.Tensor) -> None:
    """Wait until the values of a tensor may be used. Return immediately unless the tensor is unverified.

    Raises:
        CheckpointError: If the tensor's part of the checkpoint is damaged.
    """
    if type(tensor) in _VERIFIED:
        if (record := tensor.__dict__.get(_RECORD)) is not None:  # otherwise another thread is restoring its class
            unverified, key = record
            unverified.wait(key)
        _release(tensor)


def _release(tensor: torch.Tensor) -> None:
    tensor.__dict__.pop(_RECORD, None)
    if (own := _VERIFIED.get(type(tensor))) is not None:
        tensor.__class__ = own


def _overwrite(target: torch.Tensor, source: torch.Tensor, arguments: Any) -> None:
    """Copy ``source`` into ``target``. The previous values of ``target`` no longer have to be verified.

    If the copy fails and ``target`` was unverified before, ``target`` is marked as unverified again.
    """
    record = target.__dict__.get(_RECORD) if type(target) in _VERIFIED else None
    _release(target)
    try:
        target.copy_(source, *arguments)
    except BaseException:
        if record is not None:
            record[0].mark(target, record[1])
        raise


def _apply(cls: Any, function: Any, types: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Run a torch function that was called with an unverified tensor. Implements ``__torch_function__``."""
    if function in _WITHOUT_VALUES:
        return _tensor.__torch_function__(function, (), arguments, options)
    first: Any = arguments[0] if arguments else None
    record = first.__dict__.get(_RECORD) if type(first) in _VERIFIED else None
    if (
        function is _tensor.to
        and record is not None
        and (result := record[0].convert(first, record[1], arguments[1:], options)) is not None
    ):
        return result
    if function is _tensor.copy_ and len(arguments) > 1 and isinstance(arguments[1], torch.Tensor) and not options:
        _, source, *rest = arguments
        record = source.__dict__.get(_RECORD) if type(source) in _VERIFIED else None
        if record is None or not record[0].copy_into(first, source, record[1], rest):
            verify(source)
            _overwrite(first, source, rest)
        return first
    for tensor in _unverified_in((arguments, options)):
        verify(tensor)
    return function(*arguments, **options)


def _unverified_in(value: Any) -> Iterator[torch.Tensor]:
    if type(value) in _VERIFIED:
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _unverified_in(item)
    elif isinstance(value, dict):
        yield from _unverified_in(list(value.values()))


class _UnverifiedTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _apply(cls, func, types, args, kwargs or {})

    def __deepcopy__(self, memo: Any) -> Any:  # torch's own method would make an instance of this class
        verify(self)
        return copy.deepcopy(self, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        verify(self)
        return self.__reduce_ex__(protocol)


class _UnverifiedParameter(torch.nn.Parameter):
    __torch_function__ = _UnverifiedTensor.__torch_function__
    __deepcopy__ = _UnverifiedTensor.__deepcopy__
    __reduce_ex__ = _UnverifiedTensor.__reduce_ex__


_UNVERIFIED: dict[type, Any] = {torch.Tensor: _UnverifiedTensor, torch.nn.Parameter: _UnverifiedParameter}
_VERIFIED: dict[type, Any] = {unverified: own for own, unverified in _UNVERIFIED.items()}


class _BeforeUse:
    """Hook that verifies the tensors of a module before its forward pass, or the tensors of an optimizer before its step.

    If a module is copied, its hook is copied too. The copied hook does nothing, because the tensors were verified before they were copied.
    """

    def __init__(self, unverified: UnverifiedTensors | None = None) -> None:
        self._unverified = unverified

    def __call__(self, thing: Any, *arguments: Any) -> None:
        if self._unverified is None:
            return
        is_module = isinstance(thing, torch.nn.Module)
        for tensor in _tensors_of_module(thing) if is_module else _tensors_of_optimizer(thing):
            verify(tensor)
        if is_module:
            self._unverified.remove_finished_hooks()

    def __reduce__(self) -> Any:
        return _BeforeUse, ()


def _tensors_of_module(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _tensors_of_optimizer(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield parameter
            yield from _unverified_in(list(optimizer.state.get(parameter, {}).values()))
