"""The exceptions that accelkit raises. This module imports no other module of the project.

::

    AccelkitError                        exit code of the CLI
    ├── UsageError                       2  an argument or environment variable has a value that cannot be used
    │   ├── UnknownNameError             2  no plugin provides this name
    │   ├── UnknownAttributeError        2  accelkit or a Runtime has no attribute of this name (also an AttributeError)
    │   ├── UnknownArgumentError         2  Runtime has no argument of this name (also a TypeError)
    │   ├── DevicesError                 2  devices= names a device that does not exist
    │   └── ContradictionError           2  two arguments contradict each other
    ├── UnavailableError                 4  the requested device, or something else that is needed, cannot be used here
    │   └── AmbiguousError               4  'auto' found several accelerators; the user must choose one
    ├── PluginError                      3  the fault lies with a plugin
    │   ├── BrokenPluginError            3  it cannot be imported, probed or loaded, or its code raised an error or returned a wrong value
    │   ├── IncompatiblePluginError      3  the installed packages do not meet its requirements
    │   ├── DisabledPluginError          3  the allow or deny list excludes it
    │   ├── NameConflictError            3  two distributions claim the name
    │   └── HookError                    3  a hook implementation does not match its specification, or failed
    ├── PrepareError                     1  an object cannot be prepared or registered for checkpointing, or a batch cannot be split
    ├── UnsupportedError                 1  this device, precision or strategy does not support the request
    ├── CheckpointError                  1  a checkpoint cannot be saved or loaded
    ├── UntrustedFileError               1  another user could have written a file that would be trusted or executed
    ├── UnknownPlacementError            1  a value such as local_rank was requested before the processes joined the process group
    ├── CollectiveError                  1  the processes of a job did not take part in the same collective
    └── RankFailedError                  1  a process of the job failed
"""

from __future__ import annotations

import re
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
    "PluginError",
    "PrepareError",
    "RankFailedError",
    "UnavailableError",
    "UnknownArgumentError",
    "UnknownAttributeError",
    "UnknownNameError",
    "UnknownPlacementError",
    "UnsupportedError",
    "UntrustedFileError",
    "UsageError",
    "printable",
]


class AccelkitError(Exception):
    """Base class of accelkit's errors.

    The message has up to four parts: what happened, which plugin caused it, why, and what to do. The message omits ``plugin``, ``why`` and
    ``hint`` if they are empty.

    Args:
        what: What happened, in one sentence without a full stop.
        plugin: The plugin that caused the error, as ``dist==version``.
        why: The cause, for example the message of the original error.
        hint: What the user can do next, preferably a command.
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

    @property
    def parts(self) -> dict[str, str]:
        """The arguments of the constructor by name, to be written as JSON or sent to another process."""
        return {"what": self.what, "plugin": self.plugin, "why": self.why, "hint": self.hint}

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.parts)


def printable(text: str) -> str:
    """Return ``text`` with all unprintable characters except newlines escaped, so that text from outside cannot control a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str) -> str:
    """Return ``text`` as a single line: a space replaces each newline, and other control characters are escaped."""
    return printable(text.replace("\n", " "))


def message_in_one_line(error: BaseException) -> str:
    """Return the message of an error as a single line. In the message of an AccelkitError, semicolons separate the parts."""
    return " ".join(re.sub(r"\n  (?=(?:plugin|why|what to do): )", "; ", str(error)).split())


def shortened(text: str, length: int) -> str:
    """Return ``text``, truncated to ``length`` characters if it is longer.

    If the text is truncated, a remark that states the full length is appended.
    """
    return text if len(text) <= length else f"{text[:length]} … (cut: it has {len(text):,} characters)"


def _rebuild(cls: type[AccelkitError], parts: dict[str, str]) -> AccelkitError:
    return cls(**parts)


class UsageError(AccelkitError):
    """An argument or an environment variable has a value that cannot be used."""

    exit_code = 2


class UnknownNameError(UsageError):
    """No installed plugin of the requested kind has this name. The hint suggests, for example, a similar name or a package to install."""


class UnknownAttributeError(UsageError, AttributeError):
    """``accelkit`` or a ``Runtime`` has no attribute of this name.

    If another library has the attribute, the hint says what to use instead.
    """


class UnknownArgumentError(UsageError, TypeError):
    """``Runtime`` has no argument of this name. If another library has the argument, the hint says what to use instead."""


class DevicesError(UsageError):
    """``devices=`` is invalid or names a device that does not exist. The hint shows the accepted forms or the existing devices."""


class ContradictionError(UsageError):
    """Two arguments, settings or variables contradict each other."""


class UnavailableError(AccelkitError):
    """The requested device, or something else that the program needs (such as a package), cannot be used on this machine."""

    exit_code = 4


class AmbiguousError(UnavailableError):
    """``auto`` or an alias such as ``gpu`` found several usable accelerators. The hint says how to select one."""


class PluginError(AccelkitError):
    """A plugin cannot be used, and the machine is not the cause."""

    exit_code = 3


class BrokenPluginError(PluginError):
    """A plugin cannot be imported, probed or loaded, or its code raised an unexpected error or returned an invalid value."""


class IncompatiblePluginError(PluginError):
    """The installed packages (accelkit, torch) do not meet the plugin's requirements."""


class DisabledPluginError(PluginError):
    """ACCELKIT_PLUGINS or ACCELKIT_DISABLE_PLUGINS excludes the plugin."""


class NameConflictError(PluginError):
    """Two distributions claim the same name, or a third party claims a reserved name."""


class HookError(PluginError):
    """A hook implementation does not match its specification, or failed when it was called."""


class PrepareError(AccelkitError):
    """``prepare`` was given an object that it cannot prepare, or an optimizer with a parameter that belongs to no prepared module.

    Also raised if the arguments of ``prepare`` do not match the objects, if a prepared loader cannot split a batch among the processes, if
    an object without ``state_dict`` or ``load_state_dict`` is registered for checkpointing, or if ``gradient_accumulation_steps`` is less
    than 1.
    """


class UnsupportedError(AccelkitError):
    """The selected device or plugin, a bridge, or the installed version of a package does not support the request."""


class CheckpointError(AccelkitError):
    """A checkpoint cannot be saved, is missing or damaged, has an unknown format, or does not match the objects that were prepared."""


class UnknownPlacementError(AccelkitError):
    """A value such as ``local_rank`` or ``num_nodes`` was requested before the processes of the job joined the process group.

    The value depends on which processes run on which machine. No environment variable gives the value, so the processes work it out when
    they join the process group.
    """


class UntrustedFileError(AccelkitError):
    """A file or folder that must be private to this user belongs to another user, or other users may write to it."""


class CollectiveError(AccelkitError):
    """The processes did not take part in the same collective.

    For example, a process did not call the collective, called a different collective, passed data of a different structure, dtype or shape,
    or failed while the other processes waited for it. The error names the ranks if they are known. Also raised if a received object is not
    signed with the secret of the job.
    """


class RankFailedError(AccelkitError):
    """A process of the job failed.

    The text has the traceback of the process that failed first or, if it raised no exception, the end of its standard error. The text also
    says how each process ended.
    """


_OUT_OF_MEMORY = re.compile("out[ _]of[ _]((device|host|gpu)[ _])?memory", re.IGNORECASE)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, on the device or on the host."""
    return isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(str(error)) is not None
