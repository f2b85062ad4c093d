"""Devices that differ from the fake XPU, on which they are based. ``unusual_devices:BareModule`` is a class."""

from __future__ import annotations

import threading
import time
import types
from typing import Any

from accelkit_fake_xpu.accelerator import FakeXPUAccelerator

from accelkit import Capabilities, UnsupportedError
from accelkit_conformance.mutants.broken import Broken, changed, is_pure

NOTHING = Capabilities.declare(native=["dtype.float32"])


class BareModule(FakeXPUAccelerator):
    """A device whose module has only what torch itself calls. ``torch.accelerator``, ``torch.Stream`` and ``torch.Event`` work."""

    @property
    def device_module(self) -> Any:
        import torch

        names = ("is_available", "device_count", "current_device", "device", "manual_seed_all", "get_rng_state", "set_rng_state")
        return types.SimpleNamespace(**{name: getattr(torch.fake_xpu, name) for name in names})


class NoStorage(Broken):
    """A device with opaque tensors: they have neither a storage nor an address, and results are always contiguous. Torch saves values."""

    declared_capabilities = NOTHING

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return changed(call(), lambda result: result.contiguous()) if is_pure(func) else call()

    def load(self) -> None:
        super().load()
        import torch

        def refuse(tensor: torch.Tensor, original: Any, error: Exception) -> Any:
            if tensor.device.type == "fake_xpu":
                raise error
            return original(tensor)

        storage, address, has_storage = torch.Tensor.untyped_storage, torch.Tensor.data_ptr, torch._C._has_storage
        no_storage = NotImplementedError("Cannot access storage of OpaqueTensorImpl")
        no_address = RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")
        torch.Tensor.untyped_storage = lambda tensor: refuse(tensor, storage, no_storage)
        torch.Tensor.data_ptr = lambda tensor: refuse(tensor, address, no_address)
        torch._C._has_storage = lambda tensor: tensor.device.type != "fake_xpu" and has_storage(tensor)


class LateErrors(Broken):
    """A device that reports the error of a multiplication when the program next waits for the device."""

    error: Exception | None = None

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name == "mul.Tensor":
            self.error = RuntimeError("a kernel has failed")
        return call()

    def synchronize(self, device: Any) -> None:
        super().synchronize(device)
        error, self.error = self.error, None
        if error is not None:
            raise error


class LateErrorsAfterFailures(LateErrors):
    """A device whose products are also wrong."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = super().fault(name, call, args, kwargs, func)
        return result * 0 if name == "mul.Tensor" else result


class RefusesLate(LateErrors):
    """A device that returns a tensor from a call that it refuses, and reports the error when the program next waits for the device."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        try:
            return call()
        except RuntimeError as error:
            self.error = RuntimeError(f"{name} failed on the device: {error}")
            return args[0] if func._schema.returns else None


class AcceptsEverything(RefusesLate):
    """A device that never reports the error."""

    def synchronize(self, device: Any) -> None:
        self.error = None


class _Undeclared(Broken):
    """A device that declares only float32, and whose ``faulty`` overload does something else."""

    declared_capabilities = NOTHING
    faulty = ""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        return self.instead(call) if name == self.faulty else call()

    def instead(self, call: Any) -> Any:
        raise NotImplementedError


class WrongUndeclared(_Undeclared):
    """The sum of two tensors is one too large."""

    faulty = "add.Tensor"

    def instead(self, call: Any) -> Any:
        return call() + 1


class RaisesUndeclared(_Undeclared):
    """The sum of two tensors is not implemented."""

    faulty = "add.Tensor"

    def instead(self, call: Any) -> Any:
        raise NotImplementedError("no kernel for aten::add.Tensor")


class FlushesUndeclared(_Undeclared):
    """Products with subnormal numbers are zero, as on devices that flush them."""

    faulty = "mul.Tensor"

    def instead(self, call: Any) -> Any:
        result = call()
        return result.masked_fill(result.abs() < 1.2e-38, 0.0)


class IgnoresWhatItIsTold(Broken):
    """Two devices: seeds have no effect, no memory is counted, an index that does not exist means device 0. Only float32 is declared."""

    declared_capabilities = NOTHING

    def load(self) -> None:
        super().load()
        import torch

        torch.fake_xpu.manual_seed_all = lambda seed: None

    def manual_seed(self, seed: int) -> None:
        pass

    def memory_stats(self, device: Any) -> dict[str, float]:
        return dict.fromkeys(super().memory_stats(device), 0.0)

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        device = kwargs.get("device")
        if isinstance(device, torch.device) and (device.index or 0) >= torch.fake_xpu.device_count():
            return func(*args, **{**kwargs, "device": torch.device("fake_xpu", 0)})
        return call()


class CannotCopy(_Undeclared):
    """Copies to the device within a helper of the suite fail."""

    faulty = "set_.source_Storage_storage_offset"

    def instead(self, call: Any) -> Any:
        raise NotImplementedError("no kernel for aten::set_")


