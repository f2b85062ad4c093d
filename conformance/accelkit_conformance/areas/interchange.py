"""Conversions between tensors on the device and Python values, NumPy arrays, DLPack, pinned memory or other dtypes give the right values.
The result of a conversion shares memory with its source or is a copy of it, as specified in torch's documentation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelkit_conformance.checks import check
from accelkit_conformance.profiles.operators import DTYPES

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


@check("full", requires=["dtype.{0}"], over=[dtype for dtype in DTYPES if not dtype.startswith("complex")])
def conversions(subject: Subject, dtype: str) -> None:
    """Conversions from the tested dtype to float32, and to every other declared dtype that is not complex, give the same numbers as on the
    CPU. Conversions to floating-point dtypes round to the nearest number that the new dtype can represent, with ties to even. Numbers that
    are too large become infinite, and infinities, NaN and negative zero are kept. Conversions to integer dtypes discard the fractional
    part, and keep only the lower bits of integers that do not fit. Conversions to bool give True for every number except zero. The numbers
    are converted by copies to the device, within the device and to the host, with ``to`` and with ``copy_``. Floating-point numbers that
    are subnormal in the new floating-point dtype are tested only if the device declares the capability ``subnormals``."""
    from accelkit_conformance.oracle.conversions import check_conversions

    check_conversions(subject, dtype)


@check("full", requires=["dtype.float32"])
def assignments(subject: Subject) -> None:
    """Assignments to elements, rows, slices and masked elements of a tensor write the same values as on the CPU, and change no other
    elements. The values are Python numbers or tensors. Tensors on the CPU are assigned only in calls in which torch itself copies them to
    the device. The indices are integers, slices, lists, NumPy arrays, or tensors and masks on the CPU. The following also give the same
    results as on the CPU: reading with these indices, ``fill_`` and ``masked_fill_`` with a tensor on the CPU, and arithmetic with Python
    and NumPy numbers. If there is a second device, all this is also true of tensors on this device while the first is current."""
    from accelkit_conformance.oracle.host_values import check_assignments
    from accelkit_conformance.oracle.places import on_each_device

    for one in on_each_device(subject):
        check_assignments(one)


@check("full")
def python_values(subject: Subject) -> None:
    """``item``, ``tolist``, ``bool``, ``int``, ``float``, ``complex``, ``len``, ``in``, iteration, formatting and ``numpy(force=True)``
    give the same results as on the CPU. The check uses tensors of float32 and of every other declared dtype. The tensors are whole,
    sliced, strided, transposed or expanded. Their values include the smallest and the largest integer of the dtype or, in floating-point
    and complex dtypes, very large numbers and infinity. ``in`` is tested only with int64, formatting only with float32, ``int`` and
    ``float`` only with dtypes that are not complex, and ``numpy`` with all dtypes except bfloat16, which NumPy lacks. A view with one
    element and up to three dimensions is also converted to a number, used as the argument of ``range``, as the start of a slice, and as a
    size. Uses that the CPU rejects are left out.
    """
    from accelkit_conformance.oracle.host_values import check_python_values

    check_python_values(subject)


@check("full")
def arrays(subject: Subject) -> None:
    """``tensor``, ``as_tensor``, ``asarray``, ``new_tensor(array, dtype=...)`` and ``from_numpy(array).to(device)`` make tensors on the
    device with the dtype, shape and values of a NumPy array. The check uses arrays of float32 and of every other declared dtype except
    bfloat16, which NumPy lacks. The arrays are in C or Fortran order, strided, broadcast, read-only, empty or 0-d. Unless the device is the
    CPU, the tensor does not change when the array is changed. If there is a second device, tensors are also made there while the first
    device is current."""
    from accelkit_conformance.oracle.host_values import check_arrays
    from accelkit_conformance.oracle.places import on_each_device

    for one in on_each_device(subject):
        check_arrays(one)


@check("full", requires=["pinned_memory"])
def pinned_tensors(subject: Subject) -> None:
    """Functions that create tensors, such as ``torch.zeros``, return pinned tensors on the CPU if they are called with ``pin_memory=True``.
    The dtype, shape and values of these tensors are the same as without ``pin_memory=True``, unless the values are random or uninitialised.
    Copying such a tensor to the device keeps its values. A clone of such a tensor is not pinned. ``Tensor.pin_memory`` returns a tensor
    with the same dtype, shape and values, and does not pin the original tensor. The returned tensor is pinned, unless it is empty. If the
    original tensor is pinned already, the returned tensor shares memory with it. ``Tensor.pin_memory`` is tested with every dtype and
    several layouts. Views of a pinned tensor, and a tensor made from its NumPy array, are pinned, also if ``is_pinned`` is called in
    another thread. If the device is torch's accelerator, the result of ``to("cpu", non_blocking=True)`` is pinned.
    """
    from accelkit_conformance.oracle.pinned_tensors import check_pinned_tensors

    check_pinned_tensors(subject)


@check("full", over=["pinned", "pageable"])
def queued_sources(subject: Subject, memory: str) -> None:
    """A copy with ``non_blocking=True`` to a busy device has the values that its source had when ``to`` or ``copy_`` was called. This is
    true even if the source is freed right after the call and other tensors of the same size are created. A source that is not pinned may
    also be overwritten right after the call. The sources have 1 to 5,000 elements and are contiguous, strided or transposed. Some of them
    are converted to another dtype. Sources in pinned memory are also slices, rows, columns and other views of a pinned tensor, or are made
    with ``set_`` or from a NumPy array."""
    from accelkit_conformance.oracle.pinned_tensors import check_queued_sources

    check_queued_sources(subject, memory)


@check("full", requires=["dtype.float32"])
def aliases(subject: Subject) -> None:
    """If there is nothing to convert or to rearrange, ``to``, ``contiguous`` and other calls return their argument itself. The results of
    ``detach``, ``view``, ``copy.copy``, ``set_`` and others share memory with the argument. The results of ``clone``, ``to(copy=True)``,
    ``deepcopy`` and others share no memory with the argument. All results are on the device, and have the values of the argument. If there
    is a second device, all this is also true of tensors on this device while the first is current."""
    from accelkit_conformance.oracle.aliases import check_aliases
    from accelkit_conformance.oracle.places import on_each_device

    for one in on_each_device(subject):
        check_aliases(one)


@check("full", requires=["dtype.float32"])
def gradients_of_copies(subject: Subject) -> None:
    """A backward pass through a copy gives the source a gradient with the device, dtype and shape of the source, and with the right values.
    Tensors are copied to the device, on the device and to the host. The copies are made with ``to``, ``cpu``, ``copy_``, ``clone``,
    ``contiguous``, ``as_tensor`` or an assignment. If there is a second device, copies to it are tested too. If the accelerator declares
    float16, bfloat16 or float64, copies to these dtypes are also tested.
    """
    from accelkit_conformance.oracle.aliases import check_gradients_of_copies

    check_gradients_of_copies(subject)


@check("full")
def dlpack(subject: Subject) -> None:
    """If the device supports DLPack, the result of ``torch.from_dlpack`` is on the device, has the dtype, shape, strides and values of its
    argument, and shares memory with it. The argument may also be a capsule that ``torch.utils.dlpack.to_dlpack`` created. The tensors are a
    contiguous tensor of each declared dtype, a float32 matrix, and several views of this matrix: sliced, strided, transposed, one row, 0-d
    and empty.
    """
    from accelkit_conformance.oracle.aliases import check_dlpack

    check_dlpack(subject)


@check("full", requires=["dtype.float32"])
def devices_of_dlpack(subject: Subject) -> None:
    """Tensors that pass through DLPack are on the requested device, and have the dtype, shape and values of their source. If the source is
    on the requested device, the new tensor shares memory with it, or is a copy if ``copy`` is True. If the source is on another device, the
    new tensor is a copy; with ``copy=False``, the call raises an error instead. The device is given as a ``torch.device`` or as a name,
    with and without an index, or not at all. The source and the requested device are the device under test, a second device or the CPU. The
    calls are ``torch.from_dlpack``, ``Tensor.__dlpack__``, ``torch.asarray``, and functions of ``torch.utils.dlpack``. Calls that torch
    does not support for this type of device are left out.
    """
    from accelkit_conformance.oracle.dlpack_devices import check_dlpack_devices

    check_dlpack_devices(subject)


@check("full")
def sizes_of_copies(subject: Subject) -> None:
    """Copies of n bytes to the device, on the device and to the host keep every byte, and ``copy_`` writes no byte before or after its
    target. The tested values of n are all numbers from 0 to 70 and, for each power of two p from 128 to 4,194,304, the numbers p-3, p-1, p,
    p+1 and p+2. The source and, with ``copy_``, the target begin 0 to 3 bytes after the start of their storages. Rows of one tensor on the
    device are also copied to rows of another one, with different numbers of rows and different first rows. The other rows stay
    unchanged."""
    from accelkit_conformance.oracle.many_copies import check_rows, check_sizes

    check_sizes(subject)
    check_rows(subject)


@check("full")
def many_small_copies(subject: Subject) -> None:
    """2,000 small copies to the device, made one after another, all have the right values. Each copy has 1 to 5 elements. The copies are
    made with and without ``non_blocking=True``. They are not read until the last copy has been made and ``synchronize`` has been called.
    The same is true of 2,000 copies to the host with ``non_blocking=True``, and of 2,000 tensors on the device that were made from
    Python numbers.
    """
    from accelkit_conformance.oracle.many_copies import check_many

    check_many(subject)


@check("full", over=["another_current_device", "another_thread", "another_stream", "after_an_error"])
def copies_elsewhere(subject: Subject, place: str) -> None:
    """Copies are on the right device and have the right values even if they are made while another device is current, in another thread, on
    another stream, or after an error. They are made to the device, to the host, on the device and to another device. The sources are
    contiguous, strided or transposed, or begin after the start of their storage.
    """
    from accelkit_conformance.oracle.many_copies import check_copies_elsewhere

    check_copies_elsewhere(subject, place.replace("_", " "))
