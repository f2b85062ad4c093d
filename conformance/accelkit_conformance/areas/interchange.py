"""Values keep their numbers, and tensors share memory or do not, when they go between Python, NumPy, DLPack, pinned memory, dtypes and the
device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelkit_conformance.checks import check
from accelkit_conformance.profiles.operators import DTYPES

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject


@check("full", requires=["dtype.{0}"], over=[dtype for dtype in DTYPES if not dtype.startswith("complex")])
def conversions(subject: Subject, dtype: str) -> None:
    """A copy from this dtype to another rounds as on the CPU, to the nearest number and halfway cases to even. Numbers that are too large
    become infinite, infinities, NaN and negative zero are kept, and integers lose their higher bits. The numbers are converted on the way
    to the device, on the device and on the way back, with ``to`` and with ``copy_``."""
    from accelkit_conformance.oracle.conversions import check_conversions

    check_conversions(subject, dtype)


@check("full", requires=["dtype.float32"])
def assignments(subject: Subject) -> None:
    """Assignments to elements, rows, slices and masked elements of a tensor write the same as on the CPU, and nothing else, if the assigned
    values or the indices are Python numbers, lists, NumPy arrays or tensors on the CPU. So do reading with such indices, and arithmetic
    with Python numbers and NumPy numbers."""
    from accelkit_conformance.oracle.host_values import check_assignments

    check_assignments(subject)


@check("full")
def python_values(subject: Subject) -> None:
    """``item``, ``tolist``, ``bool``, ``int``, ``float``, ``complex``, ``len``, ``in``, iteration, formatting and ``numpy(force=True)``
    give the same Python values as on the CPU, for each dtype, its largest and its smallest number, and for tensors that are whole, strided,
    transposed, expanded or a slice."""
    from accelkit_conformance.oracle.host_values import check_python_values

    check_python_values(subject)


@check("full")
def arrays(subject: Subject) -> None:
    """``tensor``, ``as_tensor``, ``asarray``, ``from_numpy`` and ``new_tensor`` make tensors with the dtype, shape and values of a NumPy
    array of each dtype. The array is in C or Fortran order, strided, broadcast, read-only, empty or 0-d. The tensor does not change with
    the array."""
    from accelkit_conformance.oracle.host_values import check_arrays

    check_arrays(subject)


@check("full", requires=["pinned_memory"])
def pinned_tensors(subject: Subject) -> None:
    """Functions with ``pin_memory=True`` make pinned tensors on the CPU with the right values, and clones of them are not pinned.
    ``pin_memory`` of tensors of each dtype and in several layouts returns a pinned tensor with the same dtype, shape and values, does not
    pin its argument, and returns a pinned argument itself."""
    from accelkit_conformance.oracle.pinned_tensors import check_pinned_tensors

    check_pinned_tensors(subject)


@check("full", over=["pinned", "pageable"])
def queued_sources(subject: Subject, memory: str) -> None:
    """A copy with ``non_blocking=True`` to a busy device has the values that its source had at the call, even if the source is freed at
    once and other tensors of the same size are created. A source that is not pinned is also overwritten. The sources have 1 to 5,000
    elements, and are strided, transposed or of another dtype."""
    from accelkit_conformance.oracle.pinned_tensors import check_queued_sources

    check_queued_sources(subject, memory)


@check("full", requires=["dtype.float32"])
def aliases(subject: Subject) -> None:
    """``to``, ``contiguous`` and other calls that change nothing return their argument itself. ``detach``, ``view``, ``copy.copy``,
    ``set_`` and others share its memory. ``clone``, ``to(copy=True)``, ``deepcopy`` and others do not. All results are on the device, and
    have the same values."""
    from accelkit_conformance.oracle.aliases import check_aliases

    check_aliases(subject)


@check("full", requires=["dtype.float32"])
def gradients_of_copies(subject: Subject) -> None:
    """The gradient of a tensor that was copied with ``to``, ``cpu``, ``copy_``, ``clone`` or an assignment is on the device of this tensor,
    and has its dtype and the right values. The copies go to the device, to the host, to another device and to other floating-point
    dtypes."""
    from accelkit_conformance.oracle.aliases import check_gradients_of_copies

    check_gradients_of_copies(subject)


@check("full")
def dlpack(subject: Subject) -> None:
    """If the device supports DLPack, a tensor that goes through DLPack is on the device, has the same dtype, shape, strides and values, and
    shares its memory."""
    from accelkit_conformance.oracle.aliases import check_dlpack

    check_dlpack(subject)


@check("full")
def sizes_of_copies(subject: Subject) -> None:
    """A tensor of n bytes keeps all bytes on the way to the device and back, and writes no byte before or after its target. n is every
    number up to 70, and about the powers of two up to 4 MiB, less or more than a power by up to 3. The source, or the target, begins 0 to 3
    bytes after the start of its storage."""
    from accelkit_conformance.oracle.many_copies import check_sizes

    check_sizes(subject)


@check("full")
def many_small_copies(subject: Subject) -> None:
    """2,000 copies of small tensors to the device, with and without ``non_blocking=True``, all have the right values when they are read
    after the last copy. So have 2,000 copies to the host, and 2,000 Python numbers from which tensors on the device were made."""
    from accelkit_conformance.oracle.many_copies import check_many

    check_many(subject)


@check("full", over=["another_current_device", "another_thread", "another_stream", "after_an_error"])
def copies_elsewhere(subject: Subject, place: str) -> None:
    """Copies to the device, to the host, on the device and to another device have the right values, dtypes and layouts if they are made
    while another device is current, in another thread, on another stream, or after an error."""
    from accelkit_conformance.oracle.many_copies import check_copies_elsewhere

    check_copies_elsewhere(subject, place.replace("_", " "))
