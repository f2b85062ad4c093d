from __future__ import annotations

import os

import pytest
from baking import Clean


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Clean:
    """One for all tests of a process: what a test installs, it uninstalls. All processes share mypy's cache."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return Clean(tmp_path_factory.mktemp("clean"), shared / "mypy")
