"""Run a script as on a machine of this name: ``on_machine.py NAME SCRIPT [ARGUMENT ...]``. This process gets a UTS namespace of its own."""

from __future__ import annotations

import ctypes
import os
import runpy
import socket
import sys

CLONE_NEWUTS, CLONE_NEWUSER = 0x04000000, 0x10000000  # unshare(2)

name, script, *arguments = sys.argv[1:]
if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUTS | (0 if os.geteuid() == 0 else CLONE_NEWUSER)):
    raise OSError(ctypes.get_errno(), f"no namespace for another host name: {os.strerror(ctypes.get_errno())}")
socket.sethostname(name)
sys.argv, sys.path[0] = [script, *arguments], os.path.dirname(script)
runpy.run_path(script, run_name="__main__")
