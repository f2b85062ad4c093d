"""devices=: every form, and every bad value with what exists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelkit import DevicesError, parse_devices


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (1, [0]),
        (4, [0, 1, 2, 3]),
        (-1, [0, 1, 2, 3]),
        ("auto", [0, 1, 2, 3]),
        ("-1", [0, 1, 2, 3]),
        (" 2 ", [0, 1]),
        ([2, 0], [2, 0]),
        ("0,2", [0, 2]),
        ("3,", [3]),
        ((1,), [1]),
    ],
)
def test_forms(devices, expected):
    assert parse_devices(devices, 4, "acme") == expected


@pytest.mark.parametrize(
    ("devices", "count", "why"),
    [
        (0, 4, "a number of devices is at least 1, or -1 for all"),
        (-2, 4, "a number of devices is at least 1, or -1 for all"),
        (5, 4, "5 are asked for, 4 are there"),
        (2, 1, "2 are asked for, 1 is there"),
        (1, 0, "1 is asked for, 0 are there"),
        (-1, 0, "there is no device"),
        ("auto", 0, "there is no device"),
        ([], 4, "no device is named"),
        (",", 4, "no device is named"),
        ([0, 4], 4, "there is no device 4"),
        ([-1], 4, "there is no device -1"),
        ([0, 0], 4, "0 is named twice"),
        ("two", 4, "it is neither a number, a list of numbers nor 'auto'"),
        ("0,x", 4, "it is neither a number, a list of numbers nor 'auto'"),
        ("", 4, "it is neither a number, a list of numbers nor 'auto'"),
        (1.0, 4, "it is float"),
        (True, 4, "it is bool"),
        (None, 4, "it is NoneType"),
        ([0, True], 4, "a list of devices holds ints"),
        (["0"], 4, "a list of devices holds ints"),
    ],
)
def test_bad_values(devices, count, why):
    with pytest.raises(DevicesError) as caught:
        parse_devices(devices, count, "acme")
    assert caught.value.what == f"devices={devices!r} cannot be used with acme"
    assert caught.value.why == why
    assert caught.value.hint


def test_the_error_shows_what_exists(error_text):
    with pytest.raises(DevicesError) as caught:
        parse_devices(3, 2, "acme")
    assert "devices=3" in caught.value.what
    assert caught.value == error_text
    with pytest.raises(DevicesError) as caught:
        parse_devices(9, 8, "acme")
    assert "devices=9" in caught.value.what
    assert caught.value == error_text


@given(st.one_of(st.integers(), st.text(), st.lists(st.integers()), st.none(), st.floats(), st.binary()), st.integers(0, 16))
def test_anything_is_an_answer_or_a_clear_error(devices, count):
    try:
        found = parse_devices(devices, count, "acme")
    except DevicesError as error:
        found = None
        text = str(error)
    if found is None:
        assert "what to do: " in text
    else:
        assert found
        assert len(set(found)) == len(found)
        assert all(0 <= index < count for index in found)
