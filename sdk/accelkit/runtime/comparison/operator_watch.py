"""A dispatch mode that runs the device's operator calls again on the CPU and compares the results."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from accelkit.pytree import tree_leaves
from accelkit.runtime.comparison.module_calls import ModuleCalls, ModulePlace
from accelkit.runtime.comparison.operator_call import CannotCompare, OperatorCall, Outcome
from accelkit.runtime.comparison.random_operators import is_random, wrong_draws
from accelkit.runtime.comparison.report import NotCompared
from accelkit.runtime.comparison.tolerance import UNINITIALIZED

_NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem", "fsdp", "prim", "profiler")
"""Namespaces of operators that communicate or that compute nothing. If run again, an operator that communicates would wait for the other
processes."""


@dataclasses.dataclass(slots=True)
class Wrong:
    """The first wrong call to an overload, and the number of all wrong calls to the overload.

    Attributes:
        call: The first call that gave a wrong result.
        place: The place in the model at which this call was made.
        wrong: How the result of ``call`` is wrong.
        num_wrong: The number of calls to the overload that gave a wrong result.
        repetitions: Two numbers: how many repetitions gave a wrong result, and how many repetitions there were in all. Each repetition runs
            ``call`` again with the same inputs.
    """

    call: OperatorCall
    place: ModulePlace
    wrong: str
    num_wrong: int
    repetitions: tuple[int, int]


class OperatorWatch(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch does not annotate it
    """Dispatch mode that compares the result of each operator call on the device with the result of the same call on the CPU.

    The CPU gets the inputs that the operator had on the device, so errors do not accumulate. A wrong result is overwritten with the right
    result, so that later operators get right inputs. This is not possible for results of a wrong shape.

    The results of random operators are not compared or overwritten, but checked for NaN and, for some operators, statistically. Operators
    are not checked if they only create a view or uninitialised memory, if they communicate, or if they return no tensor (such as ``item``).

    Args:
        device: The device.
        calls: The object that says where in the model an operator was called.

    Attributes:
        wrong: The first wrong call to each overload that gave wrong results. The keys are the names of these overloads.
        compared: The number of calls that were compared with the CPU, by the name of the overload.
    """

    def __init__(self, device: torch.device, calls: ModuleCalls) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.wrong: dict[str, Wrong] = {}
        self.compared: Counter[str] = Counter()
        self._device = device
        self._calls = calls
        self._not_compared: dict[tuple[str, str], tuple[ModulePlace, int]] = {}

    @property
    def not_compared(self) -> tuple[NotCompared, ...]:
        """The calls that were not compared, grouped by overload and reason."""
        return tuple(NotCompared(name, reason, *found) for (name, reason), found in self._not_compared.items())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ for kind in types):  # the subclass's own calls come here too
            return NotImplemented
        if not self._computes(func, args, kwargs):
            return func(*args, **kwargs)
        name = str(func).replace(".", "::", 1)
        if any(leaf.layout is not torch.strided for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)):
            self._note(name, "an input is not a strided tensor")
            return func(*args, **kwargs)
        call = OperatorCall(func, args, kwargs)
        results = func(*args, **kwargs)
        self._judge(name, call, call.outcome(results))
        return results

    def _computes(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Return whether an operator uses the device and computes values there.

        False for operators that only create a view or uninitialised memory, and for operators that communicate with other processes.
        """
        if func.is_view or func.namespace in _NAMESPACES or func.overloadpacket.__name__ in UNINITIALIZED:
            return False
        return any(self._is_on_device(leaf) for leaf in tree_leaves((args, kwargs)))

    def _is_on_device(self, leaf: Any) -> bool:
        device = leaf.device if isinstance(leaf, torch.Tensor) else leaf
        return isinstance(device, torch.device) and device.type == self._device.type and device.index in (None, self._device.index)

    def _judge(self, name: str, call: OperatorCall, found: Outcome) -> None:
        has_results = any(isinstance(one, torch.Tensor) for one in found.results)
        if not has_results and not call.name.endswith("_"):
            return
        if is_random(call.operator):
            wrong, checked = wrong_draws(call, found)
            self._note(name, checked)
            if wrong:
                self._add(name, call, wrong, lambda: sum(bool(wrong_draws(call, one)[0]) for one in call.repetitions()))
            return
        try:
            wrong = call.wrong(found)
        except CannotCompare as reason:
            self._note(name, str(reason))
            return
        self.compared[name] += 1
        if wrong:
            self._add(name, call, wrong, lambda: sum(bool(call.wrong(one)) for one in call.repetitions()))
            for mine, right in zip(call.written(found), call.right(), strict=False):
                if mine is not None and right is not None and mine.shape == right.shape:
                    mine.copy_(right)

    def _add(self, name: str, call: OperatorCall, wrong: str, count: Callable[[], int]) -> None:
        if name in self.wrong:
            self.wrong[name].num_wrong += 1
        else:
            self.wrong[name] = Wrong(call, self._calls.place(), wrong, 1, (count(), call.num_repetitions))

    def _note(self, name: str, reason: str) -> None:
        place, number = self._not_compared.get((name, reason), (self._calls.place(), 0))
        self._not_compared[name, reason] = place, number + 1
