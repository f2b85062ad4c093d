"""An error that a backward pass raises, such as an error from the server or from a hook, aborts the process. On torch's
own devices, the error is raised in the program."""

import subprocess
import sys

program = """
import rgpu, torch

x = torch.ones(5, device="rgpu", requires_grad=True) * 2
x.register_hook(lambda gradient: 1 / 0)
x.sum().backward()
"""
code = subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=False, stderr=subprocess.DEVNULL).returncode
if code < 0:
    raise SystemExit(f"the backward pass ended the process with signal {-code}")
