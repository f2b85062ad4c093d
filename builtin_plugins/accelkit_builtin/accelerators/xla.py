"""Google TPUs and the other devices that XLA compiles for, used through PyTorch/XLA.

Operations are traced first. They are compiled and run when a step ends, or when the program waits for the device or reads a value.
PJRT_DEVICE selects the kind of device that XLA drives. If PJRT_DEVICE is not set, XLA drives the machine's TPU. On a machine without a TPU,
XLA drives a Neuron device if the package libneuronxla is installed, and otherwise the CPU. accelkit uses XLA's CPU device only if
PJRT_DEVICE is set to CPU.
Source: https://github.com/pytorch/xla/blob/master/docs/source/learn/pjrt.md (PJRT_DEVICE, CPU_NUM_DEVICES).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelkit import Accelerator, Availability, Capabilities, UnavailableError, UsageError, parse_devices

if TYPE_CHECKING:
    import torch

PJRT_DEVICE = "PJRT_DEVICE"
_NUM_CPU_DEVICES = "CPU_NUM_DEVICES"
_VISIBLE_CHIPS = "TPU_VISIBLE_CHIPS"
_GOOGLE = "0x1ae0"
_CHIPS = frozenset({"0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"})
"""PCI device ids of TPU v2 to v7, as listed in torch_xla._internal.tpu."""


class _OnTheCPU:
    """Descriptor whose value is True if PJRT_DEVICE selects the CPU. The variable is read on each access."""

    def __get__(self, instance: object, owner: type) -> bool:
        return pjrt_device() == "CPU"


class XLAAccelerator(Accelerator):
    """TPUs and other devices that XLA compiles for."""

    device_type = "xla"
    torch_package = "torch_xla"
    process_group_backend = "host"
    compile_backend = "openxla"
    visible_devices_variable = _VISIBLE_CHIPS
    is_simulated = _OnTheCPU()
    declared_capabilities = Capabilities.declare(
        native=[
            *("dtype.float32", "dtype.bfloat16", "dtype.bool", "dtype.uint8", "dtype.int8", "dtype.int16", "dtype.int32", "dtype.int64"),
            *("autocast.bfloat16", "random_state", "process_group", "numbered_devices"),
        ],
        emulated=["dtype.float64", "dtype.float16", "dtype.complex64", "autocast.float16", "fp8"],
        none=[
            *("streams", "events", "pinned_memory", "memory_limit", "graphs", "generator_offset", "transformer_engine"),
            *("profiler", "profiler_memory"),
            *("dtype.uint16", "dtype.uint32", "dtype.uint64"),
        ],
    )

    @classmethod
    def probe(cls) -> Availability:
        """Return whether XLA is usable. Does not import torch or torch_xla.

        The result depends on PJRT_DEVICE, the PCI bus, the versions of torch and torch_xla, and whether libneuronxla is installed.
        """
        answer = _package()
        if not answer.is_usable:
            return answer
        device = pjrt_device()
        if device is None:
            hint = f"on a TPU VM: pip install 'torch_xla[tpu]'; to try XLA on this machine's CPU: {PJRT_DEVICE}=CPU"
            return Availability.absent(f"this machine has no TPU, and {PJRT_DEVICE} is not set", hint)
        if device == "CPU":
            return Availability.usable(f"XLA uses this machine's CPU ({PJRT_DEVICE}=CPU)")
        if device == "TPU" and not _num_chips():
            return Availability.absent(f"{PJRT_DEVICE} is TPU, but this machine's PCI bus has no TPU chip", f"unset {PJRT_DEVICE}")
        return Availability.usable(f"{_num_chips()} TPU chip(s)" if device == "TPU" else f"XLA uses PJRT device {device}")

    def load(self) -> None:
        """Import torch_xla, and choose the process group backend.

        On TPUs, if torchrun or the command ``accelkit launch`` started this process, also limit it to its own chip.

        Raises:
            UnavailableError: If torch_xla would use a different kind of device from the one that ``probe`` found, such as the CPU instead
                of a TPU.
        """
        found = pjrt_device()
        super().load()
        if found is not None and pjrt_device() != found:
            chosen, os.environ[PJRT_DEVICE] = pjrt_device(), found  # so that later code does not use the device that torch_xla chose
            raise UnavailableError(
                f"XLA cannot use this machine's {found}",
                plugin=self.plugin,
                why=f"torch_xla did not find the library for {found}, and would use {chosen}",
                hint="pip install 'torch_xla[tpu]'" if found == "TPU" else f"set {PJRT_DEVICE}={found} to see the error",
            )
        if pjrt_device() != "CPU":  # on the CPU, XLA has no collectives between processes: github.com/pytorch/xla/issues/9089
            self.process_group_backend = "xla"  # type: ignore[misc]
        if pjrt_device() == "TPU":
            _take_own_chip()

    def setup_device(self, device: torch.device) -> None:
        """Make ``device`` XLA's default device in this process."""
        import torch_xla

        torch_xla.device(device.index)

    # -- devices ------------------------------------------------------------------------------------------------------

    def device(self, index: int) -> torch.device:
        """Return the device with this index, or device 0 if the process sees no device with this index.

        A process that sees only its own device sees it as device 0, whatever index the device has on the machine.
        """
        import torch

        return torch.device(self.device_type, index if index < self.auto_device_count() else 0)

    def parse_devices(self, devices: int | str | Sequence[int]) -> list[int]:
        """Return the device indices that the user's ``devices`` argument selects.

        On the CPU, a positive number ``n`` requests ``n`` processes, and the result has one index for each process. Any ``n`` is allowed,
        because XLA creates CPU devices in each process.

        Raises:
            DevicesError: If the argument cannot be parsed, or selects a device that does not exist.
        """
        return parse_devices(devices, self.auto_device_count(), self.name or self.device_type, counts_processes=self.is_simulated)

    def auto_device_count(self) -> int:
        """Return the number of devices that this process sees.

        On TPUs, this is the number of chips in TPU_VISIBLE_CHIPS or, if the variable is not set, on the PCI bus. Each chip counts as one
        device, although XLA drives a v2 or v3 chip as two devices, one per core. On the CPU, the result is the value of CPU_NUM_DEVICES, or
        1 if the variable is not set. For any other PJRT device, torch_xla counts the devices, which initialises XLA's runtime.

        Raises:
            UsageError: If CPU_NUM_DEVICES is not a positive integer.
        """
        device = pjrt_device()
        if device == "CPU":
            text = os.environ.get(_NUM_CPU_DEVICES) or "1"
            if not text.isdigit() or int(text) < 1:
                raise UsageError(f"{_NUM_CPU_DEVICES}={text!r} is not a valid number of devices", why="it must be a positive integer")
            return int(text)
        if device == "TPU":
            visible = os.environ.get(_VISIBLE_CHIPS)
            return len(visible.split(",")) if visible else _num_chips()
        from torch_xla import runtime

        return int(runtime.addressable_device_count()) if device else 0

    def synchronize(self, device: torch.device) -> None:
        """Compile and run the traced operations, and wait for them."""
        import torch_xla

        torch_xla.sync(wait=True)

    def empty_cache(self) -> None:
        """Do nothing: XLA's runtime does not release cached memory."""

    def memory_stats(self, device: torch.device) -> dict[str, float]:
        """Return ``memory.allocated.bytes``, ``memory.peak.bytes`` and ``memory.total.bytes`` of the device.

        A value that torch_xla does not report is left out.
        """
        import torch_xla.core.xla_model as xm

        try:
            info = xm.get_memory_info(device)
        except RuntimeError:  # UNIMPLEMENTED
            return {}
        names = {"bytes_used": "allocated", "peak_bytes_used": "peak", "bytes_limit": "total"}
        return {f"memory.{names[key]}.bytes": float(value) for key, value in info.items() if key in names}

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        """Do nothing: XLA's runtime cannot reset its peak memory statistics."""

    def get_device_stats(self, device: torch.device) -> dict[str, Any]:
        """Return memory statistics, and the numbers of graph compilations and graph executions in this process.

        If the number of compilations still grows after the first steps, the graph changes between steps, which is slow.
        """
        from torch_xla.debug import metrics

        counted = {"xla.compilations": ["CompileTime"], "xla.executions": ["ExecuteTime", "ExecuteReplicatedTime"]}
        counts = {name: float(sum((metrics.metric_data(kind) or (0,))[0] for kind in kinds)) for name, kinds in counted.items()}
        return {**self.memory_stats(device), **counts}

    # -- random state -------------------------------------------------------------------------------------------------

    def manual_seed(self, seed: int) -> None:
        """Seed the generators of all devices that this process sees. ``torch.manual_seed`` does not seed these generators."""
        import torch_xla
        import torch_xla.core.xla_model as xm

        for device in torch_xla.devices():
            xm.set_rng_state(seed % 2**63, device=str(device))

    def get_rng_state(self, device: torch.device) -> torch.Tensor:
        """Return the state of XLA's random number generator as a tensor of 8 bytes, which contain one integer.

        A random operation changes the state when it is traced, even if it has not run yet.
        """
        import torch
        import torch_xla.core.xla_model as xm

        return torch.tensor([xm.get_rng_state(device=str(device))], dtype=torch.uint64).view(torch.uint8)

    def set_rng_state(self, state: torch.Tensor, device: torch.device) -> None:
        import torch
        import torch_xla.core.xla_model as xm

        xm.set_rng_state(int(state.clone().view(torch.uint64).item()), device=str(device))

    # -- computation --------------------------------------------------------------------------------------------------

    def step_end(self) -> None:
        """Start the operations traced since the end of the last step, without waiting for them.

        XLA compiles the operations first, unless it has compiled the same operations before.
        """
        import torch_xla

        torch_xla.sync()

    def upload(self, batches: Iterator[list[torch.Tensor]], device: torch.device) -> Iterator[list[torch.Tensor]]:
        """Return an iterator over the batches on ``device``. Threads of torch_xla's ParallelLoader read and upload batches in advance."""
        from accelkit_builtin.accelerators.xla_loader import uploaded

        return uploaded(batches, device)

    def capabilities(self, device: torch.device | None = None) -> Capabilities:
        """Return the capabilities of XLA's device.

        XLA's CPU device computes in float64, emulates bfloat16 and has no memory statistics. All other devices compute in bfloat16, emulate
        float64 and have memory statistics.
        """
        if pjrt_device() != "CPU":
            return self.declared_capabilities.updated({"memory_statistics": "native"})
        return self.declared_capabilities.updated({"memory_statistics": "none", "dtype.bfloat16": "emulated", "dtype.float64": "native"})


