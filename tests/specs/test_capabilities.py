"""Capabilities: known words, in collections."""

from __future__ import annotations

import pytest

import accelkit
from accelkit import Capabilities
from accelkit.discovery import loading
from accelkit.discovery.catalog import find
from accelkit.selection import select


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ({"native": ["stream"]}, "'stream': did you mean 'streams'?"),
        ({"none": ["telepathy"]}, "'telepathy': valid ones are dtype.<name>"),
        ({"native": "streams"}, r"native='streams' is a string; .* native=\['streams'\]"),
        ({"emulated": [3]}, r"a capability must be a string, got 3 \(int\)"),
        ({"native": [".x"]}, "'.x'"),
        ({"native": ["fp8"], "none": ["fp8"]}, "'fp8' is declared as both native and none"),
    ],
)
def test_what_nobody_would_read_is_an_error(declared, says):
    with pytest.raises((TypeError, ValueError), match=says):
        Capabilities.declare(**declared)


def test_a_support_that_does_not_exist_is_an_error():
    with pytest.raises(ValueError, match="'fp8' must be one of native, emulated, none, undeclared, got 'partial'"):
        Capabilities({"fp8": "partial"})


def test_they_are_a_mapping_in_the_order_of_the_names():
    declared = Capabilities.declare(native=["streams"], emulated=["fp8"], none=["graphs"])
    assert list(declared) == ["fp8", "graphs", "streams"]
    assert len(declared) == 3
    assert ("graphs" in declared, "events" in declared, declared["events"]) == (True, False, "undeclared")
    assert [key for key in (*declared, "events") if declared.can(key)] == ["fp8", "streams"]
    assert repr(declared) == "Capabilities({'fp8': 'emulated', 'graphs': 'none', 'streams': 'native'})"


def test_a_plugins_own_words_have_its_name_in_front():
    declared = Capabilities.declare(native=["acme.sparse_cores", "dtype.float32"])
    assert declared["acme.sparse_cores"] == "native"
    assert declared.updated({"acme.other": "none"})["acme.other"] == "none"
    with pytest.raises(ValueError, match="graphs"):
        declared.updated({"graph": "none"})


ACCELERATOR = """
from accelkit import Accelerator, Availability, Precision

class Some(Accelerator):
    device_type = "cpu"
    declared_capabilities = {declared}

    @classmethod
    def probe(cls):
        return Availability.usable()

class Half(Precision):
    required_capabilities = {required}

class Lines:
    pass

lines = Lines()
"""
POINTS = """
[accelkit.accelerators]
some = vendor_some:Some
[accelkit.precisions]
half = vendor_some:Half
[accelkit.hooks]
lines = vendor_some:lines
"""


@pytest.mark.parametrize(
    ("wrong", "kind", "name"),
    [
        ({"declared": "{'streams': 'native'}"}, "accelerator", "some"),
        ({"required": "('autocast.bfloat16')"}, "precision", "half"),
        ({"required": "('stream',)"}, "precision", "half"),
        ({}, "hooks", "lines"),
    ],
    ids=["a dict", "a string", "an unknown word", "an instance"],
)
def test_a_plugin_that_declares_wrongly_is_named(wrong, kind, name, plugin_site, error_text):
    right = {"declared": "__import__('accelkit').Capabilities()", "required": "()"}
    plugin_site.install("vendor-some", ACCELERATOR.format(**right | wrong), entry_points=POINTS)
    with pytest.raises(accelkit.BrokenPluginError) as caught:
        loading.load_class(find(kind, name))
    assert caught.value.plugin == "vendor-some==1.0"
    assert name in caught.value.what
    assert caught.value == error_text
    if kind == "accelerator":
        with pytest.raises(accelkit.BrokenPluginError, match="declared_capabilities is a dict"):
            select(name)
