"""Faults in the choice of the device or stream, in names and properties of devices, in errors, and in ``torch.save`` and ``torch.load``."""

from __future__ import annotations

import dataclasses
from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken


@mutant("device", "the current device")
class WindowsOnTheCurrentDevice(Broken):
    """``arange``, ``full``, ``hann_window`` and ``kaiser_window`` use the current device, whatever index their ``device`` argument has."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if name.startswith(("full", "arange", "hann_window", "kaiser_window")) and kwargs.get("device") is not None:
            current: Any = self.device_module
            return func(*args, **{**kwargs, "device": torch.device("fake_xpu", current.current_device())})
        return call()


@mutant("device", "missing indices")
class StaysOnAnotherIndex(Broken):
    """``to`` with a device without an index does not move a tensor that is already on a device of the same type.

    The tensor stays where it is even if its device is not the current device.
    """

    def install(self) -> None:
        import torch

        original = torch.Tensor.to

        def to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            place = torch.device(args[0]) if args and isinstance(args[0], str | torch.device) else None
            if place == torch.device("fake_xpu") and tensor.device.type == "fake_xpu":
                args = (tensor.device, *args[1:])
            return original(tensor, *args, **kwargs)

        torch.Tensor.to = to  # type: ignore[method-assign]


@mutant("transfer", "results on the CPU")
class HostScalarsFirst(Broken):
    """If the first operand of an operator is a tensor of shape () on the CPU, the result is on the CPU too."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        first = args[0] if args else None
        is_host_scalar = isinstance(first, torch.Tensor) and first.device.type == "cpu" and first.dim() == 0
        return result.cpu() if is_host_scalar and isinstance(result, torch.Tensor) and not func._schema.is_mutable else result


@mutant("device", "the current device")
class ThreadsShareTheDevice(Broken):
    """The context manager ``torch.<device_type>.device`` makes the device current in every thread, not only in the one that enters it."""

    def install(self) -> None:
        module: Any = self.device_module
        chosen: list[int] = []
        context, original = module.device, module.current_device

        class Shared(context):  # type: ignore[misc, valid-type]
            def __enter__(self) -> None:
                super().__enter__()
                chosen.append(original())

            def __exit__(self, *exc_info: Any) -> None:
                super().__exit__(*exc_info)
                chosen.pop()

        module.device = Shared
        module.current_device = lambda: chosen[-1] if chosen else original()


@mutant("device", "names of devices")
class NamesOnlyTheFirst(Broken):
    """``get_device_name`` returns an empty string for every device except device 0."""

    def install(self) -> None:
        module: Any = self.device_module
        original = module.get_device_name

        def get_device_name(device: Any = None) -> Any:
            index = module.current_device() if device is None else device.index
            return original(device) if index == 0 else ""

        module.get_device_name = get_device_name


@mutant("device", "names of devices")
class PropertiesInTerabytes(Broken):
    """The properties of a device give its memory size in terabytes, rounded down."""

    def install(self) -> None:
        module: Any = self.device_module
        original = module.get_device_properties
        module.get_device_properties = lambda device=None: dataclasses.replace(
            original(device), total_memory=original(device).total_memory // 10**12
        )


@mutant("errors", "state after an error")
class ErrorsChangeTheStream(Broken):
    """After an operator has raised an error, a new stream is the current stream of the device."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        try:
            return call()
        except (RuntimeError, IndexError):
            import torch

            module: Any = self.device_module
            tensor = next((one for one in args if isinstance(one, torch.Tensor)), None)
            if tensor is not None and tensor.device.type == "fake_xpu":
                with module.device(tensor.device):
                    module.set_stream(module.Stream(tensor.device))
            raise


@mutant("errors", "indices outside")
class GathersZeros(Broken):
    """If an index is out of range, ``gather``, ``index_select`` and ``embedding`` return only zeros instead of raising an error."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        try:
            return call()
        except (IndexError, RuntimeError) as error:
            if name.startswith(("gather", "index_select", "embedding")) and "out of" in str(error):
                index = args[1] if name.startswith("embedding") else args[2]
                return args[0].new_zeros(index.shape if not name.startswith("embedding") else (*index.shape, args[0].shape[1]))
            raise


