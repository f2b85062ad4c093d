"""The C++ library of the device, which is compiled when it is first used. This module does not import torch."""

from __future__ import annotations

import os
from pathlib import Path

from accelkit import CppLibrary

SOURCES = {
    "simulated": ["driver_simulated.cpp", "simulated_kernels.cpp"],
    "{{ cookiecutter.accelerator }}": ["driver_{{ cookiecutter.accelerator }}.cpp"],
}
"""The drivers, each with the files of csrc/ that only this driver uses. "simulated" needs no hardware."""

DRIVER = os.environ.get("{{ cookiecutter.accelerator.upper() }}_DRIVER", "simulated")
"""The driver that is compiled. The variable {{ cookiecutter.accelerator.upper() }}_DRIVER overrides the default."""

if DRIVER not in SOURCES:
    raise ValueError(f"{{ cookiecutter.accelerator.upper() }}_DRIVER is {DRIVER!r}, which is not one of {', '.join(SOURCES)}")

LIBRARY = CppLibrary(
    "{{ cookiecutter.accelerator }}",
    Path(__file__).parent / "csrc",
    exclude=[file for driver, files in SOURCES.items() if driver != DRIVER for file in files],
    flags=[],  # for example -I with the folder of the driver's header; {{ cookiecutter.accelerator.upper() }}_CXXFLAGS adds others
    links=[],  # for example -l{{ cookiecutter.accelerator }}, the driver's own library
    unity=[  # files that are compiled together, because compiling the headers that they share takes most of the time
        ["autocast.cpp", "operators.cpp", "layers.cpp", "copies.cpp"],
        ["collectives.cpp", "fallback.cpp", "hooks.cpp", "timer.cpp", "remaining_operators.cpp"],
        ["generator.cpp", "guard.cpp", "memory.cpp", "pinned.cpp", "statistics.cpp", "streams.cpp"],
    ],
)
