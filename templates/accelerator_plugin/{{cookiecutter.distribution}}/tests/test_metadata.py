"""Tests of the metadata of the installed distribution, which accelkit reads before it imports anything."""

from __future__ import annotations

import importlib.metadata
import importlib.resources

import {{ cookiecutter.__package }}

DISTRIBUTION = importlib.metadata.distribution("{{ cookiecutter.distribution }}")


def test_every_entry_point_names_what_is_there() -> None:
    ours = [entry for entry in DISTRIBUTION.entry_points if entry.group.startswith("accelkit.")]
    assert ours
    for entry in ours:
        if entry.group == "accelkit.conformance":
            package, _, name = entry.value.partition(":")
            assert importlib.resources.files(package).joinpath(name).is_file()
        else:
            assert entry.load().__doc__


def test_it_says_which_accelkit_and_torch_it_needs() -> None:
    needs = DISTRIBUTION.requires or []
    assert any(need.startswith("accelkit>=") for need in needs)
    assert any(need.startswith("torch>=") for need in needs)


def test_it_is_typed_and_licensed() -> None:
    assert importlib.resources.files({{ cookiecutter.__package }}).joinpath("py.typed").is_file()
    assert DISTRIBUTION.metadata["License-Expression"] == "{{ cookiecutter.licence }}"
