"""Configuration of all tests, in tests/ and in builtin_plugins/accelkit-fake-xpu/tests."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "tests"))
pytest_plugins = ["error_texts.plugin"]

# A shell starts background jobs with SIGINT ignored, and programs inherit this, so tests could not interrupt them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Each worker of pytest-xdist, and each process that it starts, gets one core. OpenMP's threads wait for each other in busy loops, so more
# threads than cores are slow: two trainings at once on two cores took 46 s with one thread each, and 325 s with two.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
