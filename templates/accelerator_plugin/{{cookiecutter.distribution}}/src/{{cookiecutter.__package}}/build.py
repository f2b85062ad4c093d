"""The C++ library of the device, which is compiled when it is first used. This module does not import torch."""

from __future__ import annotations

from pathlib import Path

from accelkit import CppLibrary

DRIVER = "simulated"
"""The driver that is compiled: "simulated", which needs no hardware, or "{{ cookiecutter.accelerator }}"."""

_OTHERS = {
    "simulated": ["driver_{{ cookiecutter.accelerator }}.cpp"],
    "{{ cookiecutter.accelerator }}": ["driver_simulated.cpp", "simulated_kernels.cpp"],
}

LIBRARY = CppLibrary(
    "{{ cookiecutter.accelerator }}",
    Path(__file__).parent / "csrc",
    exclude=_OTHERS[DRIVER],
    flags=[],  # for example -I with the folder of the driver's header, or -O0 -g -fsanitize=address
    links=[],  # for example -l{{ cookiecutter.accelerator }}, the driver's own library
)
