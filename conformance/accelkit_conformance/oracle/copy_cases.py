"""Test cases of copies in every direction. For any two of the axes of a call, the cases contain every pair of their values."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from accelkit_conformance.oracle.changed_arguments import whole_storage
from accelkit_conformance.oracle.layouts import LAYOUTS, arranged
from accelkit_conformance.oracle.pairwise import covering_rows
from accelkit_conformance.oracle.sample_transfer import has_memory, to_device
from accelkit_conformance.profiles.operators import DTYPES

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_SHAPES: dict[str, tuple[int, ...]] = {
    "33 x 65": (33, 65), "0-d": (), "empty": (0, 3), "one": (1,), "2 x 3 x 5 x 7": (2, 3, 5, 7), "70,001": (70_001,),
}  # fmt: skip
_LARGE_BROADCASTS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((), (1120, 3)), ((1, 1), (1120, 3)), ((3,), (1120, 3)), ((1120, 1), (1120, 3)), ((), (70_001,)), ((1,), (70_001,)),
)  # fmt: skip
"""Shapes of a source and of a target with many elements."""
_COPIES, _TO = ("copy_", "copy_, non_blocking"), "to"
_SAME_ON_BOTH_SIDES = ("bool", "int16", "float32", "complex64"), (*LAYOUTS, "narrowed"), ("33 x 65", "2 x 3 x 5 x 7")
"""Dtypes, layouts and shapes of copies from a tensor to another tensor that has the same dtype, shape and strides."""

_LAZY_VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"conj()": torch.conj, "conj().imag": lambda x: x.conj().imag}


@functools.cache
def cases(dtypes: tuple[str, ...] = DTYPES) -> list[dict[str, str]]:
    """Return the combinations of settings with which copies are tested.

    Each combination maps the names of the axes, which are Python identifiers, to values.

    ``to`` has no target layout, so its combinations are built separately from those of ``copy_``. A pair of values that is tested with
    ``to`` does not count as tested with ``copy_``.

    Hardly any of these combinations has a source and a target with the same dtype and the same layout, for which a device may have a faster
    copy of whole blocks of memory. Such copies are added for all values in ``_SAME_ON_BOTH_SIDES``, with every call.

    Args:
        dtypes: The dtypes that the device has.
    """
    axes = {"source_dtype": dtypes, "target_dtype": dtypes, "source_layout": ("contiguous", *LAYOUTS), "shape": tuple(_SHAPES)}
    copies = covering_rows({**axes, "target_layout": axes["source_layout"], "call": _COPIES})
    return [*copies, *covering_rows({**axes, "call": (_TO,)}), *_same_on_both_sides(dtypes)]


def _same_on_both_sides(dtypes: tuple[str, ...]) -> Iterator[dict[str, str]]:
    for dtype, layout, shape, call in itertools.product(*_SAME_ON_BOTH_SIDES, (*_COPIES, _TO)):
        if dtype in dtypes:
            case = {"source_dtype": dtype, "target_dtype": dtype, "source_layout": layout, "shape": shape}
            yield case | {"call": call} if call == _TO else case | {"target_layout": layout, "call": call}


def _source(case: dict[str, str]) -> torch.Tensor:
    """Return the source of a copy. Half of its elements are large integers that both the source dtype and the target dtype represent
    exactly. The others are multiples of 1/2 from 0 to 100, which floating-point dtypes represent exactly and integer dtypes truncate. The
    rest of the storage is 0, unlike the memory around a target.

    The integers have the most bits that both dtypes allow: if a copy converts through a narrower dtype, the integers change. If both
    dtypes are signed, half of the integers are negative.
    """
    dtypes = [getattr(torch, case[f"{end}_dtype"]) for end in ("source", "target")]
    shape = _SHAPES[case["shape"]]
    places = torch.arange(math.prod(shape)).view(shape)
    integers = 2 ** min(_num_bits(dtype) for dtype in dtypes) - 1 - places % 3 // 2
    if all(dtype.is_signed for dtype in dtypes):
        integers = torch.where(places % 4 == 0, -integers, integers)
    halves = ((places * 7) % 201).double().div(2)
    values = torch.where(places % 2 == 0, integers.to(dtypes[0]), halves.to(dtypes[0]))
    source = arranged(values, case["source_layout"])
    if source is not values:
        source.as_strided((source.untyped_storage().nbytes() // source.element_size(),), (1,), 0).zero_()
        source.copy_(values)
    return source


def _num_bits(dtype: torch.dtype) -> int:
    """Return the largest number n for which the dtype represents every integer from 0 to 2**n - 1 exactly."""
    if dtype.is_floating_point or dtype.is_complex:
        return 1 - round(math.log2(torch.finfo(dtype).eps))
    return 1 if dtype is torch.bool else torch.iinfo(dtype).bits - int(dtype.is_signed)


def check_every_copy(subject: Subject, direction: str) -> None:
    """Check copies in one direction, in all ``cases`` for the dtypes that the device supports.

    If the device supports complex64, copies from and to lazily conjugated or negated views are checked too.
    Failures are recorded in the subject.

    Args:
        subject: The plugin under test, with its device.
        direction: ``to_device``, ``to_host``, ``within_a_device`` or ``between_devices``.

    Raises:
        NotSupported: If ``direction`` is ``between_devices`` and there is only one device.
    """
    start, end = _ends(subject, direction)
    for case in cases(tuple(name for name in DTYPES if not subject.lacks(name))):
        with subject.sample(", ".join(f"{axis.replace('_', ' ')} {value}" for axis, value in case.items()), case):
            _check_copy(subject, case, start, end)
    if not subject.lacks("complex64"):
        for view, layout, call in itertools.product(_LAZY_VIEWS, ("contiguous", "strided"), (*_COPIES, _TO)):
            for is_target in (False,) if call == _TO else (False, True):
                case = {"view": view, "layout": layout, "call": call, "end": "target" if is_target else "source"}
                with subject.sample(f"{call}, {layout}, {view} as {case['end']}", case):
                    _check_lazy_copy(subject, case, start, end)


def _ends(subject: Subject, direction: str) -> tuple[torch.device, torch.device]:
    """Return the device of the source and the device of the target."""
    host = torch.device("cpu")
    ends = {
        "to_device": (host, subject.device),
        "to_host": (subject.device, host),
        "within_a_device": (subject.device, subject.device),
    }
    return ends.get(direction) or (subject.device, subject.second_device())


def check_broadcasts(subject: Subject, direction: str) -> None:
    """Check copies of tensors that are broadcast to the shapes of their targets.

    The arguments are those of ``check_every_copy``, and NotSupported is raised in the same case. Failures are recorded in the subject.
    """
    start, end = _ends(subject, direction)
    targets, dtypes = [(), (4,), (3, 4), (2, 3, 4)], [name for name in ("float32", "float16", "int64") if not subject.lacks(name)]
    shapes = [(source, target) for source in [(), (1,), (4,), (1, 4), (3, 1), (2, 1, 4), (2, 3, 1), (1, 3, 4)] for target in targets]
    small = itertools.product(shapes, dtypes, dtypes, ("contiguous",))
    large = itertools.product(_LARGE_BROADCASTS, dtypes[:1], dtypes, ("contiguous", "strided", "transposed", "narrowed"))
    for (shape, target_shape), dtype, target_dtype, layout in (*small, *large):
        source = (torch.arange(1, 1 + math.prod(shape)) % 2039).view(shape).to(getattr(torch, dtype))
        target = arranged(torch.zeros(target_shape, dtype=getattr(torch, target_dtype)), layout)
        if len(shape) > len(target_shape):
            continue
        facts = {"shape": shape, "target_shape": target_shape, "dtype": dtype, "target_dtype": target_dtype, "layout": layout}
        with subject.sample(f"{dtype} {list(shape)} to {target_dtype} {list(target_shape)}, {layout}", facts):
            there = to_device(target, end).copy_(to_device(source, start))
            _check_same(there, target.copy_(source))
            if has_memory(there):
                assert torch.equal(whole_storage(there), whole_storage(target)), "the copy wrote outside its target"


def _check_lazy_copy(subject: Subject, case: dict[str, str], start: torch.device, end: torch.device) -> None:
    """Check a copy from or to a view that torch conjugates or negates only when it is read."""
    view, is_target = _LAZY_VIEWS[case["view"]], case["end"] == "target"
    base = arranged(torch.complex(torch.arange(1.0, 13.0).view(3, 4), torch.arange(12.0).view(3, 4) * 2 - 9), case["layout"])
    plain = view(base).resolve_conj().resolve_neg()
    is_late = "non_blocking" in case["call"]
    if not is_target:
        source = view(to_device(base, start))
        found = source.to(end, copy=True) if case["call"] == _TO else to_device(plain * 0, end).copy_(source, non_blocking=is_late)
        subject.synchronize()
        _check_same(found.resolve_conj().resolve_neg(), plain)
        return
    there, expected = to_device(base, end), base.clone()
    view(there).copy_(to_device(plain * 3, start), non_blocking=is_late)
    view(expected).copy_(plain * 3)
    subject.synchronize()
    _check_same(there, expected)


def _check_copy(subject: Subject, case: dict[str, str], start: torch.device, end: torch.device) -> None:
    source, dtype = _source(case), getattr(torch, case["target_dtype"])
    given = to_device(source, start)
    if case["call"] == _TO:
        found, expected = given.to(device=end, dtype=dtype), source.to(dtype)
        assert found.device == end, f"the copy is on {found.device}, not on {end}"
        assert found.dtype == dtype, f"the copy is {found.dtype}, not {dtype}"
        _check_same(found, expected)
        _check_source(given, source)
        return
    target = arranged(torch.ones(source.shape, dtype=dtype), case["target_layout"])
    there = to_device(target, end)
    returned = there.copy_(given, non_blocking="non_blocking" in case["call"])
    subject.synchronize()
    assert returned is there, "copy_ did not return its target"
    expected = target.clone() if not target.numel() else to_device(target, torch.device("cpu"))
    expected.copy_(source)
    _check_same(there, expected)
    if has_memory(there):
        assert torch.equal(whole_storage(there), whole_storage(expected)), "the copy wrote outside its target"
    _check_source(given, source)


def _check_source(given: torch.Tensor, source: torch.Tensor) -> None:
    """Check that a copy has not changed its source."""
    changed = int((given.cpu() != source).sum())
    assert not changed, f"the copy changed {changed} of {source.numel()} elements of its source"


def _check_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    here = found.cpu()
    assert here.shape == expected.shape, f"the copy has shape {list(here.shape)}, not {list(expected.shape)}"
    wrong = here != expected
    assert not bool(wrong.any()), f"{int(wrong.sum())} of {wrong.numel()} elements differ"
