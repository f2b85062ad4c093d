"""Lines of text on the pages of the documentation wrap at 100 columns, but for tables, code and what cannot be broken."""

from __future__ import annotations

import re

import pytest
from pages import ROOT, tracked_pages

WIDTH = 100
GENERATED = {"docs/reference/commands.md", "docs/support-matrix.md"}
_NOT_TEXT = re.compile(r"^ {0,3}(```+|~~~+).*?^ {0,3}\1\s*$|<!--.*?-->", re.DOTALL | re.MULTILINE)
_UNBREAKABLE = re.compile(r"`[^`\n]*`|!?\[[^\]\n]*\]\([^)\n]*\)")


def wide_lines(text: str) -> list[str]:
    lines = _NOT_TEXT.sub(lambda match: "\n" * match[0].count("\n"), text).splitlines()
    wide = [line for line in lines if len(line) > WIDTH and not line.lstrip().startswith(("|", "#"))]
    return [line for line in wide if " " in _UNBREAKABLE.sub("x", line).strip()[2:]]


def test_a_wide_line_is_found_and_a_table_is_not():
    assert wide_lines("word " * 30 + "\n| " + "word " * 30) == ["word " * 30]


@pytest.mark.parametrize("path", [path for path in tracked_pages() if path.startswith("docs/") and path not in GENERATED])
def test_the_lines_of_a_page_are_not_wide(path):
    assert wide_lines((ROOT / path).read_text("utf-8")) == []
