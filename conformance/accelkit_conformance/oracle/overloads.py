"""The ATen calls that implement an operator, and the variants of their overloads.

The forward and backward pass of an operator are recorded on the CPU. Each recorded functional ATen call is then repeated on the
device with the same arguments: in the same way, with ``out=``, and in place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from accelkit_conformance.oracle import opdb
from accelkit_conformance.oracle.cotangents import cotangents
from accelkit_conformance.oracle.lacking_dtypes import lacking_dtypes
from accelkit_conformance.oracle.op_compare import compare_forward
from accelkit_conformance.oracle.reproducer import describe_sample, facts_of
from accelkit_conformance.oracle.sample_transfer import tensors
from accelkit_conformance.profiles.operators import DTYPES

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_EACH = 2


class Calls(TorchDispatchMode):
    """Dispatch mode that records the first successful functional ATen calls of each overload, with copies of their arguments.

    Attributes:
        calls: The calls of each overload, as ``(func, args, kwargs)``.
    """

    def __init__(self, each: int) -> None:
        """``each`` is the largest number of calls of one overload that are kept."""
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
    """Return the ``out=`` overload of ``func``, and the names of its output arguments; None if there is none."""
    packet = func.overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        outs = [argument.name for argument in other._schema.arguments if argument.is_out]
        if outs and _types(other, without=outs) == _types(func):
            return other, outs
    return None


def in_place_overload(func: Any) -> Any:
    """Return the overload that writes the result of ``func`` into its first argument; None if there is none."""
    packet = getattr(torch.ops.aten, func.overloadpacket.__name__ + "_", None)
    others = [getattr(packet, name) for name in packet.overloads()] if packet is not None else []
    return next((other for other in others if _types(other) == _types(func)), None)


def variants(func: Any) -> Iterator[tuple[str, Callable[..., Any], bool]]:
    """Yield the variants of an overload, the functional one first, and then those of its aliases.

    Yields:
        The name of the variant, a function that calls it with the arguments of the functional overload, and whether it writes
        into its first argument.
    """
    for functional in (func, *_aliases(func)):
        yield functional.name(), functional, False
        if (found := out_overload(functional)) is not None:
            other, outs = found
            yield other.name(), _with_out(functional, other, outs), False
        if (in_place := in_place_overload(functional)) is not None:
            yield in_place.name(), _in_place(in_place), True


def _aliases(func: Any) -> Iterator[Any]:
    for name in opdb.aliases().get(func.overloadpacket.__name__, ()):
        packet = getattr(torch.ops.aten, name, None)
        others = [getattr(packet, overload) for overload in packet.overloads()] if packet is not None else []
        yield from (other for other in others if _types(other) == _types(func))


def _in_place(overload: Any) -> Callable[..., Any]:
    """Return a function that calls an in-place overload and returns its first argument. Overloads for lists of tensors return nothing."""

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
    """Return the functional ATen calls that these programs make on the CPU, as ``(func, args, kwargs)``: at most ``each`` per overload."""
    mode = Calls(each)
    for program in programs:
        with contextlib.suppress(Exception), mode:  # calls before an error still count
            program()
    return [call for kept in mode.calls.values() for call in kept]


def calls_of_operator(name: str, each: int = _EACH) -> list[tuple[Any, Any, Any]]:
    """Return the functional ATen calls in the forward and backward pass of an operator of torch's database.

    They are in float32 or, if the operator does not support it, in the first dtype of ``DTYPES`` that it supports. Of an operator on lists
    of tensors, only the forward pass is run.
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
    """Compare ATen calls and their variants on the device with the same calls on the CPU.

    Args:
        subject: The subject with the device.
        op: The OpInfo of the operator that makes the calls.
        calls: The calls, as ``calls_of`` returns them.

    Raises:
        AssertionError: If the results differ.
    """
    for func, args, kwargs in calls:
        if func.name() in opdb.UNPREDICTABLE or not args or lacking_dtypes(subject, lambda: func(*args, **kwargs)):  # noqa: B023
            continue
        given = (args[0], args[1:], kwargs)
        for overload, variant, is_in_place in variants(func):

            def expected(first: Any, *rest: Any, func: Any = func, is_in_place: bool = is_in_place, **named: Any) -> Any:
                result = func(first, *rest, **named)
                return tree_map(lambda one, target: one.to(target.dtype), result, first) if is_in_place else result

            with subject.sample(f"{overload} {describe_sample(given)}", facts_of(given, "float32") | {"overload": overload}):
                compare_forward(subject, op, given, variant, expected)
