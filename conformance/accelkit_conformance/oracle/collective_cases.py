"""Test cases of collectives on every kind of tensor, with the settings of ``collective_axes.cases``.

The tensors of all ranks are known to every rank, because they are computed from the rank and the index of an element. The expected results
are computed from them on the CPU, in integers or in double precision.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from accelkit_conformance.oracle.collective_axes import AXES, cases
from accelkit_conformance.oracle.collective_values import reduced, values

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_GUARD = 16
_CANARY = 77
_REFUSALS = (RuntimeError, ValueError, NotImplementedError)
_TAILS = {"1": (), "2": (3,), "4": (2, 2, 3)}
"""The shape of a tensor without its first dimension, by the number of dimensions."""


class Case:
    """One call to a collective, on this rank.

    Args:
        settings: The value of each axis in ``AXES``.
        groups: For each value of the axis ``group``, the process group (None means all ranks) and the global ranks of its members.
        is_gloo: Whether the backend is gloo.

    Attributes:
        members: The global ranks of the group, in order.
        root: The global rank of the source or destination, for collectives that have one.
    """

    def __init__(self, subject: Subject, settings: dict[str, str], groups: dict[str, tuple[Any, list[int]]], *, is_gloo: bool) -> None:
        self._subject, self._dtype = subject, settings["dtype"]
        self._length, self._tail = int(settings["length"]), _TAILS[settings["dimensions"]]
        self._input_memory, self._output_memory = settings["input memory"], settings["output memory"]
        self._is_one_silent = settings["parts"] == "silent"
        self._reduction, self._is_async = settings["reduction"], settings["call"] == "asynchronous"
        self._group, self.members = groups[settings["group"]]
        self._is_gloo, self._root = is_gloo, settings["root"]
        self.root = self.members[0 if self._root == "first" else -1]
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._inputs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def run(self, collective: str) -> None:
        """Call a collective and check its result. On ranks outside the group, this method does nothing.

        The device must support contiguous float32 tensors with the reduction SUM. If the collective does not reduce, it must support
        contiguous tensors of every dtype except complex64. Any other call may instead raise a RuntimeError, ValueError or
        NotImplementedError on every rank.

        Raises:
            AssertionError: If the result is wrong, or if the device rejects a call that it must support.
        """
        if self._subject.rank not in self.members:
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                checked = getattr(self, f"_{collective}")()
        except _REFUSALS as error:
            is_reduced = collective in REDUCING and (self._dtype, self._reduction) != ("float32", "SUM")
            if not is_reduced and self._dtype != "complex64" and self._is_contiguous():
                raise AssertionError(f"{collective} rejected contiguous {self._dtype} tensors: {error}") from error
            return
        for found, expected in checked:
            self._subject.assert_on_device(found)
            here = found.cpu()
            if self._dtype == "bool":
                here = here.view(torch.uint8) != 0  # gloo adds the bytes, so that True may be stored as 2
            is_right = torch.equal(here, expected) if self._reduction != "AVG" else torch.allclose(here, expected, rtol=1e-2, atol=1e-2)
            assert is_right, f"gave {here.flatten()[:8].tolist()}, not {expected.flatten()[:8].tolist()} (the first eight elements)"
        for given, before in self._inputs:
            assert torch.equal(given.cpu(), before), (
                f"an input was changed to {given.cpu().flatten()[:8].tolist()} (the first eight elements)"
            )
        for buffer, is_around in self._buffers:
            around = buffer.cpu()[is_around]
            assert bool((around == torch.full_like(around, _CANARY)).all()), "the memory around the tensor was written"

    def _is_contiguous(self) -> bool:
        """Return whether all tensors of the call are contiguous. A 1-d ``transposed`` tensor is contiguous."""
        memories = {self._input_memory, self._output_memory}
        return "strided" not in memories and not (self._tail and "transposed" in memories)

    def _place(self, here: torch.Tensor, memory: str) -> torch.Tensor:
        """Return a copy of ``here`` on the device. The copy is a part of a larger storage, unless ``memory`` is ``whole``."""
        if memory == "whole":
            return here.to(self._subject.device)
        step, count = 2 if memory == "strided" else 1, here.numel()
        part = slice(_GUARD, _GUARD + step * count, step)
        buffer = torch.full((step * count + 2 * _GUARD,), _CANARY, dtype=here.dtype, device=self._subject.device)
        is_around = torch.ones(len(buffer), dtype=torch.bool)
        is_around[part] = False
        inside = (
            buffer[part].view(here.shape[::-1]).permute(*range(here.ndim)[::-1])
            if memory == "transposed"
            else buffer[part].view(here.shape)
        )
        inside.copy_(here.to(self._subject.device))
        self._buffers.append((buffer, is_around))
        return inside

    def _given(self, here: torch.Tensor) -> torch.Tensor:
        """Return a copy of ``here`` on the device, for an argument that the collective must not change."""
        tensor = self._place(here, self._input_memory)
        self._inputs.append((tensor, here))
        return tensor

    def _numbers(self, rank: int, length: int, shift: int = 0) -> torch.Tensor:
        """Return the numbers of a rank, as a CPU tensor whose first dimension has this length."""
        shape = (length, *self._tail)
        count = torch.Size(shape).numel()
        return values(rank, count, self._dtype, shift=shift, is_product=self._reduction == "PRODUCT").view(shape)

    def _values(self, rank: int, *, shift: int = 0) -> torch.Tensor:
        return self._numbers(rank, self._length, shift)

    def _mine(self, shift: int = 0) -> torch.Tensor:
        return self._place(self._values(self._subject.rank, shift=shift), self._output_memory)

    def _sent(self) -> torch.Tensor:
        return self._given(self._values(self._subject.rank))

    def _target(self, length: int | None = None) -> torch.Tensor:
        """Return a tensor of ones to receive values in. Its first dimension has this length, by default the ``length`` of the case."""
        shape = (self._length if length is None else length, *self._tail)
        return self._place(torch.ones(shape, dtype=getattr(torch, self._dtype)), self._output_memory)

    def _all(self, shift: int = 0) -> list[torch.Tensor]:
        return [self._values(rank, shift=shift) for rank in self.members]

    def _parts(self) -> torch.Tensor:
        """Return this rank's input for a collective that splits its input: a tensor with one part for each member of the group."""
        parts = [self._values(self._subject.rank, shift=shift) for shift in range(len(self.members))]
        return self._given(torch.cat(parts))

    def _call(self, function: Any, *args: Any, **kwargs: Any) -> None:
        work = function(*args, group=self._group, async_op=self._is_async, **kwargs)
        if self._is_async:
            work.wait()

    def _all_reduce(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        mine = self._mine()
        self._call(dist.all_reduce, mine, op=getattr(dist.ReduceOp, self._reduction))
        return [(mine, reduced(self._all(), self._reduction))]

    def _reduce(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        mine = self._mine()
        self._call(dist.reduce, mine, self.root, op=getattr(dist.ReduceOp, self._reduction))
        return [(mine, reduced(self._all(), self._reduction))] if self._subject.rank == self.root else []

    def _broadcast(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        mine = self._mine()
        self._call(dist.broadcast, mine, self.root)
        return [(mine, self._values(self.root))]

    def _all_gather(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        mine, parts = self._sent(), [self._target() for _ in self.members]
        self._call(dist.all_gather, parts, mine)
        return list(zip(parts, self._all(), strict=True))

    def _all_gather_into_tensor(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        mine, whole = self._sent(), self._target(len(self.members) * self._length)
        self._call(dist.all_gather_into_tensor, whole, mine)
        return [(whole, torch.cat(self._all()))]

    def _reduce_scatter_tensor(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        given = self._parts()
        mine = self._target()
        self._call(dist.reduce_scatter_tensor, mine, given, op=getattr(dist.ReduceOp, self._reduction))
        return [(mine, reduced(self._all(shift=self.members.index(self._subject.rank)), self._reduction))]

    def _all_to_all_single(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        given = self._parts()
        mine = self._target(len(self.members) * self._length)
        self._call(dist.all_to_all_single, mine, given)
        return [(mine, torch.cat(self._all(shift=self.members.index(self._subject.rank))))]

    def _all_to_all_uneven(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        given, sent, received, expected = self._exchanged()
        mine = self._target(sum(received))
        self._call(dist.all_to_all_single, mine, self._given(torch.cat(given)), received, sent)
        return [(mine, torch.cat(expected))]

    def _all_to_all(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        given, _, received, expected = self._exchanged(is_even=self._is_gloo)  # gloo rejects a list of tensors with different lengths
        mine = [self._target(length) for length in received]
        self._call(dist.all_to_all, mine, [self._given(part) for part in given])
        return list(zip(mine, expected, strict=True))

    def _exchanged(self, *, is_even: bool = False) -> tuple[list[torch.Tensor], list[int], list[int], list[torch.Tensor]]:
        """Return the parts to send, their lengths, the lengths of the parts to receive, and the expected parts.

        Each list has one entry for each member of the group. If ``is_even`` is True, or if the group has only one member, the length of
        each part is the ``length`` of the case. Otherwise, if the ``parts`` of the case are ``rotated``, the parts that a rank sends to the
        n members of the group have the lengths 0, ``length``, ..., (n - 1) * ``length``, in an order that depends on the rank. The parts
        that the rank receives have the same lengths, in the same order. If the ``parts`` are ``silent``, the first member sends only empty
        parts, and the last member receives only empty parts.
        """
        count, me = len(self.members), self.members.index(self._subject.rank)
        offset = int(self._root == "first")

        def part(source: int, target: int) -> torch.Tensor:
            factor = (source + target + offset) % count if count > 1 and not is_even else 1
            if self._is_one_silent and count > 1 and not is_even and (source == 0 or target == count - 1):
                factor = 0
            return self._numbers(self.members[source], self._length * factor, target)

        given, expected = [part(me, target) for target in range(count)], [part(source, me) for source in range(count)]
        return given, [len(one) for one in given], [len(one) for one in expected], expected

    def _gather(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        is_root = self._subject.rank == self.root
        mine, parts = self._sent(), [self._target() for _ in self.members] if is_root else None
        self._call(dist.gather, mine, parts, dst=self.root)
        return list(zip(parts, self._all(), strict=True)) if parts is not None else []

    def _scatter(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        shifts = range(len(self.members))
        parts = [self._given(self._values(self.root, shift=shift)) for shift in shifts]
        mine = self._target()
        self._call(dist.scatter, mine, parts if self._subject.rank == self.root else None, src=self.root)
        return [(mine, self._values(self.root, shift=self.members.index(self._subject.rank)))]

    def _send(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        rank, target = self._subject.rank, self._neighbour(self.root, 1)
        if target == self.root or rank not in (self.root, target):
            return []
        is_sender = rank == self.root
        make, peer = (self._mine, target) if is_sender else (self._target, self.root)  # the layouts of both must be the same
        tensor = make()
        try:
            self._send_or_receive(tensor, peer, is_sender=is_sender)
        except _REFUSALS:
            if self._is_contiguous():
                raise
            self._output_memory = "offset"  # the other rank may support strided tensors, and then waits for this one
            tensor = make()
            self._send_or_receive(tensor, peer, is_sender=is_sender)
        return [(tensor, self._values(self.root))]

    def _send_or_receive(self, tensor: torch.Tensor, peer: int, *, is_sender: bool) -> None:
        if self._is_async:
            (dist.isend if is_sender else dist.irecv)(tensor, peer, group=self._group).wait()  # type: ignore[union-attr]
        else:
            (dist.send if is_sender else dist.recv)(tensor, peer, group=self._group)

    def _batch_isend_irecv(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        following, preceding = (self._neighbour(self._subject.rank, step) for step in (1, -1))
        if following == self._subject.rank:
            return []
        given, mine = self._sent(), self._target()
        calls = [dist.P2POp(dist.isend, given, following, self._group), dist.P2POp(dist.irecv, mine, preceding, self._group)]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        return [(mine, self._values(preceding))]

    def _neighbour(self, rank: int, step: int) -> int:
        """Return the member of the group that is ``step`` places after ``rank``. The first member follows the last."""
        return self.members[(self.members.index(rank) + step) % len(self.members)]


REDUCING = ("all_reduce", "reduce", "reduce_scatter_tensor")
_UNUSED = {
    **dict.fromkeys(("all_reduce", "reduce", "broadcast", "send"), ("input memory", "parts")),
    **dict.fromkeys(("all_to_all_uneven", "all_to_all"), ()),
}
"""The axes other than ``reduction`` that a collective does not use."""


def check_every_case(subject: Subject, collective: str) -> None:
    """Check a collective in all ``cases()``, except those with a dtype that the device lacks. Failures are recorded in the subject.

    For gloo and for ``batch_isend_irecv``, cases with ``strided`` or ``transposed`` tensors use ``offset`` tensors instead.
    """
    size = subject.world_size
    some = [0, 2] if size > 2 else [1]
    groups: dict[str, tuple[Any, list[int]]] = {"all": (None, list(range(size))), "some": (dist.new_group(some), some)}
    is_gloo = isinstance(dist.group.WORLD._get_backend(subject.device), dist.ProcessGroupGloo)
    fixed = {axis: AXES[axis][0] for axis in _UNUSED.get(collective, ("parts",))} | ({} if collective in REDUCING else {"reduction": "SUM"})
    seen: list[dict[str, str]] = []
    for settings in cases():
        own = {**settings, **fixed}
        if is_gloo or collective == "batch_isend_irecv":
            # gloo itself writes outside a slice; an error in the middle of a batch would leave the other ranks waiting
            for axis in ("input memory", "output memory"):
                own[axis] = "offset" if own[axis] in ("strided", "transposed") else own[axis]
        if collective in ("gather", "scatter"):  # only the root may notice that the layouts differ, and then the other ranks wait
            own["input memory"] = own["output memory"]
        if own in seen or subject.lacks(own["dtype"]):
            continue
        seen.append(own)
        with subject.sample(f"{collective}: {', '.join(f'{axis} {value}' for axis, value in own.items())}", own):
            Case(subject, own, groups, is_gloo=is_gloo).run(collective)
