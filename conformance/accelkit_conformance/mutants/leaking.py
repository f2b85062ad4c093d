"""A plugin whose import changes the environment and starts a thread."""

from __future__ import annotations

import os
import threading
import time

from accelkit_conformance.mutants.broken import Broken

os.environ["BROKEN_VENDOR_HOME"] = "here"
threading.Thread(target=time.sleep, args=(1000,), daemon=True, name="vendor").start()


class LeaksAtImport(Broken):
    """Importing the plugin changes the environment and starts a thread."""
