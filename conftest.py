"""What every folder of tests has: tests/ and builtin_plugins/accelkit-fake-xpu/tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "tests"))
pytest_plugins = ["error_texts.plugin"]
