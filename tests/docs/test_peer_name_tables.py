"""The migration guides have a row for each name of another library that an error gives a hint for."""

from __future__ import annotations

import pytest
from peer_name_tables import path_of, with_tables

from accelkit.peer_names import peers, rows


@pytest.mark.parametrize("peer", peers())
def test_the_tables_are_those_of_the_errors(peer):
    page = path_of(peer).read_text("utf-8")
    assert page == with_tables(page, peer), "run python tests/docs/peer_name_tables.py"
    assert all(f"`{name}`" in page for row in rows() if peer in row.peers for name in row.names)
