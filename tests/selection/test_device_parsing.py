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
        (0, 4, "-1"),
        (-2, 4, "-1"),
        (5, 4, "5"),
        (2, 1, "2"),
        (1, 0, "1"),
        (-1, 0, "device"),
        ("auto", 0, "device"),
        ([], 4, "device"),
        (",", 4, "device"),
        ([0, 4], 4, "4"),
        ([-1], 4, "-1"),
        ([0, 0], 4, "0"),
        ("two", 4, "'auto'"),
        ("0,x", 4, "'auto'"),
        ("", 4, "'auto'"),
        (1.0, 4, "float"),
        (True, 4, "bool"),
        (None, 4, "NoneType"),
        ([0, True], 4, "int"),
        (["0"], 4, "int"),
    ],
)
def test_bad_values(devices, count, why, error_text):
    with pytest.raises(DevicesError) as caught:
        parse_devices(devices, count, "acme")
    assert f"devices={devices!r}" in caught.value.what
    assert "acme" in caught.value.what
    assert why in caught.value.why
    assert caught.value.hint
    assert caught.value == error_text


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
