"""The pages of the command line have every command with every option."""

from __future__ import annotations

import re

import click
from command_reference import PAGE, generated, walk


def test_the_page_is_what_click_knows():
    assert PAGE.read_text("utf-8") == generated(), "run python tests/docs/command_reference.py"


def test_every_command_and_option_is_on_the_page():
    sections = dict(re.findall(r"^## (accelkit.*?)\n(.*?)(?=^## |\Z)", generated(), re.MULTILINE | re.DOTALL))
    commands = dict(walk())
    assert list(sections) == list(commands)
    assert {"accelkit list", "accelkit launch", "accelkit conformance run"} <= set(commands)
    for path, command in commands.items():
        options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
        assert all(f"`{name}`" in sections[path] for option in options for name in option.opts)
        assert all(option.help for option in options), f"an option of {path} has no help"


def test_the_guide_to_the_command_line_names_every_command():
    page = (PAGE.parents[1] / "cli.md").read_text("utf-8")
    for path, _ in walk():
        group, _, name = path.rpartition(" ")
        is_named = f"`{path}" in page or re.search(rf"`{group} [^`]*\b{name}\b[^`]*`", page)
        assert is_named or path in ("accelkit", "accelkit conformance"), f"docs/cli.md does not name {path}"
