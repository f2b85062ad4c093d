"""DeepSpeed's accelerator for the device of a plugin. This module is imported while DeepSpeed is being imported.

DeepSpeed does not document its base class for accelerators. The methods here follow those of DeepSpeed's accelerators for CUDA, MPS and the
CPU.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import torch
from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator

from accelkit.bridges.deepspeed.device_memory import DeviceMemory
from accelkit.errors import UnsupportedError
from accelkit.runtime.process_group import backends_of
from accelkit.specs import torch_functions
from accelkit.specs.accelerator import Accelerator

_BUILDERS = "deepspeed.ops.op_builder.cpu"
_ON_THE_HOST = ("AsyncIOBuilder", "CPUAdagradBuilder", "CPUAdamBuilder", "CPULionBuilder", "PinMemoryBuilder")
"""DeepSpeed's compiled operators that work on tensors in host memory, whatever the device is."""


class PluginAccelerator(DeviceMemory, DeepSpeedAccelerator):  # type: ignore[misc]  # DeepSpeed has no types
    """A DeepSpeed accelerator that represents the device of an accelkit plugin.

    DeepSpeed uses streams if the plugin declares the capabilities ``streams`` and ``events``, and the device's module has
    ``default_stream``. Otherwise, DeepSpeed uses no streams and treats the device as synchronous, as it treats the CPU and MPS.

    Args:
        accelerator: The accelerator, which must be loaded.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__()
        self.accelerator = accelerator
        self._name = accelerator.device_type
        self._compile_backend = accelerator.compile_backend or "inductor"
        capabilities = accelerator.capabilities()
        self._has_streams = capabilities.can("streams") and capabilities.can("events") and hasattr(self._module, "default_stream")
        self._torch_pins_host_memory = self._has_streams and capabilities.can("pinned_memory")

    @property
    def _module(self) -> Any:
        return self.accelerator.device_module

    def torch_device(self, device: torch.device | int | str | None = None) -> torch.device:
        """Return the torch device to which ``device`` refers.

        ``device`` is a torch device, an index, or an index as text (the format of LOCAL_RANK). The type of a torch device is ignored. None
        and a torch device without an index mean the current device.
        """
        if isinstance(device, torch.device):
            device = device.index
        return self.accelerator.device(self.current_device() if device is None else int(device))

    # -- synchronisation of the host with the device ------------------------------------------------------------------

    def is_synchronized_device(self) -> bool:
        return not self._has_streams

    use_host_timers = resolves_data_dependency = handles_memory_backpressure = is_synchronized_device

    # -- devices ------------------------------------------------------------------------------------------------------

    def device_name(self, device_index: int | None = None) -> str:
        return self.accelerator.device_type if device_index is None else str(self.torch_device(device_index))

    def device(self, device_index: int | None = None) -> torch.device:
        return self.torch_device(device_index)

    def set_device(self, device_index: int) -> None:
        torch_functions.set_device(self.accelerator, self.torch_device(device_index))

    def current_device(self) -> int:
        with contextlib.suppress(UnsupportedError):
            index = torch_functions.call(self.accelerator, "current_device_index", module_name="current_device")
            return index if isinstance(index, int) else 0  # for the CPU, torch returns a name
        return 0

    def current_device_name(self) -> str:
        return str(self.torch_device())

    def device_count(self) -> int:
        return self.accelerator.auto_device_count()

    def is_available(self) -> bool:
        return self.device_count() > 0

    def synchronize(self, device_index: torch.device | int | None = None) -> None:
        self.accelerator.synchronize(self.torch_device(device_index))

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self.accelerator.device_type

    def visible_devices_envs(self) -> list[str]:
        variable = self.accelerator.visible_devices_variable
        return [] if variable is None else [variable]

    def set_visible_devices_envs(self, current_env: MutableMapping[str, str], local_accelerator_ids: Sequence[int]) -> None:
        current_env.update(dict.fromkeys(self.visible_devices_envs(), ",".join(map(str, local_accelerator_ids))))

    def export_envs(self) -> list[str]:
        return []

    def communication_backend_name(self) -> str:
        return backends_of(self.torch_device(), self.accelerator.process_group_backend)

    # -- random state -------------------------------------------------------------------------------------------------

    def random(self) -> Any:
        return torch.random

    def get_rng_state(self, device_index: torch.device | int | None = None) -> torch.Tensor | None:
        return self.accelerator.get_rng_state(self.torch_device(device_index))

    def set_rng_state(self, new_state: torch.Tensor | None, device_index: torch.device | int | None = None) -> None:
        if new_state is not None:  # get_rng_state returns None for a device without a generator
            self.accelerator.set_rng_state(new_state, self.torch_device(device_index))

    def manual_seed(self, seed: int) -> None:
        self.accelerator.manual_seed(seed)

    manual_seed_all = manual_seed

    def initial_seed(self) -> int:
        function = getattr(self._module, "initial_seed", torch.initial_seed)
        return int(function())

    def default_generator(self, device_index: int) -> torch.Generator:
        try:
            generator: torch.Generator = self._module.default_generators[device_index]
        except AttributeError:
            raise self._unsupported("its generators", f"torch.{self._name} has no default_generators") from None
        return generator

    # -- streams and graphs -------------------------------------------------------------------------------------------

    @property
    def Stream(self) -> Callable[..., torch.Stream] | None:
        return functools.partial(torch.Stream, self._name) if self._has_streams else None

    @property
    def Event(self) -> Callable[..., torch.Event] | None:
        return functools.partial(torch.Event, self._name) if self._has_streams else None

    def stream(self, stream: torch.Stream | None) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if stream is None else stream

    def current_stream(self, device_index: torch.device | int | None = None) -> torch.Stream | None:
        return torch_functions.call(self.accelerator, "current_stream", self.torch_device(device_index)) if self._has_streams else None

    def default_stream(self, device_index: torch.device | int | None = None) -> torch.Stream | None:
        return self._module.default_stream(self.torch_device(device_index)) if self._has_streams else None

    def create_graph(self) -> Any:
        raise self._unsupported("graphs", "the bridge captures none")

    def capture_to_graph(self, graph: Any, pool: Any = None, stream: Any = None) -> Any:
        raise self._unsupported("graphs", "the bridge captures none")

    def replay_graph(self, graph: Any) -> None:
        raise self._unsupported("graphs", "the bridge captures none")

    # -- dtypes -------------------------------------------------------------------------------------------------------

    def _computes_in(self, dtype: str) -> bool:
        """Return whether the device computes in a dtype, according to the plugin's capabilities.

        If the plugin declares nothing about the dtype, return True, with one exception: for bfloat16, return the result of the function
        ``is_bf16_supported`` of the device's module, if the module has this function.
        """
        declared = self.accelerator.capabilities(self.torch_device())[f"dtype.{dtype}"]
        if declared == "undeclared" and dtype == "bfloat16" and hasattr(self._module, "is_bf16_supported"):
            return bool(self._module.is_bf16_supported())
        return declared != "none"

    def is_bf16_supported(self) -> bool:
        return self._computes_in("bfloat16")

    def is_fp16_supported(self) -> bool:
        return self._computes_in("float16")

    def is_fp64_supported(self) -> bool:
        return self._computes_in("float64")

    def supported_dtypes(self) -> list[torch.dtype]:
        return [getattr(torch, name) for name in ("float32", "float16", "bfloat16") if self._computes_in(name)]

    def _makes(self, dtype: torch.dtype) -> Callable[..., torch.Tensor]:
        return functools.partial(torch.tensor, dtype=dtype, device=self._name)

    BFloat16Tensor = property(lambda self: self._makes(torch.bfloat16))
    ByteTensor = property(lambda self: self._makes(torch.uint8))
    DoubleTensor = property(lambda self: self._makes(torch.float64))
    FloatTensor = property(lambda self: self._makes(torch.float32))
    HalfTensor = property(lambda self: self._makes(torch.float16))
    IntTensor = property(lambda self: self._makes(torch.int32))
    LongTensor = property(lambda self: self._makes(torch.int64))

    # -- compiled operators -------------------------------------------------------------------------------------------

    def op_builder_dir(self) -> str:
        return _BUILDERS

    def get_op_builder(self, class_name: str) -> type[Any]:
        """Return the class that builds an operator. Its ``load`` raises UnsupportedError unless the operator works on host tensors."""
        builders = importlib.import_module(_BUILDERS)
        if class_name in _ON_THE_HOST:
            return getattr(builders, class_name)  # type: ignore[no-any-return]
        error = self._unsupported(class_name.removesuffix("Builder"), "DeepSpeed compiles it only for devices that it knows")

        def load(self: Any, verbose: bool = True) -> Any:
            raise error

        return type(class_name, (builders.NotImplementedBuilder,), {"load": load})

    def create_op_builder(self, class_name: str) -> Any:
        return self.get_op_builder(class_name)()

    def build_extension(self) -> Any:
        return importlib.import_module("torch.utils.cpp_extension").BuildExtension

    def is_triton_supported(self) -> bool:
        return False

    def get_compile_backend(self) -> str:
        return self._compile_backend

    def set_compile_backend(self, backend: str) -> None:
        self._compile_backend = backend

    # -- others -------------------------------------------------------------------------------------------------------

    def range_push(self, msg: str, domain: str | None = None, category: str | None = None) -> None:
        """Do nothing: torch has no counterpart of NVTX ranges that works on all devices."""

    def range_pop(self, domain: str | None = None) -> None:
        """Do nothing, like ``range_push``."""

    def lazy_call(self, callback: Callable[[], Any]) -> Any:
        return callback()

    def _unsupported(self, what: str, why: str) -> UnsupportedError:
        return UnsupportedError(f"DeepSpeed does not support {what} on {self.accelerator.name}", plugin=self.accelerator.plugin, why=why)
