"""Everything that accelkit raises on purpose. This module imports nothing of the project.

::

    AccelkitError                        exit code of the CLI
    ├── UsageError                       2  an argument or variable has a value that cannot be used
    │   ├── UnknownNameError             2  nobody offers this name
    │   ├── DevicesError                 2  devices= names what does not exist
    │   └── ContradictionError           2  two arguments cannot both be right
    ├── UnavailableError                 4  the device asked for cannot be used here
    │   └── AmbiguousError               4  'auto' found several; the user must say which
    ├── PluginError                      3  the fault is a plugin's
    │   ├── BrokenPluginError            3  it failed to import, probe, load or check
    │   ├── IncompatiblePluginError      3  its requirements are not met by what is installed
    │   ├── DisabledPluginError          3  the allow or deny list excludes it
    │   ├── NameConflictError            3  two distributions claim the name
    │   └── HookError                    3  a hook implementation does not match its specification
    ├── PrepareError                     1  prepare() was given what it cannot prepare
    ├── UnsupportedError                 1  this device, precision or strategy cannot do that
    ├── CheckpointError                  1  a checkpoint cannot be saved, or cannot be loaded
    ├── NotPrivateError                  1  somebody else could have written a file that would be believed, or run
    ├── NotJoinedError                   1  what processes tell each other when they join was asked for before
    └── CollectiveError                  1  the processes of a job did not do the same thing together
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "AccelkitError",
    "AmbiguousError",
    "BrokenPluginError",
    "CheckpointError",
    "CollectiveError",
    "ContradictionError",
    "DevicesError",
    "DisabledPluginError",
    "HookError",
    "IncompatiblePluginError",
    "NameConflictError",
    "NotJoinedError",
    "NotPrivateError",
    "PluginError",
    "PrepareError",
    "RankFailedError",
    "UnavailableError",
    "UnknownNameError",
    "UnsupportedError",
    "UsageError",
    "printable",
]


class AccelkitError(Exception):
    """The root. Its text has up to four parts: what happened, whose fault, why, and what to do.

    Args:
        what: One sentence, no full stop needed.
        plugin: The plugin concerned, as ``dist==version``.
        why: The cause, in the words of whoever failed.
        hint: What the reader can do next, preferably a command.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, plugin: str = "", why: str = "", hint: str = "") -> None:
        self.what, self.plugin, self.why, self.hint = what, plugin, why, hint
        super().__init__(what, plugin, why, hint)

    def __str__(self) -> str:
        lines = [self.what]
        lines += [f"  plugin: {self.plugin}"] if self.plugin else []
        lines += [f"  why: {self.why}"] if self.why else []
        lines += [f"  what to do: {self.hint}"] if self.hint else []
        return printable("\n".join(lines))

    def __reduce__(self) -> tuple[object, ...]:
        parts = {"plugin": self.plugin, "why": self.why, "hint": self.hint}
        return _rebuild, (type(self), self.what, parts)


def printable(text: str) -> str:
    """``text`` with control characters escaped, so that names and messages from outside cannot steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str) -> str:
    """``printable`` text, of which no part can pass for another line."""
    return printable(text.replace("\n", " "))


def shortened(text: str, length: int) -> str:
    """``text``, cut with a remark if it has more than ``length`` characters."""
    return text if len(text) <= length else f"{text[:length]} … (cut: it has {len(text):,} characters)"


def _rebuild(cls: type[AccelkitError], what: str, parts: dict[str, str]) -> AccelkitError:
    return cls(what, **parts)


class UsageError(AccelkitError):
    """An argument or an environment variable has a value that cannot be used."""

    exit_code = 2


class UnknownNameError(UsageError):
    """Nobody offers this name. The hint suggests a near name or the package that would offer it."""


class DevicesError(UsageError):
    """``devices=`` asks for what does not exist. The text shows what does."""


class ContradictionError(UsageError):
    """Two arguments cannot both be right."""


class UnavailableError(AccelkitError):
    """The device asked for cannot be used on this machine."""

    exit_code = 4


class AmbiguousError(UnavailableError):
    """``auto`` found several usable accelerators, and nothing says which one is meant."""


class PluginError(AccelkitError):
    """A plugin cannot be used, and the fault is not the machine's."""

    exit_code = 3


class BrokenPluginError(PluginError):
    """A plugin failed to import, to answer its probe, to load or to compute."""


class IncompatiblePluginError(PluginError):
    """What the plugin requires (accelkit, torch) is not what is installed."""


class DisabledPluginError(PluginError):
    """ACCELKIT_PLUGINS or ACCELKIT_DISABLE_PLUGINS excludes the plugin."""


class NameConflictError(PluginError):
    """Two distributions claim one name, or a third party claims a name that is reserved."""


class HookError(PluginError):
    """A hook implementation does not match its specification, or failed when it was called."""


class PrepareError(AccelkitError):
    """``prepare`` was given an object that it cannot prepare, or an optimizer of foreign parameters."""


class UnsupportedError(AccelkitError):
    """This device, precision or strategy cannot do what was asked."""


class CheckpointError(AccelkitError):
    """A checkpoint cannot be saved, is damaged, is missing, or was made by something else."""


class NotJoinedError(AccelkitError):
    """What no variable says, and processes tell each other when they join, was asked for before: which process is on which machine."""


class NotPrivateError(AccelkitError):
    """A file or folder that must be this user's alone belongs to somebody else, or others may write it."""


class CollectiveError(AccelkitError):
    """Processes did not do the same thing together: one did not come, called something else, or gave data of another shape.

    The text names their ranks.
    """


class RankFailedError(AccelkitError):
    """A process of the job failed. The text names the one that failed first, with its own traceback, and how the others ended."""
