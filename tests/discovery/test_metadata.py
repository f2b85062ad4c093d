"""Reading METADATA: as the standard library's parser reads it."""

from __future__ import annotations

import configparser
import os
from email.parser import Parser

import hypothesis
import importlib_metadata
import pytest
from hypothesis import strategies as st
from packaging.utils import canonicalize_name

import accelkit
from accelkit.discovery import autoload
from accelkit.discovery.catalog import inventory
from accelkit.discovery.metadata import headers, installed_version, normalized
from accelkit.discovery.metadata_files import parse_entry_points


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


LINES = (
    "[one]",
    "[two.three]",
    "[DEFAULT]",
    "[a b]",
    "[]",
    "a = m:A",
    "b=m:B",
    "a = m:C [x]",
    "a",
    "# a = m:A",
    "  a = m:D",
    "a = m:A ",
    "",
)


def parsed_by_configparser(text):
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False, allow_no_value=True)
    parser.optionxform = str
    parser.read_string(text)
    return [(group, name, value or "") for group in parser.sections() for name, value in parser.items(group)]


def outcome(parse, text):
    """Return the entry points, or the message of the error."""
    try:
        return list(parse(text))
    except (ValueError, configparser.Error) as error:
        return str(error)
    except AttributeError:  # configparser before Python 3.13
        return "an indented line continues an entry that has no value"


@hypothesis.given(st.lists(st.sampled_from(LINES)).map("\n".join))
def test_entry_points_read_as_configparser_reads_them(text):
    assert outcome(parse_entry_points, text) == outcome(parsed_by_configparser, text)


def test_a_distribution_whose_entry_points_cannot_be_read_is_noted(plugin_site):
    info = plugin_site.install("vendor-some", accelerators={"some": "Some"})
    (info / "entry_points.txt").unlink()
    (info / "entry_points.txt").symlink_to("entry_points.txt")  # a loop of links
    accelkit.refresh()
    assert "vendor-some" in inventory().unreadable, "import torch would fail on it"
    assert "some" not in {record.name for record in accelkit.plugins()}


@pytest.mark.parametrize("before", ["1", None])
def test_torch_is_imported_without_backends_whose_entry_points_cannot_be_read(plugin_site, monkeypatch, before):
    info = plugin_site.install("vendor-some", accelerators={"some": "Some"})
    (info / "entry_points.txt").unlink()
    (info / "entry_points.txt").symlink_to("entry_points.txt")
    accelkit.refresh()
    monkeypatch.setenv(autoload.VARIABLE, "1")
    if before is None:
        monkeypatch.delenv(autoload.VARIABLE)
    with pytest.warns(RuntimeWarning, match="pip install --force-reinstall vendor-some"), autoload._autoload_that_can_work():
        assert os.environ[autoload.VARIABLE] == "0"
    assert os.environ.get(autoload.VARIABLE) == before


def test_a_failed_import_of_torch_names_the_distribution_whose_entry_points_cannot_be_read(plugin_site):
    info = plugin_site.install("vendor-some", accelerators={"some": "Some"})
    (info / "entry_points.txt").unlink()
    (info / "entry_points.txt").symlink_to("entry_points.txt")
    accelkit.refresh()
    error = autoload.explain(OSError("too many levels of symbolic links"))
    assert error.plugin == "vendor-some"
    assert "too many levels of symbolic links" in error.why
    assert "pip install --force-reinstall vendor-some" in error.hint


def test_entry_points_that_are_only_too_large_do_not_switch_off_the_autoload_of_torch(plugin_site):
    info = plugin_site.install("vendor-some", accelerators={"some": "Some"})
    with (info / "entry_points.txt").open("a") as file:
        file.write("# comment\n" * 20_000)
    accelkit.refresh()
    assert inventory().unreadable == (), "torch can read this file"
    assert [record.status for record in accelkit.plugins() if record.distribution == "vendor-some"] == ["broken"]


def test_metadata_that_is_not_text_does_not_hide_a_plugin(plugin_site):
    info = plugin_site.install("vendor-some", accelerators={"some": "Some"}, version="3.1")
    (info / "METADATA").write_bytes(b"Name: \xff\xfe\n")
    accelkit.refresh()
    (record,) = [record for record in accelkit.plugins() if record.name == "some"]
    assert record.plugin == "vendor-some==3.1", "name and version are those of its folder"


def test_entry_points_that_torch_cannot_read_are_no_backend_of_torch(plugin_site):
    plugin_site.install("vendor-some", entry_points="no section\n[torch.backends]\nsome = vendor_some:load")
    assert [one for one in inventory().torch_backends if one.distribution == "vendor-some"] == []