class FreesLate(Broken):
    """A device on which another thread releases the last reference to a product, and to the result of a backward pass, a moment late."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if name in ("mul.Tensor", "sgn"):
            threading.Thread(target=lambda held: time.sleep(0.2), args=[result], daemon=True).start()
        return result


class Compiles(FakeXPUAccelerator):
    """A device that declares that it may need a minute to compile its kernels at their first call."""

    first_call_timeout = 60


class Poisoned(Broken):
    """A device on which every call of a process fails after a multiplication."""

    is_poisoned = False

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        self.is_poisoned = self.is_poisoned or name == "mul.Tensor"
        if self.is_poisoned:
            raise RuntimeError("the queue has failed")
        return call()


class CannotDraw(_Undeclared):
    """A device without exponential_."""

    faulty = "exponential_"

    def instead(self, call: Any) -> Any:
        raise NotImplementedError("no kernel for aten::exponential_")


class LacksHistograms(Broken):
    """A device without ``torch.histogram``, which PyTorch itself has only for the CPU."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name.startswith("histogram"):
            raise NotImplementedError(f"Could not run 'aten::{name}' with arguments from the 'XPU' backend.")
        return call()


class OneStream(FakeXPUAccelerator):
    """A device on which every new stream is the current one. It does not declare streams."""

    declared_capabilities = NOTHING

    def load(self) -> None:
        super().load()
        import torch

        def current_stream(device: torch.device) -> torch.Stream:
            return torch.accelerator.current_stream(device)

        torch.Stream = current_stream


class WithoutAutocast(FakeXPUAccelerator):
    """A device that registers no autocast. torch then raises an AssertionError."""

    def load(self) -> None:
        super().load()
        import torch

        del torch.fake_xpu.get_amp_supported_dtype


class LacksBFloat16(Broken):
    """A device that does not declare bfloat16 and refuses it."""

    declared_capabilities = NOTHING

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        if getattr(result, "dtype", None) is torch.bfloat16:
            raise TypeError("Got unsupported ScalarType BFloat16")
        return result


class OnlyFloat32(Broken):
    """A device that has only float32, and does not declare that it lacks the others."""

    declared_capabilities = NOTHING

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        result = call()
        if getattr(result, "dtype", torch.float32) is not torch.float32:
            raise TypeError("this device has only float32")
        return result


class ConvertsWrongly(_Undeclared):
    """A device that does not declare int32, and converts numbers to it wrongly."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        import torch

        return call() + 1 if name.startswith("_to_copy") and kwargs.get("dtype") is torch.int32 else call()


class OneShape(Broken):
    """A device that holds only tensors of 4,096 elements."""

    declared_capabilities = NOTHING

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if getattr(result, "shape", (4096,)) != (4096,):
            raise RuntimeError("this device holds only tensors of 4096 elements")
        return result


class LeavesToTheCPU(FakeXPUAccelerator):
    """A device that leaves GELU to the CPU: it copies its argument there, and the result back."""

    def load(self) -> None:
        super().load()
        import torch

        self.library = torch.library.Library("aten", "IMPL")
        self.library.impl(
            "gelu", lambda x, approximate="none": torch.ops.aten.gelu(x.cpu(), approximate=approximate).to(x.device), "PrivateUse1"
        )


class LacksAnOperator(FakeXPUAccelerator):
    """A device without GELU."""

    def load(self) -> None:
        super().load()
        import torch

        def refuse(x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
            raise NotImplementedError("aten::gelu is not implemented for this device")

        self.library = torch.library.Library("aten", "IMPL")
        self.library.impl("gelu", refuse, "PrivateUse1")


class WithoutRandomState(FakeXPUAccelerator):
    """A device whose random state cannot be read."""

    declared_capabilities = NOTHING

    def load(self) -> None:
        super().load()
        import torch

        del torch.fake_xpu.get_rng_state


class KeepsFactories(Broken):
    """A device that ignores ``device="cpu"`` if the other argument is on the device."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name == "ones_like" and str(kwargs.get("device")) == "cpu":
            return func(*args, **{**kwargs, "device": args[0].device})
        return call()


class AssignsToTheNext(Broken):
    """A device that assigns the values of each element to the next element."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        return args[0].copy_(args[0].roll(1)) if name == "index_put_" else result.roll(1) if name == "scatter.src" else result


class LoadsNamesToTheCPU(Broken):
    """A device to which ``torch.load`` does not load if ``map_location`` is a string."""

    def install(self) -> None:
        import torch

        load = torch.load
        torch.load = lambda file, map_location=None, **options: load(
            file, map_location="cpu" if isinstance(map_location, str) else map_location, **options
        )


class OnlyVectors(Broken):
    """A device that holds only vectors and cannot be waited for."""

    declared_capabilities = NOTHING

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        result = call()
        if getattr(result, "ndim", 1) == 0:
            raise RuntimeError("this device holds only vectors")
        return result

    def synchronize(self, device: Any) -> None:
        raise UnsupportedError("this device cannot be waited for")


class OneExclusiveDevice(FakeXPUAccelerator):
    """A single device whose process group refuses two processes on it, as NCCL does."""

    process_group_backend = "exclusive"

    def auto_device_count(self) -> int:
        return 1

    def load(self) -> None:
        super().load()
        import torch.distributed as dist

        def create(*args: Any) -> Any:
            raise RuntimeError("Duplicate device: rank 0 and rank 1 are both on fake_xpu:0")

        dist.Backend.register_backend("exclusive", create, devices=["fake_xpu"])
