"""The process-group backend ``host``: collectives through main memory and gloo, for devices without collectives of their own.

An XLA tensor cannot be given to gloo directly: gloo would use memory that does not hold the tensor's values, and leave the tensor
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import Store

_ProcessGroup: Any = dist.ProcessGroup
_Work: Any = dist.Work


def register(name: str, device_type: str) -> None:
    """Register the backend with torch.distributed as ``name``, for tensors on devices of type ``device_type``. Opens no connections.

    Does nothing if a backend of this name is already registered.
    """
    if name not in dist.Backend.backend_list:
        dist.Backend.register_backend(name, HostStagedGroup, devices=[device_type])


class HostStagedGroup(_ProcessGroup):  # type: ignore[misc] # torch's stubs declare every overload, but torch calls only one of them
    """A process group for tensors on any device, which are copied to the host, passed to gloo and copied back.

    All calls except ``send`` and ``recv`` are complete when they return. Contiguous tensors that are already on the host are
    passed to gloo without a copy, except by ``alltoall``.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._store = store
        self._gloo: Any = dist.ProcessGroupGloo(store, rank, size, timeout)

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        """The name that torch gave the group. torch's own property raises an error for groups implemented in Python."""
        return self._name

    def get_group_store(self) -> Store:
        """Return the store of the group. torch's own method returns the store only for groups implemented in C++."""
        return self._store

    def getBackendName(self) -> str:
        return "gloo through the host"

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        return self._in_place(self._gloo.allreduce, tensors, opts)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        return self._in_place(self._gloo.allreduce_coalesced, tensors, opts)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        return self._in_place(self._gloo.broadcast, tensors, opts)

    def reduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        return self._in_place(self._gloo.reduce, tensors, opts)

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        return self._into(self._gloo.allgather, outputs, inputs, opts)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        received = _on_host(output)
        parts = [list(received.view(-1).tensor_split(self.size()))]
        given = [] if opts is None else [opts]
        self._gloo.allgather(parts, [_on_host(tensor).view(-1)], *given).wait()
        return _Done(_copied_back(output, received))

    _allgather_base = all_gather_single  # its name before torch 2.13

    def all_gather_single_coalesced(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        for output, tensor in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, tensor, opts)
        return _Done(outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced  # its name before torch 2.13

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        return self._into(self._gloo.gather, outputs, inputs, opts)

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None) -> Any:
        return self._into(self._gloo.scatter, outputs, inputs, opts)

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None) -> Any:
        return self._into(self._gloo.reduce_scatter, outputs, inputs, opts)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        received = _on_host(output)
        parts = [list(_on_host(tensor).view(-1).tensor_split(self.size()))]
        self._gloo.reduce_scatter([received.view(-1)], parts, opts or dist.ReduceScatterOptions()).wait()
        return _Done(_copied_back(output, received))

    _reduce_scatter_base = reduce_scatter_single  # its name before torch 2.13

    def reduce_scatter_single_coalesced(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        for output, tensor in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, tensor, opts)
        return _Done(outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # its name before torch 2.13

    def alltoall_base(self, output: torch.Tensor, tensor: torch.Tensor, output_sizes: list[int], input_sizes: list[int], opts: Any) -> Any:
        received = _on_host(output)
        self._gloo.alltoall_base(received, _on_host(tensor), output_sizes, input_sizes, opts).wait()
        return _Done(_copied_back(output, received))

    all_to_all_single = alltoall_base  # its name since torch 2.13

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        """Concatenate the tensors and run ``alltoall_base``, because gloo does not implement ``alltoall`` for lists of tensors."""
        flat = [tensor.flatten() for tensor in _on_host(inputs)]
        received = torch.empty(sum(output.numel() for output in outputs), dtype=flat[0].dtype)
        sizes = [output.numel() for output in outputs], [tensor.numel() for tensor in flat]
        self._gloo.alltoall_base(received, torch.cat(flat), *sizes, opts or dist.AllToAllOptions()).wait()
        parts = torch.split(received, sizes[0])
        return _Done(_copied_back(outputs, [part.view_as(output) for part, output in zip(parts, outputs, strict=True)]))

    def send(self, tensors: list[torch.Tensor], destination: int, tag: int) -> Any:
        """Start sending, and return immediately, like ``recv``. If ``send`` waited, processes that send in a ring would deadlock."""
        values = _on_host(tensors)
        return _Transfer(self._gloo.send(values, destination, tag), values)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Any:
        received = _on_host(tensors)
        return _Transfer(self._gloo.recv(received, source, tag), received, tensors)

    def barrier(self, opts: Any = None) -> Any:
        """Wait for the other processes. Does not run operations that a lazy device has traced."""
        self._gloo.barrier(opts or dist.BarrierOptions()).wait()
        return _Done([])

    def _in_place(self, call: Callable[..., Any], tensors: list[torch.Tensor], opts: Any) -> Any:
        values = _on_host(tensors)
        (call(values, opts) if opts is not None else call(values)).wait()
        return _Done(_copied_back(tensors, values))

    def _into(self, call: Callable[..., Any], outputs: Any, inputs: Any, opts: Any) -> Any:
        received = _on_host(outputs)
        (call(received, _on_host(inputs), opts) if opts is not None else call(received, _on_host(inputs))).wait()
        return _Done(_copied_back(outputs, received))


class _Transfer(_Work):  # type: ignore[misc]
    """A pending transfer by gloo. It holds references to the host buffers that gloo uses.

    On the receiver, ``wait`` copies the values from the host buffers to the tensors ``targets``.
    """

    def __init__(self, work: Any, values: list[torch.Tensor], targets: list[torch.Tensor] | None = None) -> None:
        super().__init__()
        self._work, self._values, self._targets = work, values, targets

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        """Wait until the sent tensors may be changed, or until the received tensors are filled.

        Args:
            timeout: The time to wait; 0 means the timeout of the group.

        Returns:
            True. A failed transfer raises an error instead.

        Raises:
            RuntimeError: If the other process has ended, or the timeout has passed.
        """
        self._work.wait(timeout)
        if self._targets is not None:
            _copied_back(self._targets, self._values)
            self._targets = None
        return True

    def is_completed(self) -> bool:
        """Return whether the transfer is complete. On the receiver, a transfer is complete only after ``wait`` has returned."""
        return self._targets is None and bool(self._work.is_completed())


def _on_host(given: Any) -> Any:
    """Return a tensor, or nested lists of tensors, as contiguous tensors on the host.

    On a device that traces lazily, copying the first tensor runs the operations traced so far.
    """
    if isinstance(given, torch.Tensor):
        return given.detach().cpu().contiguous()
    return [_on_host(one) for one in given]


def _copied_back(targets: Any, values: Any) -> Any:
    """Copy ``values`` to ``targets`` and return ``targets``. A target that shares the memory of its value is left as it is."""
    if not isinstance(targets, torch.Tensor):
        return [_copied_back(target, value) for target, value in zip(targets, values, strict=True)]
    if not targets.is_cpu or targets.data_ptr() != values.data_ptr():
        with torch.no_grad():
            targets.copy_(values)
    return targets


class _Done(_Work):  # type: ignore[misc]
    """Handle of a collective that is complete.

    Args:
        result: The output tensors, which torch's own code reads from ``get_future()``.
    """

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._future: torch.futures.Future[Any] = torch.futures.Future()
        self._future.set_result(result)

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        return self._future
