"""The folder in which the answers of plugins are cached."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest

from accelkit.cli import doctor
from accelkit.discovery.verdict_cache import cache_folder
from accelkit.types import Availability


@pytest.fixture(autouse=True)
def without_a_chosen_folder(monkeypatch):
    monkeypatch.delenv("ACCELKIT_CACHE_DIR")  # set for all tests


def test_it_is_in_the_users_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    above = tmp_path if sys.platform == "linux" else Path.home()
    assert cache_folder().is_relative_to(above)
    assert "accelkit" in cache_folder().parts


def test_it_is_the_chosen_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("ACCELKIT_CACHE_DIR", str(tmp_path))
    assert cache_folder() == tmp_path


@pytest.mark.parametrize("home", ["", "nowhere"])
def test_it_is_never_in_the_current_folder(monkeypatch, tmp_path, home):
    """If HOME is wrong, platformdirs asks the system for the user's home folder, or gives up, or (4.0) returns a relative path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", home)
    try:
        folder = cache_folder()
    except RuntimeError:
        return
    assert folder.is_absolute()
    assert not folder.is_relative_to(tmp_path)


def test_doctor_notices_a_folder_into_which_nothing_can_be_written(monkeypatch, tmp_path):
    monkeypatch.setenv("ACCELKIT_CACHE_DIR", str(tmp_path))
    assert doctor._cache() == Availability.usable(str(tmp_path))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # as on a full disk, files can be created, but not written
    try:
        answer = doctor._cache()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert answer.status == "broken"
    assert "no file can be written into the cache folder" in answer.reason
    assert "ACCELKIT_CACHE_DIR" in answer.hint
    assert not list(tmp_path.iterdir())
