"""The C++ library of the device. This module does not import torch."""

from __future__ import annotations

from pathlib import Path

from accelkit import CppLibrary

LIBRARY = CppLibrary(
    "fake_xpu",
    Path(__file__).parent / "csrc",
    unity=[
        ["autocast.cpp", "operators.cpp", "layers.cpp", "memory.cpp"],
        ["collectives.cpp", "fallback.cpp", "hooks.cpp", "timer.cpp", "registration.cpp", "remaining_operators.cpp"],
        ["generator.cpp", "guard.cpp", "kernel.cpp", "memory_history.cpp", "pinned.cpp", "statistics.cpp", "streams.cpp"],
    ],
)
"""The library, which is compiled on first use. The compiled library is in the folder FAKE_XPU_CACHE_DIR if this variable is set, and
otherwise in ``accelkit-fake-xpu`` in the user's cache folder.
"""
