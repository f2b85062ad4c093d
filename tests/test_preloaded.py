"""Programs whose processes are forked behave as those of a real interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import preloaded
import psutil
import pytest

SLEEPS = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
"""A program that writes its pid and does not end."""


@pytest.fixture
def shell(tmp_path):
    """Runs a command in which ``python`` and ``accelkit`` are forked."""
    path = f"{preloaded.programs()}{os.pathsep}{os.environ['PATH']}"
    environ = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"}

    def run(command, **variables):
        return subprocess.run(command, shell=True, cwd=tmp_path, env=environ | variables, capture_output=True, text=True, check=False)

    return run


def test_torch_is_not_imported_until_the_program_imports_it(shell):
    program = "import sys; before = 'torch' in sys.modules; import accelkit.runtime; print(before, 'torch' in sys.modules)"
    assert shell(f'python -c "{program}"').stdout == "False True\n"


@pytest.mark.parametrize(("autoload", "is_there"), [("1", "True"), ("0", "False")])
def test_torch_imports_its_backends_with_the_programs_environment(shell, plugin_site, autoload, is_there):
    plugin_site.install("some-backend", "def load(): pass", entry_points="[torch.backends]\nsome_backend = some_backend:load")
    program = "import sys, torch; print('some_backend' in sys.modules)"
    result = shell(f'python -c "{program}"', PYTHONPATH=str(plugin_site.folder), TORCH_DEVICE_BACKEND_AUTOLOAD=autoload)
    assert result.stdout == f"{is_there}\n", result.stderr


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        ("python -c 'import sys; sys.exit(3)'", 3, ""),
        ("python -c 'import sys; sys.exit(\"no\")'", 1, "no\n"),
        ("python -c '1 / 0'", 1, "ZeroDivisionError: division by zero\n"),
        ("python -c 'import os; os.abort()'", 128 + signal.SIGABRT, ""),
        ('python -c \'import atexit; atexit.register(print, "last"); print("first")\'', 0, "first\nlast\n"),
        ("echo text | python -c 'print(input())'", 0, "text\n"),
        ("echo 'print(1)' | python", 0, "1\n"),
        (f"python -c '{SLEEPS}' > pid & until [ -s pid ]; do sleep 0.05; done; kill $!; wait $!", 128 + signal.SIGTERM, ""),
    ],
)
def test_a_program_ends_as_in_a_real_interpreter(shell, command, code, text):
    result = shell(f"{command}; exit $?")
    assert result.returncode == code, result.stderr
    assert (result.stdout + result.stderr).endswith(text)


def test_arguments_and_the_search_path(shell, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "program.py").write_text("import sys; print(sys.path[0], sys.argv[1:], __name__, __file__)")
    folder = os.path.realpath(tmp_path / "folder")
    assert shell("python folder/program.py -a b").stdout == f"{folder} ['-a', 'b'] __main__ {tmp_path / 'folder' / 'program.py'}\n"
    assert shell("cd folder && python -m program -a b").stdout.startswith(f"{folder} ['-a', 'b'] __main__ ")
    assert "No module named" in shell("cd folder && python -P -m program").stderr


def test_what_the_server_cannot_read_again_gets_a_real_interpreter(shell):
    """Processes that a program starts are forked too, and therefore have the same ``sys.executable``."""
    show = "python -c 'import sys; print(sys.executable)'"
    assert shell(show).stdout == f"{preloaded.programs() / 'python'}\n"
    assert shell(show, PYTORCH_NVML_BASED_CUDA_CHECK="1", CUDA_DEVICE_ORDER="PCI_BUS_ID").stdout == f"{preloaded.programs() / 'python'}\n"
    assert shell(show, PYTHONHASHSEED="1").stdout == f"{sys.executable}\n"
    assert shell(show.replace("-c", "-X dev -c")).stdout == f"{sys.executable}\n"


def test_a_program_does_not_outlive_the_one_that_stands_for_it(shell, tmp_path):
    result = shell(f"python -c '{SLEEPS}' > pid & until [ -s pid ]; do sleep 0.05; done; kill -9 $!; cat pid")
    pid = int(result.stdout)
    while psutil.pid_exists(pid):
        time.sleep(0.05)
