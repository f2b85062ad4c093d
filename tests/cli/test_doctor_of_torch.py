"""``accelkit doctor`` imports torch in a child process, and says what is wrong with torch itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("torch", "reason", "hint"),
    [
        ("import os\nos.write(2, b'bad magic number\\n')\nos._exit(3)", "exit code 3: bad magic number", "reinstall torch"),
        ("raise OSError('libcudart.so.12: cannot open shared object file: No such file or directory')", "libcudart.so.12", ""),
    ],
)
def test_what_is_wrong_with_torch_is_said(plugin_site, torch, reason, hint):
    (plugin_site.folder / "torch.py").write_text(torch)
    command = [sys.executable, "-m", "accelkit", "doctor", "cpu", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert result.returncode == 1, result.stderr
    answer = json.loads(result.stdout)["checks"]["torch import"]
    assert answer["status"] == "broken"
    assert reason in answer["reason"]
    assert hint in answer["hint"]
    assert answer["hint"], "it says what to do"
