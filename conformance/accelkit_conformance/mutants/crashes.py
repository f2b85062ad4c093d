"""Devices that end the process or hang."""

from __future__ import annotations

import atexit
import ctypes
import os
import time
from typing import Any

from accelkit_conformance.mutants import mutant
from accelkit_conformance.mutants.broken import Broken


@mutant("operators", "ends the process")
class Segfaults(Broken):
    """``topk`` of a 0-d tensor reads from address 0."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name == "topk" and args[0].ndim == 0:
            ctypes.string_at(0)
        return call()


@mutant("operators", "ends the process")
class Exits(Broken):
    """``topk`` exits the process."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name == "topk":
            os._exit(0)
        return call()


@mutant("operators", "ends the process")
class Hangs(Broken):
    """``topk`` never returns."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        while name == "topk":
            time.sleep(1)
        return call()


@mutant("errors", "invalid pivots", check="index_tensors_outside")
class CrashesOnInvalidPivots(Broken):
    """``linalg.lu_solve`` aborts if a pivot is 0 or negative, and does not check whether pivots are too large."""

    def fault(self, name: str, call: Any, args: Any, kwargs: Any, func: Any) -> Any:
        if name == "linalg_lu_solve" and int(args[1].min()) < 1:
            os.abort()
        return func(args[0], args[1].clamp(max=args[0].shape[-2]), *args[2:], **kwargs) if name == "linalg_lu_solve" else call()


@mutant("training", "aborts at exit")
class AbortsAtExit(Broken):
    """A process that has used the device aborts while Python shuts down."""

    def install(self) -> None:
        atexit.register(os.abort)
