"""Entry point of each process of a job. It runs the user's program and, if the program fails, records the error and the time of the error.

``accelkit launch`` runs this file by its path. This file imports only the standard library until the program has ended, so
that nothing interferes with the user's program.
"""

from __future__ import annotations

import atexit
import faulthandler
import importlib.machinery
import io
import json
import os
import runpy
import signal
import sys
import time
import traceback
import types
import zipfile
from types import TracebackType
from typing import Any

_INTERRUPTED = 128 + signal.SIGINT
_MOST_CAUSES = 20
_OWN_CODE = (os.path.dirname(__file__), runpy.__file__, "<frozen runpy>")


def write_error(path: str, error: BaseException, trace: TracebackType | None, exit_code: int) -> None:
    """Write the error that ended this process to a JSON file.

    The keys are ``time`` (in seconds since the epoch), ``error``, ``causes``, ``traceback`` and ``exit_code``.

    This function also sets ``sys.last_type``, ``sys.last_value`` and ``sys.last_traceback``, as Python does for an uncaught exception, so
    that ``atexit`` functions can detect the error.
    """
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    causes: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(causes) < _MOST_CAUSES:
        causes.append(f"{type(cause).__name__}: {cause}")
        cause = cause.__cause__ or cause.__context__
    record = {
        "time": time.time(),
        "error": causes[0],
        "causes": causes[1:],
        "traceback": "".join(traceback.format_exception(type(error), error, trace)),
        "exit_code": exit_code,
    }
    try:
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(record, file)
        os.replace(f"{path}.new", path)
    except OSError as problem:
        sys.stderr.write(f"accelkit: the error could not be written to {path}: {problem}\n")


def without_launcher(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of the traceback that starts at the program's first frame, or None if the traceback has no such frame."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN_CODE):
        trace = trace.tb_next
    return trace


def _main(error_file: str, kind: str, program: str, *arguments: str) -> None:
    """Run ``program`` with ``arguments`` as Python itself would. If an error ends the program, write the error to ``error_file``.

    ``kind`` is ``script`` or ``module``.
    """
    own = os.getpid()
    faulthandler.enable()
    atexit.register(_leave_process_group)  # registered first, so it is called last
    try:
        _run(kind, program, list(arguments))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if code and os.getpid() == own:
            write_error(error_file, error, without_launcher(error.__traceback__), code)
        raise
    except BaseException as error:
        trace = without_launcher(error.__traceback__)
        code = _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
        if os.getpid() == own:  # not in a process that the program forked
            write_error(error_file, error, trace, code)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(code)


def _leave_process_group() -> None:
    """Destroy the process group, and then wait until torch's threads are idle.

    If the program has failed, the process group is not destroyed. Other ranks may be waiting in a collective, and destroying the group
    could then hang.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return
    if not hasattr(sys, "last_type") and distributed.is_initialized():
        distributed.destroy_process_group()
    from accelkit import thread_shutdown  # imported only now, when it cannot disturb the program

    thread_shutdown.wait_for_torch_threads()


def _run(kind: str, program: str, arguments: list[str]) -> None:
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    sys.argv[:] = [program, *arguments]
    if kind == "module":
        if not sys.flags.safe_path:
            sys.path[0] = os.getcwd()
        run_module: Any = runpy._run_module_as_main  # type: ignore[attr-defined] # what `python -m` calls
        run_module(program)
        return
    if os.path.isdir(program) or zipfile.is_zipfile(program):
        if not sys.flags.safe_path:
            del sys.path[0]
        runpy.run_path(program, run_name="__main__")
        return
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(program))
    with io.open_code(os.path.abspath(program)) as file:
        code = compile(file.read(), program, "exec", dont_inherit=True)
    loader = importlib.machinery.SourceFileLoader("__main__", program)
    main.__dict__.update(__file__=program, __loader__=loader, __builtins__=__builtins__, __annotations__={}, __cached__=None)
    exec(code, main.__dict__)  # noqa: S102 # the user's program, as python PROGRAM runs it


if __name__ == "__main__":
    _main(*sys.argv[1:])
