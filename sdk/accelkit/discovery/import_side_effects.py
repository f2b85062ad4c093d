"""Detection of side effects of importing a plugin. The import alone must not change anything outside the plugin."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping
from typing import Any


class Footprint:
    """A snapshot of the process's state before an import. ``changes()`` returns what has changed since then.

    The snapshot covers environment variables, threads, signal handlers, the working directory, and the functions and classes of torch.
    Replaced functions and classes count as changes, unless the replacement is torch's own. Added functions and classes do not count,
    because registering a device adds some.
    """

    def __init__(self) -> None:
        self._environ = dict(os.environ)
        self._threads = set(threading.enumerate())
        self._handlers = _handlers()
        self._folder = os.getcwd()
        self._torch = _torch_callables()

    def changes(self) -> list[str]:
        """Return the changes since the snapshot, one phrase for each kind of change. The list is empty if nothing changed."""
        found = []
        names = sorted(name for name in self._environ.keys() | os.environ.keys() if self._is_changed(name))
        if names:
            found.append(f"changed os.environ ({', '.join(names)})")
        if threads := [thread.name for thread in threading.enumerate() if thread not in self._threads]:
            found.append(f"left a thread running ({', '.join(threads)})")
        if signals := [name for name, handler in _handlers().items() if self._handlers.get(name) is not handler]:
            found.append(f"changed signal handlers ({', '.join(signals)})")
        if os.getcwd() != self._folder:
            found.append("changed the working directory")
        now = _torch_callables()
        replaced = [name for name, thing in self._torch.items() if name in now and now[name] is not thing and not _is_torchs_own(now[name])]
        if replaced:
            more = f" and {len(replaced) - 3} more" if len(replaced) > 3 else ""
            found.append(f"replaced {', '.join(replaced[:3])}{more}")
        return found

    def _is_changed(self, name: str) -> bool:
        """Return whether an environment variable has changed since the snapshot.

        Variables whose names begin with ``TORCHINDUCTOR_`` are ignored, because torch's compiler sets such variables itself.
        """
        return self._environ.get(name) != os.environ.get(name) and not name.startswith("TORCHINDUCTOR_")


def _handlers() -> dict[str, Any]:
    return {number.name: signal.getsignal(number) for number in signal.valid_signals() if isinstance(number, signal.Signals)}


def _is_torchs_own(thing: object) -> bool:
    """Return whether the code of ``thing`` is in torch.

    torch replaces some of its own functions when further modules of torch are imported. Such replacements do not count as changes that the
    plugin makes. The module that defines ``thing`` is read from ``__globals__`` if possible, because ``functools.wraps`` copies
    ``__module__`` from the wrapped function.
    """
    home = getattr(thing, "__globals__", {}).get("__name__") or getattr(thing, "__module__", None) or type(thing).__module__
    return str(home).partition(".")[0] == "torch"


def _torch_callables() -> Mapping[str, object]:
    """Return the functions and classes in the imported modules of torch, and the methods of Tensor and Module, by qualified name.

    Names that begin with two underscores are left out. Empty if torch is not imported.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    spaces = {name: getattr(module, "__dict__", {}) for name, module in list(sys.modules.items()) if name.partition(".")[0] == "torch"}
    for name, cls in (("torch.Tensor", torch.Tensor), ("torch.nn.Module", torch.nn.Module)):
        # Inherited methods are included: a plugin that assigns to Tensor.to, which Tensor inherits, replaces a method and adds none.
        spaces[name] = {key: thing for base in reversed(cls.__mro__) for key, thing in vars(base).items()}
    return {
        f"{space}.{name}": thing
        for space, members in spaces.items()
        for name, thing in list(members.items())
        if callable(thing) and not name.startswith("__")
    }
