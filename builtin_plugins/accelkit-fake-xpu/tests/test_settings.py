"""How the environment variables of the fake XPU are read."""

import pytest
from accelkit_fake_xpu.settings import DEFAULT_MEMORY, Faults, SettingsError, read


def test_without_any_there_are_two_devices():
    settings = read({})
    assert settings.devices == (0, 1)
    assert settings.memory == DEFAULT_MEMORY
    assert not settings.is_protected
    assert settings.faults == Faults()


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("0", (0,)), ("2,0", (2, 0)), ("", ()), ("1,7,0", (1,)), ("1,-1,0", (1,)), ("0,0", (0,)), ("none", ()), (" 1 , 2 ", (1, 2))],
)
def test_visible_devices_are_those_before_the_first_that_is_not_there(visible, expected):
    assert read({"FAKE_XPU_DEVICES": "3", "FAKE_XPU_VISIBLE_DEVICES": visible}).devices == expected


@pytest.mark.parametrize(("text", "expected"), [("1000", 1000), ("4KiB", 4096), ("1M", 1 << 20), ("2GiB", 2 << 30), ("3 GB", 3 << 30)])
def test_memory_is_in_bytes_or_with_a_unit(text, expected):
    assert read({"FAKE_XPU_MEMORY": text}).memory == expected


def test_faults_are_read_together():
    faults = read({"FAKE_XPU_FAULT": "oom@3, lost@100,nan@mm,wrong@add,slow_copy@50,recording@early"}).faults
    assert faults == Faults(oom_at=3, lost_at=100, nan_operator="mm", wrong_operator="add", copy_milliseconds=50, recording="early")


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("FAKE_XPU_DEVICES", "many", "64"),
        ("FAKE_XPU_DEVICES", "65", "64"),
        ("FAKE_XPU_MEMORY", "lots", "bytes"),
        ("FAKE_XPU_MEMORY", "0", "bytes"),
        ("FAKE_XPU_PROTECT", "yes", "0 or 1"),
        ("FAKE_XPU_FAULT", "fire@1", "'fire'"),
        ("FAKE_XPU_FAULT", "oom", "oom"),
        ("FAKE_XPU_FAULT", "oom@0", "oom"),
        ("FAKE_XPU_FAULT", "nan@", "''"),
        ("FAKE_XPU_FAULT", "recording@late", "'late'"),
        ("FAKE_XPU_FAULT", "oom@1,oom@2", "oom"),
    ],
)
def test_what_cannot_be_read_is_said_with_what_would_be_right(variable, value, why, error_text):
    with pytest.raises(SettingsError) as caught:
        read({variable: value})
    assert f"{variable}={value!r}" in str(caught.value)
    assert why in str(caught.value).partition(": ")[2]
    assert caught.value.hint
    assert caught.value == error_text
