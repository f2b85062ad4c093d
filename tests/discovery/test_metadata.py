"""Reading METADATA: as the standard library's parser reads it."""

from __future__ import annotations

from email.parser import Parser

import importlib_metadata
from packaging.utils import canonicalize_name

from accelkit.discovery.metadata import headers, installed_version, normalized


def test_whatever_is_installed_reads_alike():
    installed = [(d.name, text) for d in importlib_metadata.distributions() if (text := d.read_text("METADATA"))]
    assert len(installed) > 20
    for name, text in installed:
        ours, theirs = headers(text), Parser().parsestr(text, headersonly=True)
        for field in ("Name", "Version", "Summary", "Requires-Dist", "Requires-Python"):
            values = [value.split() for value in ours.get(field.lower(), [])]
            assert values == [value.split() for value in theirs.get_all(field, [])], f"{field} of {name}"
        assert normalized(name) == canonicalize_name(name)
        assert installed_version(name) == importlib_metadata.version(name)


def test_folded_lines_and_the_description():
    text = "Metadata-Version: 2.3\nName: acme\nSummary: one\n  two\nRequires-Dist: a>=1\nRequires-Dist: b\n\nName: not this one\n"
    assert headers(text) == {"metadata-version": ["2.3"], "name": ["acme"], "summary": ["one two"], "requires-dist": ["a>=1", "b"]}
    assert headers("") == {}
    assert headers("  folded first\nName: acme") == {"name": ["acme"]}
    assert installed_version("no-such-distribution") is None
