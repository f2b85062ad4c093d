{% set is_stand_in = cookiecutter.__torch_device == "torch:cpu" %}
{% set is_xla = cookiecutter.__device_type == "xla" %}
{% set library = {"cuda": "libcuda.so.1", "xpu": "libze_loader.so.1"}.get(cookiecutter.__device_type, "lib" ~ cookiecutter.__device_type ~ ".so") %}
"""{{ cookiecutter.vendor }}'s hardware as an accelerator of accelkit.

The comments show the defaults of optional methods and attributes. They can be deleted.
"""

from __future__ import annotations

{% if is_xla %}
import os
{% endif %}
from typing import {{ "TYPE_CHECKING, " if is_stand_in }}ClassVar

from accelkit import {{ "" if is_xla else "Accelerator, " }}Availability, Capabilities
{% if cookiecutter.__has_backend %}

from {{ cookiecutter.__package }}.build import DRIVER, LIBRARY
{% endif %}
{% if is_xla %}
from accelkit_builtin.accelerators.xla import XLAAccelerator
{% endif %}
{% if is_stand_in %}

if TYPE_CHECKING:
    import torch
{% endif %}
{% if cookiecutter.__torch_package == "torch" and not is_stand_in %}

LIBRARY = "{{ library }}"
"""The shared library that the driver installs and that every program opens to use the device."""
{% endif %}


class {{ cookiecutter.__class }}Accelerator({{ "XLAAccelerator" if is_xla else "Accelerator" }}):
    """{{ cookiecutter.vendor }}."""

{% if is_stand_in %}
    # torch's CPU stands in for the hardware. When torch has a device for the hardware, set device_type to the type of that device,
    # torch_package to the package that adds it and is_simulated to False, and delete device() below. Then write a probe that looks for
    # the driver.
    device_type = "cpu"
    is_simulated = True  # there is no hardware, so auto never selects it
{% elif is_xla %}
    # Everything else is accelkit's support for XLA: operations are traced, and run when a step ends.
    torch_package = "{{ cookiecutter.__torch_package }}"  # load() imports it, which adds the device to torch
{% elif cookiecutter.__torch_package == "torch" %}
    device_type = "{{ cookiecutter.__device_type }}"  # as in torch.device("{{ cookiecutter.__device_type }}", 0); a device of torch itself
{% else %}
    device_type = "{{ cookiecutter.__device_type }}"  # as in torch.device("{{ cookiecutter.__device_type }}", 0)
    torch_package = "{{ cookiecutter.__torch_package }}"  # load() imports it, which adds the device to torch
{% endif %}
{% if cookiecutter.__has_backend %}
    process_group_backend = "{{ cookiecutter.accelerator }}_ccl"
    compile_backend = "aot_eager"  # torch.compile without a code generator for the device
    is_simulated = DRIVER == "simulated"  # auto never selects a simulated device
{% endif %}
    # The conformance suite checks what is declared: capabilities that are declared native or emulated must work, and those
    # that are declared none must fail. The other capabilities are tried and reported.
    # Keys:
{% include "capability_keys.txt" %}
{% if cookiecutter.__has_backend %}
    declared_capabilities: ClassVar[Capabilities] = Capabilities.declare(
        native=[
            *("streams", "events", "pinned_memory", "memory_statistics", "memory_limit", "numbered_devices"),
            *("random_state", "generator_offset", "process_group", "compile", "subnormals", "deterministic", "profiler_memory"),
            *(f"dtype.{name}" for name in ("float64", "float32", "float16", "bfloat16", "complex64", "complex128", "bool")),
            *(f"dtype.{name}" for name in ("uint8", "int8", "int16", "int32", "int64")),
            *("autocast.float16", "autocast.bfloat16", "autocast_float32_list"),
        ],
        none=["graphs", "transformer_engine"],
    )
{% elif is_xla %}
    declared_capabilities: ClassVar[Capabilities] = XLAAccelerator.declared_capabilities.updated({"dtype.float32": "native"})
{% else %}
    declared_capabilities: ClassVar[Capabilities] = Capabilities.declare(native=["dtype.float32"], emulated=[], none=[])
{% endif %}

    @classmethod
    def probe(cls) -> Availability:
        """Return whether the hardware can be used on this machine, and if not, why and what would help.

        This must not import torch or create a driver context. ``absent`` (no board, no driver) is an ordinary state; ``broken`` means
        that the hardware is present but does not work. ``check()`` tests later whether the hardware computes.
        """
{% if is_stand_in %}
        # With hardware:
        # return Availability.from_library("lib{{ cookiecutter.accelerator }}.so", hint="install the driver of {{ cookiecutter.vendor }}")
        return Availability.usable("torch's CPU stands in for the hardware of {{ cookiecutter.vendor }}")

    def device(self, index: int) -> torch.device:
        """Return ``torch.device("cpu")``, which has no index in torch."""
        import torch

        return torch.device("cpu")
{% elif is_xla %}
        if not (answer := super().probe()).is_usable:
            return answer  # a package is missing or too old, or no device is configured
        return Availability.usable(f"XLA uses PJRT_DEVICE={os.environ.get('PJRT_DEVICE', 'TPU')}")
{% elif cookiecutter.__torch_package == "torch" %}
        return Availability.from_library(LIBRARY, hint="install the driver of {{ cookiecutter.vendor }}")
{% elif cookiecutter.__has_backend %}
        # With a driver, first:
        # if not (answer := Availability.from_library("lib{{ cookiecutter.accelerator }}.so", hint="install the driver")).is_usable:
        #     return answer
        if problem := LIBRARY.problem():
            return Availability.absent(*problem)
        return Availability.usable(f"the {DRIVER} driver")

    def build(self) -> None:
        """Compile the C++ library, if this was not done yet. Called before the device is loaded, outside the time limits of a probe."""
        LIBRARY.build()
{% else %}
        if not (answer := super().probe()).is_usable:
            return answer  # the package is not installed
        # With a driver:
        # return Availability.from_library("lib{{ cookiecutter.__device_type }}.so", hint="install {{ cookiecutter.vendor }}'s driver")
        return Availability.usable("{{ cookiecutter.__torch_package }} is installed")
{% endif %}

    # -- optional: uncomment what differs for this device; the code shows accelkit's default ----------------------------------
    #
{% include "accelerator_options.txt" %}
