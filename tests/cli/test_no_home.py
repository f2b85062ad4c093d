"""Commands run by a user for whom platformdirs finds no home folder, such as a service in a container."""

from __future__ import annotations

import json

import platformdirs
import pytest
from command_runner import command_runner

from accelkit.cli import main


@pytest.fixture(autouse=True)
def no_home(monkeypatch):
    def user_cache_path(*arguments, **options):
        raise RuntimeError("could not determine the home directory")

    monkeypatch.delenv("ACCELKIT_CACHE_DIR", raising=False)
    monkeypatch.setattr(platformdirs, "user_cache_path", user_cache_path)


def test_env_shows_no_cache_folder():
    result = command_runner().invoke(main, ["env", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["cache"] == ""


def test_doctor_says_what_to_set():
    result = command_runner().invoke(main, ["doctor", "cpu"])
    assert not isinstance(result.exception, RuntimeError), result.output
    assert "could not determine the home directory" in result.stdout
    assert "ACCELKIT_CACHE_DIR" in result.output


def test_list_works():
    result = command_runner().invoke(main, ["list", "--kind", "precision"])
    assert result.exit_code == 0, result.output
