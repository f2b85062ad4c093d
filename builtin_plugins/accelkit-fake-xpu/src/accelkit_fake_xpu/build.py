"""The C++ library of the device. This module does not import torch."""

from __future__ import annotations

from pathlib import Path

from accelkit import CppLibrary

LIBRARY = CppLibrary("fake_xpu", Path(__file__).parent / "csrc")
"""Compiled on first use into ``accelkit-fake-xpu`` in the user's cache folder, or into FAKE_XPU_CACHE_DIR."""
