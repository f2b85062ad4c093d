"""Loading one plugin: whatever its code does becomes an error that names it; the user's own Ctrl-C passes."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

import accelkit
from accelkit.discovery import catalog, loading
from accelkit.discovery.loading import describe, plugin_errors
from accelkit.types import FROM_CODE


@pytest.mark.parametrize(
    ("source", "why", "hint"),
    [
        (
            "import a_module_of_nobody",
            "ModuleNotFoundError: No module named 'a_module_of_nobody'",
            "install the package that provides the module",
        ),
        (
            "import ctypes; ctypes.CDLL('libnobody.so.9')",
            "OSError: libnobody.so.9: cannot open shared object",
            "install the missing library",
        ),
        ("raise SystemExit(3)", "SystemExit: 3", "report it to the vendor of vendor-bad"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", "ACCELKIT_DISABLE_PLUGINS=vendor-bad"),
        ("raise BaseException('odd')", "BaseException: odd", "report it to the vendor"),
        ("def Bad(): pass", "vendor_bad:Bad is function", "must refer to a subclass of accelkit.Accelerator"),
        ("class Bad(dict): pass", "vendor_bad:Bad is a class whose bases are builtins.dict", "subclass of accelkit.Accelerator"),
        ("x = 1", "AttributeError: module 'vendor_bad' has no attribute 'Bad'", "report it"),
    ],
)
def test_an_import_that_fails_names_the_plugin(plugin_site, source, why, hint):
    plugin_site.install("vendor-bad", source, accelerators={"bad": "Bad"}, version="3.1")
    with pytest.raises(accelkit.BrokenPluginError) as caught:
        loading.load_class(catalog.find("accelerator", "bad"))
    text = str(caught.value)
    assert "vendor-bad==3.1" in text
    assert why in text
    assert hint in text


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("raise RuntimeError('no driver')", "RuntimeError: no driver"),
        ("return True", "True (bool)"),
        ("return None", "None (NoneType)"),
    ],
)
def test_a_probe_that_does_not_answer_is_broken(plugin_site, body, why, error_text):
    source = f"from accelkit import Accelerator\nclass Bad(Accelerator):\n    @classmethod\n    def probe(cls):\n        {body}\n"
    plugin_site.install("vendor-bad", source, accelerators={"bad": "Bad"})
    record = catalog.find("accelerator", "bad")
    with pytest.raises(accelkit.BrokenPluginError) as caught:
        loading.probe(loading.load_class(record), record)
    assert why in str(caught.value)
    assert caught.value.plugin == "vendor-bad==1.0"
    assert caught.value == error_text


def test_a_class_that_leaves_out_required_methods_is_broken(plugin_site, error_text):
    source = "from accelkit import EngineStrategy\nclass Bad(EngineStrategy):\n    def step(self, optimizer):\n        return True\n"
    plugin_site.install("vendor-bad", source, entry_points="[accelkit.strategies]\nbad = vendor_bad:Bad")
    record = catalog.find("strategy", "bad")
    with pytest.raises(accelkit.BrokenPluginError) as caught:
        loading.instantiate(loading.load_class(record), record)
    assert "backward, wrap_training, zero_grad" in caught.value.what
    assert caught.value.plugin == "vendor-bad==1.0"
    assert caught.value == error_text


def test_what_was_given_in_code_has_no_vendor_and_cannot_be_left_out_by_name(error_text):
    with pytest.raises(accelkit.BrokenPluginError) as caught, plugin_errors(f"{FROM_CODE}==my.module", "making it"):
        raise RuntimeError("odd")
    assert "my.module" in caught.value.plugin
    assert caught.value == error_text
    assert "vendor" not in str(caught.value)
    assert "ACCELKIT_DISABLE_PLUGINS" not in str(caught.value)


@pytest.fixture
def default_ctrl_c():
    """As in a program that was started from a terminal: in the background of a shell it may be ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_users_own_ctrl_c_passes(default_ctrl_c):
    with pytest.raises(KeyboardInterrupt), plugin_errors("vendor==1", "importing"):
        signal.raise_signal(signal.SIGINT)  # to this thread: os.kill may reach another one first, and be seen here too late
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_root_cause_is_shown():
    error = RuntimeError("Failed to load the backend extension")
    error.__cause__ = OSError("libhccl.so: cannot open shared object file")
    assert describe(error) == (
        "RuntimeError: Failed to load the backend extension (root cause: OSError: libhccl.so: cannot open shared object file)"
    )


def test_an_accelkit_error_is_described_with_its_parts_apart():
    error = accelkit.PluginError("setting up xpu failed", plugin="acme==1", why="no driver", hint="install it")
    assert describe(error) == "PluginError: setting up xpu failed; plugin: acme==1; why: no driver; what to do: install it"


def test_a_plugin_is_loaded_in_a_thread_where_signals_have_no_handlers(plugin_site):
    plugin_site.install("vendor-good", "import accelkit\nclass Good(accelkit.Accelerator): pass", accelerators={"good": "Good"})
    plugin_site.install("vendor-bad", "raise KeyboardInterrupt", accelerators={"bad": "Bad"})
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(loading.load_class, catalog.find("accelerator", "good")).result().__name__ == "Good"
        with pytest.raises(accelkit.BrokenPluginError, match="KeyboardInterrupt"):
            pool.submit(loading.load_class, catalog.find("accelerator", "bad")).result()
