"""The walk over nested data."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from accelkit.pytree import leaves, map_leaves

nested = st.recursive(
    st.integers() | st.text() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner)
)


@given(nested)
def test_what_does_not_change_is_not_copied(data):
    assert map_leaves(lambda leaf: leaf, data) is data


@given(nested)
def test_every_leaf_is_visited_once_and_containers_are_kept(data):
    count = len(leaves(data))
    boxed = map_leaves(lambda leaf: {leaf}, data)
    assert len(leaves(boxed)) == count
    assert all(isinstance(leaf, set) for leaf in leaves(boxed))
    assert map_leaves(lambda leaf: next(iter(leaf)), boxed) == data