@mutant("serialization", "locations")
class LoadsToTheFirstDevice(Broken):
    """If ``map_location`` is a device without an index, ``torch.load`` loads tensors to device 0 instead of the current device."""

    def install(self) -> None:
        import torch

        def load(storage: Any, location: str) -> Any:
            return storage.to(device=torch.device("fake_xpu", 0)) if location == "fake_xpu" else None

        torch.serialization.register_package(5, lambda storage: None, load)


@mutant("serialization", "large tensors")
class SavesWholePages(Broken):
    """If a storage is larger than 1 MiB, the bytes after its last whole page of 4 KiB are saved as zeros."""

    def install(self) -> None:
        import torch

        original = torch.UntypedStorage.cpu

        def cpu(storage: Any) -> Any:
            host = original(storage)
            size = host.nbytes()
            if storage.device.type == "fake_xpu" and size > 1 << 20:
                torch.tensor([], dtype=torch.uint8).set_(host)[size // 4096 * 4096 :] = 0
            return host

        torch.UntypedStorage.cpu = cpu  # type: ignore[method-assign]


@mutant("device", "state after a failed selection")
class FailedSelectionsReset(Broken):
    """If ``torch.accelerator.set_device_index`` fails because the device does not exist, device 0 becomes current. The same
    happens in ``set_device`` of the device's module, which calls ``set_device_index``."""

    def install(self) -> None:
        import torch

        original = torch.accelerator.set_device_index

        def set_device_index(device: Any, /) -> None:
            try:
                original(device)
            except RuntimeError:
                original(0)
                raise

        torch.accelerator.set_device_index = set_device_index  # type: ignore[assignment]


@mutant("device", "backward passes")
class BackwardOnTheFirstDevice(Broken):
    """In a backward pass, a factory function whose argument ``device`` has no index creates its tensor on device 0."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        if kwargs.get("device") == torch.device("fake_xpu") and torch._C._current_graph_task_id() != -1:
            return func(*args, **{**kwargs, "device": torch.device("fake_xpu", 0)})
        return call()


@mutant("operators", "operands on another device")
class PowersOnTheFirstDevice(Broken):
    """A number to the power of a tensor, as in ``2 ** x``, is on device 0, whatever device the tensor is on."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        return result.to("fake_xpu:0") if name == "pow.Scalar" else result


@mutant("device", "refused constructors")
class RefusesNew(Broken):
    """``Tensor.new`` raises an error for tensors on the device."""

    def install(self) -> None:
        import torch

        original = torch.Tensor.new

        def new(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if self.device.type == "fake_xpu":
                raise RuntimeError(f"new(): unknown device {self.device}")
            return original(self, *args, **kwargs)  # type: ignore[no-any-return, no-untyped-call]

        torch.Tensor.new = new  # type: ignore[method-assign, assignment]


@mutant("operators", "operands on another device", check="on_another_device")
class ApproximatesErfinvElsewhere(Broken):
    """On a device that is not current, ``erfinv`` in float64 returns 0."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result, module = call(), self.device_module
        is_affected = name.startswith("erfinv") and result.dtype is torch.float64 and result.device.index != module.current_device()
        return torch.zeros_like(result) if is_affected else result


@mutant("memory", "storages of another device")
class ResizesStoragesOfTheCurrentDevice(Broken):
    """Resizing a storage of a device that is not current raises an error."""

    def install(self) -> None:
        import torch

        original, module = torch.UntypedStorage.resize_, self.device_module

        def resize_(storage: Any, size: int) -> Any:
            if storage.device.type == "fake_xpu" and storage.device.index != module.current_device():
                raise RuntimeError(f"a storage of {storage.device} cannot be resized while device {module.current_device()} is current")
            return original(storage, size)

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign]


@mutant("serialization", "deep copies")
class CopiesToTheCurrentDevice(Broken):
    """A deep copy of a tensor is on the current device, whatever device the tensor is on."""

    def install(self) -> None:
        import torch

        original = torch.UntypedStorage.__deepcopy__

        def deepcopy(storage: Any, memo: Any) -> Any:
            found = original(storage, memo)
            return (
                found.to(device=torch.device("fake_xpu", self.device_module.current_device())) if found.device.type == "fake_xpu" else found
            )

        torch.UntypedStorage.__deepcopy__ = deepcopy  # type: ignore[method-assign]