def pjrt_device() -> str | None:
    """Return the kind of device that XLA drives on this machine, such as ``TPU``, or None if there is none.

    The result is the value of PJRT_DEVICE in upper case if it is set, else ``TPU`` if the machine has a TPU chip, else ``NEURON`` if the
    package libneuronxla is installed.
    """
    if named := os.environ.get(PJRT_DEVICE):
        return named.upper()
    if _num_chips():
        return "TPU"
    return "NEURON" if importlib.util.find_spec("libneuronxla") is not None else None


def _package() -> Availability:
    """Return whether torch_xla is usable.

    The status of the result is ``absent`` if torch_xla is not installed, and ``broken`` if torch_xla does not match the installed torch.
    torch_xla is linked against one minor version of torch.
    """
    hint = "pip install 'accelkit[xla]', and torch of the same minor version; on a TPU VM, pip install 'torch_xla[tpu]'"
    absent = Availability.absent("the package torch_xla is not installed", hint)
    if importlib.util.find_spec("torch_xla") is None:  # reading the metadata of all packages would take longer
        return absent
    try:
        xla_version = importlib.metadata.version("torch_xla")
    except importlib.metadata.PackageNotFoundError:
        return absent
    torch_version = importlib.metadata.version("torch")
    if _minor(xla_version) != _minor(torch_version):
        why = f"torch_xla {xla_version} needs torch {_minor(xla_version)}, but torch {torch_version} is installed"
        return Availability.broken(why, f"pip install torch=={_minor(xla_version)}.*")
    return Availability.usable()


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _num_chips() -> int:
    """Return the number of TPU chips on the PCI bus."""
    count = 0
    for vendor in Path("/sys/bus/pci/devices").glob("*/vendor"):
        if vendor.read_text().strip() == _GOOGLE and vendor.with_name("device").read_text().strip() in _CHIPS:
            count += 1
    return count


def _take_own_chip() -> None:
    """Limit this process to its own chip if it was started by torchrun or the command ``accelkit launch``.

    LOCAL_RANK and LOCAL_WORLD_SIZE select the chip. If torch_xla.launch started the process, this function does nothing, because
    torch_xla.launch itself limits each of its processes to one chip.
    """
    local_rank, local_size = os.environ.get("LOCAL_RANK", ""), os.environ.get("LOCAL_WORLD_SIZE", "")
    if local_rank.isdigit() and local_size.isdigit() and not os.environ.get("PJRT_LOCAL_PROCESS_COUNT"):
        from torch_xla._internal import pjrt

        pjrt.initialize_multiprocess(int(local_rank), int(local_size))
