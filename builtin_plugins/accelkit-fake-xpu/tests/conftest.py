"""Fixtures. Tests use the device in pytest's process, unless they need a new process: to set environment variables, to fork or to crash."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import accelkit_fake_xpu.torch_backend  # noqa: F401 # adds the device to torch
import pytest
import torch

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give accelkit a temporary cache folder and unset the user's ACCELKIT_ variables, so that the tests do not depend on them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("ACCELKIT_")]:
            patch.delenv(name)
        patch.setenv("ACCELKIT_CACHE_DIR", str(tmp_path_factory.mktemp("accelkit")))
        yield


@pytest.fixture
def run() -> Run:
    """Return a function that runs Python code in a new process, with the fake XPU and the given additional environment variables.

    Warnings are errors in this process. Unless ``check=False`` is given, the process must exit with status 0.
    """

    def run(code: str, *, check: bool = True, **environ: str) -> subprocess.CompletedProcess[str]:
        program = "import torch\nimport accelkit_fake_xpu.torch_backend\n" + textwrap.dedent(code)
        ignored = ["-W", "ignore::DeprecationWarning", "-W", "ignore:pin_memory_device"]  # these warnings come from torch itself
        command = [sys.executable, "-W", "error", *ignored, "-c", program]
        result = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environ, timeout=120)
        assert not check or result.returncode == 0, result.stderr
        return result

    return run


@pytest.fixture
def device() -> torch.device:
    """Return the device that is not the current one, so that a test fails if it uses a wrong index."""
    assert torch.fake_xpu.current_device() == 0
    return torch.device("fake_xpu", 1)


def pytest_report_header() -> str:
    return f"fake_xpu: torch {torch.__version__}, memory is {'protected' if os.environ.get('FAKE_XPU_PROTECT') == '1' else 'open'}"
