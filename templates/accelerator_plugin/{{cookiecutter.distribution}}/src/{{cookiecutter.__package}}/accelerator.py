{% set is_stand_in = cookiecutter.torch_device == "torch:cpu" %}
{% set is_xla = cookiecutter.__device_type == "xla" %}
{% set library = {"cuda": "libcuda.so.1", "xpu": "libze_loader.so.1"}.get(cookiecutter.__device_type, "lib" ~ cookiecutter.__device_type ~ ".so") %}
"""What accelkit needs to know of {{ cookiecutter.vendor }}'s hardware.

What stands in comments has that default, and need not be there.
"""

from __future__ import annotations

{% if is_xla %}
import os
{% endif %}
from typing import {{ "TYPE_CHECKING, " if is_stand_in }}ClassVar

from accelkit import {{ "" if is_xla else "Accelerator, " }}Availability, Capabilities
{% if is_xla %}
from accelkit_builtin.accelerators.xla import XLAAccelerator
{% endif %}
{% if is_stand_in %}

if TYPE_CHECKING:
    import torch
{% endif %}
{% if cookiecutter.__torch_package == "torch" and not is_stand_in %}

LIBRARY = "{{ library }}"
"""What the driver installs, and what every program on the device opens."""
{% endif %}


class {{ cookiecutter.__class }}Accelerator({{ "XLAAccelerator" if is_xla else "Accelerator" }}):
    """{{ cookiecutter.vendor }}."""

{% if is_stand_in %}
    # torch's CPU stands in for the hardware. When torch has a device of its own for it: its type here, the package that adds it in
    # torch_package, False in is_simulated, and no device() below. Then write a probe that looks for the driver.
    device_type = "cpu"
    is_simulated = True  # no hardware is behind it, so auto never takes it
{% elif is_xla %}
    # Everything else is accelkit's own for XLA: operations are traced, and run when a step ends.
    torch_package = "{{ cookiecutter.__torch_package }}"  # load() imports it, which adds the device to torch
{% elif cookiecutter.__torch_package == "torch" %}
    device_type = "{{ cookiecutter.__device_type }}"  # as in torch.device("{{ cookiecutter.__device_type }}", 0); torch has it itself
{% else %}
    device_type = "{{ cookiecutter.__device_type }}"  # as in torch.device("{{ cookiecutter.__device_type }}", 0)
    torch_package = "{{ cookiecutter.__torch_package }}"  # load() imports it, which adds the device to torch
{% endif %}
    # What is declared is held to by the conformance suite: native or emulated must work, none must not. The rest is tried and reported.
    # Keys:
{% include "capability_keys.txt" %}
{% if is_xla %}
    declared_capabilities: ClassVar[Capabilities] = XLAAccelerator.declared_capabilities.updated({"dtype.float32": "native"})
{% else %}
    declared_capabilities: ClassVar[Capabilities] = Capabilities.declare(native=["dtype.float32"], emulated=[], none=[])
{% endif %}

    @classmethod
    def probe(cls) -> Availability:
        """Whether the hardware can be used here; if not, why, and what would help. Imports no torch, and makes no driver context.

        ``absent`` is an ordinary state (no board, no driver); ``broken`` is there, and does not work. Whether it computes is asked later,
        by ``check()``.
        """
{% if is_stand_in %}
        # With hardware:
        # return Availability.from_library("lib{{ cookiecutter.accelerator }}.so", hint="install the driver of {{ cookiecutter.vendor }}")
        return Availability.usable("torch's CPU stands in for the hardware of {{ cookiecutter.vendor }}")

    def device(self, index: int) -> torch.device:
        """``torch.device("cpu")``: as torch names it, without an index."""
        import torch

        return torch.device("cpu")
{% elif is_xla %}
        if not (answer := super().probe()).is_usable:
            return answer  # a package is missing or too old, or no device is chosen
        return Availability.usable(f"XLA compiles for PJRT_DEVICE={os.environ.get('PJRT_DEVICE', 'TPU')}")
{% elif cookiecutter.__torch_package == "torch" %}
        return Availability.from_library(LIBRARY, hint="install the driver of {{ cookiecutter.vendor }}")
{% else %}
        if not (answer := super().probe()).is_usable:
            return answer  # the package is not installed
        # With a driver:
        # return Availability.from_library("lib{{ cookiecutter.__device_type }}.so", hint="install {{ cookiecutter.vendor }}'s driver")
        return Availability.usable("{{ cookiecutter.__torch_package }} is installed")
{% endif %}

    # -- optional: uncomment what this device does otherwise; the code is accelkit's default ----------------------------------
    #
{% include "accelerator_options.txt" %}
