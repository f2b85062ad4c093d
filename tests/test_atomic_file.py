"""Files that are replaced as a whole, and what must not be replaced."""

from __future__ import annotations

import os

import pytest

from accelkit.atomic_file import output_file


def test_a_file_is_replaced_only_if_the_block_ends_without_an_error(tmp_path):
    path = tmp_path / "report"
    for content in ("old", "new"):
        with output_file(path) as target:
            assert target != path
            target.write_text(content)

    def fail():
        with output_file(path) as target:
            target.write_text("broken")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["report"]


def test_a_device_is_written_and_not_replaced(tmp_path):
    path = tmp_path / "device"
    path.symlink_to(os.devnull)
    with output_file(path) as target:
        target.write_text("report")
    assert path.is_symlink()
    assert path.read_text() == ""


def test_a_link_to_a_file_is_written_and_not_replaced(tmp_path):
    """As root, a report for /dev/stdout would replace /dev/stdout if the output of the program goes to a file."""
    content, path = tmp_path / "content", tmp_path / "link"
    content.write_text("old")
    path.symlink_to(content)
    with output_file(path) as target:
        target.write_text("new")
    assert path.is_symlink()
    assert content.read_text() == "new"
