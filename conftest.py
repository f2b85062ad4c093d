"""What every folder of tests has: tests/ and builtin_plugins/accelkit-fake-xpu/tests."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "tests"))
pytest_plugins = ["error_texts.plugin"]

# A shell starts a background job with SIGINT ignored, and programs inherit that: those that tests interrupt would run on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
