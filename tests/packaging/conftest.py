from __future__ import annotations

from pathlib import Path

import pytest
from installing import PROJECTS, build


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By project, a folder with its sdist and the wheel that was built from that."""
    return {name: build(source, tmp_path_factory.mktemp(name)) for name, source in PROJECTS.items()}
