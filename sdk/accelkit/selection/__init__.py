"""Selection of one accelerator from what the user asked for.

``request`` is the entry: it finds out what was asked for (an argument, a variable or nothing) and makes the Decision that explains the
choice. A name is then resolved and tried in ``by_name``; ``auto`` and the aliases choose among several accelerators in ``auto``.
"""

from accelkit.selection.by_name import GENERIC, Loaded, load_named
from accelkit.selection.request import ACCELERATOR_VARIABLE, AUTO, DEVICES_VARIABLE, Devices, Selection, decide, resolve, select

__all__ = [
    "ACCELERATOR_VARIABLE", "AUTO", "DEVICES_VARIABLE", "GENERIC", "Devices", "Loaded", "Selection", "decide", "load_named", "resolve",
    "select",
]  # fmt: skip
