"""The process-group backend ``host``: collectives for devices that have none of their own, through main memory and gloo.

gloo itself, given a tensor of XLA's, works on memory that holds nothing, and leaves the tensor as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

_c10d: Any = torch._C._distributed_c10d
_ProcessGroup: Any = dist.ProcessGroup
_Work: Any = dist.Work


def register(name: str, device_type: str) -> None:
    """Tell torch.distributed of the backend, once. Connects nothing."""
    if name not in dist.Backend.backend_list:
        dist.Backend.register_backend(name, HostStagedGroup, devices=[device_type])


class HostStagedGroup(_ProcessGroup):  # type: ignore[misc] # torch types each overload, of which it calls one
    """A process group for tensors on any device: they are copied to the host, given to gloo, and copied back.

    Every call has ended when it returns, but for ``send`` and ``recv``. Tensors that are on the host already are given to gloo as they are.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._gloo: Any = dist.ProcessGroupGloo(store, rank, size, timeout)

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        """torch's name of the group. Of a group made in Python, older versions of torch ask Python."""
        return self._name

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

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        return self._into(self._gloo._allgather_base, output, tensor, opts)

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        return self._into(self._gloo.gather, outputs, inputs, opts)

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None) -> Any:
        return self._into(self._gloo.scatter, outputs, inputs, opts)

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None) -> Any:
        return self._into(self._gloo.reduce_scatter, outputs, inputs, opts)

    def _reduce_scatter_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        return self._into(self._gloo._reduce_scatter_base, output, tensor, opts)

    def alltoall_base(self, output: torch.Tensor, tensor: torch.Tensor, output_sizes: list[int], input_sizes: list[int], opts: Any) -> Any:
        received = _on_host(output)
        self._gloo.alltoall_base(received, _on_host(tensor), output_sizes, input_sizes, opts).wait()
        return _done(_copied_back(output, received))

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        """gloo knows the one of a single tensor only."""
        flat = [tensor.flatten() for tensor in _on_host(inputs)]
        received = torch.empty(sum(output.numel() for output in outputs), dtype=flat[0].dtype)
        sizes = [output.numel() for output in outputs], [tensor.numel() for tensor in flat]
        self._gloo.alltoall_base(received, torch.cat(flat), *sizes, opts or dist.AllToAllOptions()).wait()
        parts = torch.split(received, sizes[0])
        return _done(_copied_back(outputs, [part.view_as(output) for part, output in zip(parts, outputs, strict=True)]))

    def send(self, tensors: list[torch.Tensor], destination: int, tag: int) -> Any:
        """Returns before it has ended, as ``recv`` does: processes in a ring send and receive at once."""
        values = _on_host(tensors)
        return _Transfer(self._gloo.send(values, destination, tag), values)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Any:
        received = _on_host(tensors)
        return _Transfer(self._gloo.recv(received, source, tag), received, tensors)

    def barrier(self, opts: Any = None) -> Any:
        """Waits for the processes, not for what was traced."""
        self._gloo.barrier(opts or dist.BarrierOptions()).wait()
        return _done([])

    def _in_place(self, call: Callable[..., Any], tensors: list[torch.Tensor], opts: Any) -> Any:
        values = _on_host(tensors)
        (call(values, opts) if opts is not None else call(values)).wait()
        return _done(_copied_back(tensors, values))

    def _into(self, call: Callable[..., Any], outputs: Any, inputs: Any, opts: Any) -> Any:
        received = _on_host(outputs)
        (call(received, _on_host(inputs), opts) if opts is not None else call(received, _on_host(inputs))).wait()
        return _done(_copied_back(outputs, received))


class _Transfer(_Work):  # type: ignore[misc]
    """gloo's work on memory of the host, which it must outlive, and what is to be filled from it."""

    def __init__(self, work: Any, values: list[torch.Tensor], targets: list[torch.Tensor] | None = None) -> None:
        super().__init__()
        self._work, self._values, self._targets = work, values, targets

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        """Until what was sent may be changed, or what was received is there; 0 is the group's time.

        Raises:
            RuntimeError: If the other process is gone, or ``timeout`` has passed.
        """
        self._work.wait(timeout)
        if self._targets is not None:
            _copied_back(self._targets, self._values)
            self._targets = None
        return True

    def is_completed(self) -> bool:
        """Whether ``wait`` has returned."""
        return self._targets is None and bool(self._work.is_completed())


def _on_host(given: Any) -> Any:
    """A tensor, or nested lists of them, contiguous and on the host. What was traced so far is run by copying the first."""
    if isinstance(given, torch.Tensor):
        return given.detach().cpu().contiguous()
    return [_on_host(one) for one in given]


def _copied_back(targets: Any, values: Any) -> Any:
    """``targets``, filled; one that is its own value is left."""
    if not isinstance(targets, torch.Tensor):
        return [_copied_back(target, value) for target, value in zip(targets, values, strict=True)]
    if targets.data_ptr() != values.data_ptr() or not targets.is_cpu:
        with torch.no_grad():
            targets.copy_(values)
    return targets


def _done(result: Any) -> Any:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(result)
    return _c10d._create_work_from_future(future)
