"""The walk over nested data."""

from __future__ import annotations

import dataclasses
from collections import UserDict, defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelkit import UsageError
from accelkit.pytree import tree_leaves, tree_map

nested = st.recursive(
    st.integers() | st.text() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner)
)


class Pair(NamedTuple):
    left: object
    right: object


@dataclasses.dataclass(frozen=True)
class Batch:
    inputs: object
    name: str = "train"


class Encoding(UserDict):
    """As ``transformers.BatchEncoding``: a mapping with attributes of its own."""

    encodings = None


class ReadOnly(Mapping):
    """A mapping that cannot be changed."""

    def __init__(self, items):
        self._items = dict(items)

    def __getitem__(self, key):
        return self._items[key]

    def __iter__(self):
        return iter(self._items)

    def __len__(self):
        return len(self._items)


@given(nested)
def test_what_does_not_change_is_not_copied(data):
    assert tree_map(lambda leaf: leaf, data) is data


@given(nested)
def test_every_leaf_is_visited_once_and_containers_are_kept(data):
    count = len(tree_leaves(data))
    boxed = tree_map(lambda leaf: {leaf}, data)
    assert len(tree_leaves(boxed)) == count
    assert all(isinstance(leaf, set) for leaf in tree_leaves(boxed))
    assert tree_map(lambda leaf: next(iter(leaf)), boxed) == data


@pytest.mark.parametrize("make", [Pair, Batch, lambda one, two: [one, (two,)], lambda one, two: {"a": one, 3: two}])
def test_containers_keep_their_type(make):
    data = make(1, "b")
    assert tree_map(lambda leaf: leaf * 2, data) == make(2, "bb")
    assert data == make(1, "b")
    assert tree_map(lambda leaf: leaf, data) is data


def test_mappings_keep_their_type_and_attributes():
    groups = tree_map(lambda leaf: leaf + 1, defaultdict(list, a=1))
    assert (groups, groups.default_factory) == ({"a": 2}, list)
    encoding = Encoding(ids=1)
    encoding.encodings = "fast"
    moved = tree_map(lambda leaf: leaf + 1, encoding)
    assert (type(moved), moved["ids"], moved.encodings, encoding["ids"]) == (Encoding, 2, "fast", 1)
    fixed = tree_map(lambda leaf: leaf + 1, ReadOnly({"a": 1}))
    assert (type(fixed), dict(fixed)) == (ReadOnly, {"a": 2})


def test_a_container_can_be_a_leaf_and_a_class_is_one():
    assert tree_leaves([(1, 2), Pair(3, 4), Batch], lambda data: isinstance(data, Pair)) == [1, 2, Pair(3, 4), Batch]


def test_a_container_that_contains_itself_is_an_error(error_text):
    data = {}
    data["again"] = [data]
    with pytest.raises(UsageError) as caught:
        tree_leaves(data)
    assert "100" in caught.value.what
    assert caught.value == error_text
