"""Every link of every page leads somewhere: a file, a heading in it, or an address that is well-formed (nothing is fetched)."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parents[2]
PAGES = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
_FENCED = re.compile(r"^ {0,3}(```+|~~~+).*?^ {0,3}\1\s*$|<!--.*?-->", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)\)")
_HEADING = re.compile(r"^#{1,6} (.+?)\s*$", re.MULTILINE)


def links(text: str) -> list[str]:
    """The targets of a page's links, but for those in code."""
    return _LINK.findall(_CODE.sub("``", _FENCED.sub("", text)))


def anchors(text: str) -> set[str]:
    """What a page's headings are called by, as GitHub and Sphinx do: lower case, hyphens for spaces, no punctuation."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCED.sub("", text)):
        bare = re.sub(r"[^\w\- ]", "", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower()).replace(" ", "-")
        found.add(bare if bare not in found else f"{bare}-{sum(one.startswith(bare) for one in found)}")
    return found


def problem(link: str, page: Path) -> str:
    """What is wrong with a link; nothing if it leads somewhere."""
    parts = urlsplit(link)
    if parts.scheme:
        is_address = (
            parts.scheme == "https" and re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+", parts.netloc) and not re.search(r"[<>\"{}|\\^]", link)
        )
        return "" if is_address else "is no address of https"
    target = (page.parent / parts.path).resolve() if parts.path else page
    if not target.exists():
        return "there is no such file"
    if not target.is_relative_to(ROOT):
        return "lies outside of the repository"
    if parts.fragment and parts.fragment not in anchors(target.read_text("utf-8")):
        return "there is no such heading"
    return ""


@pytest.mark.parametrize("path", PAGES)
def test_links(path):
    text = (ROOT / path).read_text("utf-8")
    text = re.sub(r"\{\{.*?\}\}", "name", re.sub(r"\]\(\{\{.*?\}\}", "](https://example.org", text))  # the template's variables
    found = {link: problem(link, ROOT / path) for link in links(text)}
    assert not {link: what for link, what in found.items() if what}


@pytest.mark.parametrize("path", [path for path in PAGES if path.startswith("docs/")])
def test_pages_link_to_pages_and_not_to_source_files(path):
    targets = [urlsplit(link).path for link in links((ROOT / path).read_text("utf-8")) if not urlsplit(link).scheme]
    files = [(ROOT / path).parent.joinpath(target).resolve() for target in targets if target]
    assert [str(file) for file in files if not file.is_relative_to(ROOT / "docs") or file.suffix not in (".md", ".svg")] == []


@pytest.mark.parametrize(("path", "hook"), [("README.md", True), ("builtin_plugins/accelkit-fake-xpu/README.md", False)])
def test_what_a_package_index_shows_has_no_link_that_is_dead_there(path, hook):
    """An index gives headings no anchors, and has no files: only of the first page does hatch_build.py mend the links to files."""
    dead = r"#" if hook else r"(?!https://)"
    assert [link for link in links((ROOT / path).read_text("utf-8")) if re.match(dead, link)] == []


def test_what_leads_nowhere_is_found():
    page = ROOT / "docs" / "index.md"
    wrong = [
        "nowhere.md",
        "architecture.md#nowhere",
        "#nowhere",
        "http://example.org",
        "https://nohost",
        "../../outside.md",
        "https://a.b/{x}",
    ]
    assert [link for link in wrong if not problem(link, page)] == []
    right = ["architecture.md", "architecture.md#runtime", "../README.md", "https://example.org/a_(b)#c"]
    assert [problem(link, page) for link in right] == [""] * len(right)
    text = "[a](b.md) `[c](d.md)`\n```text\n[e](f.md)\n```\n[g](h_(i).md#j)\n"
    assert links(text) == ["b.md", "h_(i).md#j"]
