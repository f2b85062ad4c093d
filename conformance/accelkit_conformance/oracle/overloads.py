"""The ATen calls that implement an operator, and the variants of their overloads.

The functional ATen calls in the forward and backward pass of an operator are recorded on the CPU. Each recorded call is then repeated on
the device. The variants use the same overload, its aliases, and overloads that take a number in place of a tensor. Each of these is called
in its functional form and in its ``out=`` and in-place forms, if it has them.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from accelkit.runtime.comparison.cotangents import cotangents
from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes
from accelkit_conformance.oracle.op_compare import compare_forward
from accelkit_conformance.oracle.reproducer import describe_sample, facts_of
from accelkit_conformance.oracle.sample_transfer import tensors
from accelkit_conformance.profiles.operators import DTYPES

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_EACH = 2
_NO_NUMBERS: frozenset[int] = frozenset()


class Calls(TorchDispatchMode):
    """Dispatch mode that records the first successful functional ATen calls to each overload, with copies of their arguments.

    Calls without a tensor argument, and calls that return a view, are not recorded.

    Attributes:
        calls: The calls to each overload, as ``(func, args, kwargs)``, by the name of the overload, such as ``aten::add.Tensor``.
    """

    def __init__(self, each: int) -> None:
        """Create the dispatch mode.

        Args:
            each: The maximum number of calls that are recorded for each overload.
        """
        super().__init__()
        self._each = each
        self.calls: dict[str, list[tuple[Any, Any, Any]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        kept = self.calls.setdefault(func.name(), [])
        if (
            len(kept) < self._each
            and func.namespace == "aten"
            and not func._schema.is_mutable
            and not _is_view(func)
            and tensors((args, kwargs))
        ):
            kept.append((func, _copied(args), _copied(kwargs)))
        return result


def out_overload(func: Any) -> tuple[Any, list[str]] | None:
    """Return the ``out=`` overload of ``func``, and the names of its output arguments; None if there is no such overload."""
    packet = func.overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        outs = [argument.name for argument in other._schema.arguments if argument.is_out]
        if outs and _types(other, without=outs) == _types(func):
            return other, outs
    return None


def in_place_overload(func: Any) -> Any:
    """Return the in-place overload of ``func``, which writes the result into the first argument; None if there is no such overload."""
    packet = getattr(torch.ops.aten, func.overloadpacket.__name__ + "_", None)
    others = [getattr(packet, name) for name in packet.overloads()] if packet is not None else []
    return next((other for other in others if _types(other) == _types(func)), None)


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """A way to call an overload.

    Attributes:
        name: The name of the overload that is called.
        call: A function that takes the arguments of the recorded call and calls the overload. The function adds ``out=`` tensors
            or replaces tensors with Python numbers if the overload requires this.
        functional: A function that takes the same arguments, changes none of them, and returns the result that ``call`` should return. If
            ``is_in_place`` is True, the result of ``call`` may have another dtype.
        is_in_place: Whether ``call`` writes into its first argument.
    """

    name: str
    call: Callable[..., Any]
    functional: Callable[..., Any]
    is_in_place: bool = False


def variants(func: Any) -> Iterator[Variant]:
    """Yield the variants of an overload.

    The variants are the overload itself, its aliases, and overloads that take a number in place of a tensor. Each is yielded in its
    functional form and in its ``out=`` and in-place forms, if it has them.
    """
    same = [func, *_aliases(func)]
    for functional, numbers in [*((one, _NO_NUMBERS) for one in same), *(found for one in same for found in _with_numbers(one))]:
        given = _converting(numbers)
        yield Variant(functional.name(), given(functional), given(functional))
        if (found := out_overload(functional)) is not None:
            other, outs = found
            yield Variant(other.name(), given(_with_out(functional, other, outs)), given(functional))
        if 0 not in numbers and (in_place := in_place_overload(functional)) is not None:
            yield Variant(in_place.name(), given(_in_place(in_place)), given(functional), is_in_place=True)


def _with_numbers(func: Any) -> Iterator[tuple[Any, frozenset[int]]]:
    """Yield the overloads that take numbers where ``func`` takes tensors, each with the positions of these numbers."""
    mine = _types(func)
    for name in func.overloadpacket.overloads():
        other = getattr(func.overloadpacket, name)
        theirs = _types(other)
        if other._schema.is_mutable or [one for one, _ in theirs] != [one for one, _ in mine]:
            continue
        differ = [index for index, (one, two) in enumerate(zip(mine, theirs, strict=True)) if one != two]
        if differ and all(mine[index][1] == "Tensor" and theirs[index][1] == "number" for index in differ):
            yield other, frozenset(differ)


def _converting(numbers: frozenset[int]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that replaces a function's positional arguments at the indices ``numbers`` with Python numbers.

    A tensor is replaced with its first element. An empty tensor, or an argument that is not a tensor, is replaced with 1.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*(_number(one) if index in numbers else one for index, one in enumerate(args)), **kwargs)

        return call if numbers else function

    return decorate


def _number(value: Any) -> Any:
    is_empty = not isinstance(value, torch.Tensor) or value.numel() == 0
    return 1 if is_empty else value.flatten()[0].item()


def _aliases(func: Any) -> Iterator[Any]:
    for name in opdb.aliases().get(func.overloadpacket.__name__, ()):
        packet = getattr(torch.ops.aten, name, None)
        others = [getattr(packet, overload) for overload in packet.overloads()] if packet is not None else []
        yield from (other for other in others if _types(other) == _types(func))


def _in_place(overload: Any) -> Callable[..., Any]:
    """Return a function that calls an in-place overload and returns the changed argument.

    An in-place overload for lists of tensors returns None. The function then returns the list that was changed.
    """

    def call(first: Any, *args: Any, **kwargs: Any) -> Any:
        result = overload(first, *args, **kwargs)
        return first if result is None else result

    return call


def _with_out(func: Any, other: Any, outs: list[str]) -> Callable[..., Any]:
    is_list = any(argument.name == outs[0] and str(argument.type) == "List[Tensor]" for argument in other._schema.arguments)

    def call(*args: Any, **kwargs: Any) -> Any:
        results = func(*args, **kwargs)
        like = [torch.empty(0, dtype=one.dtype, device=one.device) for one in tree_flatten(results)[0] if isinstance(one, torch.Tensor)]
        if is_list:
            other(*args, **kwargs, **{outs[0]: like})
            return like
        if len(like) != len(outs):
            raise NotImplementedError(f"{other.name()} has {len(outs)} outputs, and {func.name()} gives {len(like)} tensors")
        return other(*args, **kwargs, **dict(zip(outs, like, strict=True)))

    return call


def _types(func: Any, without: list[str] | tuple[()] = ()) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in func._schema.arguments if argument.name not in without]


def _is_view(func: Any) -> bool:
    return any(value.alias_info is not None for value in func._schema.returns)


def _copied(nested: Any) -> Any:
    """Return a copy of nested data with cloned tensors, because later calls may write into the originals."""
    return tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf, nested)


def calls_of(programs: Iterable[Callable[[], Any]], each: int = _EACH) -> list[tuple[Any, Any, Any]]:
    """Return functional ATen calls that programs make on the CPU: the first successful calls to each overload.

    Calls without tensors are left out, and so are calls that return views.

    Args:
        programs: The programs. A program that raises an exception still contributes the calls before the exception.
        each: The maximum number of calls to return for each overload.

    Returns:
        The calls as ``(func, args, kwargs)``.
    """
    mode = Calls(each)
    for program in programs:
        with contextlib.suppress(Exception), mode:  # calls before an error still count
            program()
    return [call for kept in mode.calls.values() for call in kept]


def calls_of_operator(name: str, each: int = _EACH) -> list[tuple[Any, Any, Any]]:
    """Return functional ATen calls made on the CPU by the forward and backward passes of an operator.

    The operator is from torch's database. It is run in float32 or, if it does not support float32, in the first dtype of ``DTYPES`` that it
    supports. For an operator on lists of tensors, only the forward pass is run.

    Args:
        name: The name of the operator.
        each: The maximum number of calls to return for each overload.

    Returns:
        The calls as ``(func, args, kwargs)``.
    """
    if name in opdb.foreach_operators():
        foreach = opdb.foreach_operators()[name]
        samples = opdb.samples(foreach, "float32", 24)
        return calls_of((lambda sample=sample: foreach(sample.input, *sample.args, **sample.kwargs) for sample in samples), each)
    op = opdb.operators()[name]
    dtype = next((one for one in DTYPES if opdb.supports(op, one)), "float32")
    has_gradients = opdb.supports(op, dtype, backward=True)

    def run(sample: Any) -> None:
        results = op(sample.input, *sample.args, **sample.kwargs)
        outputs = [one for one in tensors(sample.output_process_fn_grad(results)) if one.requires_grad] if has_gradients else []
        if outputs:
            torch.autograd.backward(outputs, cotangents(outputs, f"{name}[{sample.name}]"))

    samples = opdb.samples(op, dtype, 6, requires_grad=has_gradients)
    return calls_of((lambda sample=sample: run(sample) for sample in samples), each)


def check_overloads(subject: Subject, op: Any, calls: list[tuple[Any, Any, Any]]) -> None:
    """Compare the results of ATen calls and of their variants on the device with the results of the same calls on the CPU.

    Differences are recorded in the subject. Unpredictable calls, and calls that need a dtype which the device lacks, are skipped.

    Args:
        subject: The plugin under test, with its device.
        op: The OpInfo of the operator that makes the calls.
        calls: The calls, as ``calls_of`` returns them.
    """
    for func, args, kwargs in calls:
        if func.name() in opdb.UNPREDICTABLE or not args or lacking_dtypes(subject, lambda: func(*args, **kwargs)):  # noqa: B023
            continue
        given = (args[0], args[1:], kwargs)
        for variant in variants(func):

            def expected(first: Any, *rest: Any, variant: Variant = variant, **named: Any) -> Any:
                result = variant.functional(first, *rest, **named)
                return tree_map(lambda one, target: one.to(target.dtype), result, first) if variant.is_in_place else result

            with subject.sample(f"{variant.name} {describe_sample(given)}", facts_of(given, "float32") | {"overload": variant.name}):
                compare_forward(subject, op, given, variant.call, expected)
