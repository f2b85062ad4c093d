"""Configuration of all tests, in tests/ and in builtin_plugins/accelkit-fake-xpu/tests."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "tests"))
pytest_plugins = ["error_texts.plugin"]

# A shell starts background jobs with SIGINT ignored, and programs inherit this, so tests could not interrupt them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
