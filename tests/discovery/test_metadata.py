"""Reading METADATA: as the standard library's parser reads it."""

from __future__ import annotations

from email.parser import Parser

import importlib_metadata
import pytest
from packaging.utils import canonicalize_name

from accelkit.discovery.metadata import headers, installed_version, normalized

INSTALLED = [distribution for distribution in importlib_metadata.distributions() if distribution.read_text("METADATA")]


@pytest.mark.parametrize("distribution", INSTALLED, ids=lambda distribution: distribution.name)
def test_whatever_is_installed_reads_alike(distribution):
    text = distribution.read_text("METADATA")
    ours, theirs = headers(text), Parser().parsestr(text, headersonly=True)
    for field in ("Name", "Version", "Summary", "Requires-Dist", "Requires-Python"):
        assert [value.split() for value in ours.get(field.lower(), [])] == [value.split() for value in theirs.get_all(field, [])]
    assert normalized(distribution.name) == canonicalize_name(distribution.name)
    assert installed_version(distribution.name) == distribution.version


def test_folded_lines_and_the_description():
    text = "Metadata-Version: 2.3\nName: acme\nSummary: one\n  two\nRequires-Dist: a>=1\nRequires-Dist: b\n\nName: not this one\n"
    assert headers(text) == {"metadata-version": ["2.3"], "name": ["acme"], "summary": ["one two"], "requires-dist": ["a>=1", "b"]}
    assert headers("") == {}
    assert headers("  folded first\nName: acme") == {"name": ["acme"]}
    assert installed_version("no-such-distribution") is None
