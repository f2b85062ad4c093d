from __future__ import annotations

import pytest
from baking import Clean


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Clean:
    """One for all tests of a process: what a test installs, it uninstalls."""
    return Clean(tmp_path_factory.mktemp("clean"))
