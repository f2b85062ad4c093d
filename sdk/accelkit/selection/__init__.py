"""Selection of one accelerator from the user's request.

The module ``request`` is the entry point. It reads the request from an argument or an environment variable, or uses the name ``auto`` if
neither is given, and creates the Decision that explains the choice. The module ``by_name`` resolves a name and tries the plugin. The module
``auto`` chooses among several accelerators if the requested name is ``auto`` or an alias such as ``gpu``.
"""

from accelkit.selection.by_name import GENERIC, Loaded, load_named
from accelkit.selection.request import ACCELERATOR_VARIABLE, AUTO, DEVICES_VARIABLE, Devices, Selection, decide, resolve, select

__all__ = [
    "ACCELERATOR_VARIABLE", "AUTO", "DEVICES_VARIABLE", "GENERIC", "Devices", "Loaded", "Selection", "decide", "load_named", "resolve",
    "select",
]  # fmt: skip
