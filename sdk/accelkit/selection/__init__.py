"""Selection of one accelerator from the user's request.

``request`` is the entry point. It determines what the user requested, by an argument, by a variable or not at all, and creates the Decision
that explains the choice. ``by_name`` resolves a name and tries the plugin. ``auto`` chooses among several accelerators, for the name
``auto`` and the aliases.
"""

from accelkit.selection.by_name import GENERIC, Loaded, load_named
from accelkit.selection.request import ACCELERATOR_VARIABLE, AUTO, DEVICES_VARIABLE, Devices, Selection, decide, resolve, select

__all__ = [
    "ACCELERATOR_VARIABLE", "AUTO", "DEVICES_VARIABLE", "GENERIC", "Devices", "Loaded", "Selection", "decide", "load_named", "resolve",
    "select",
]  # fmt: skip
