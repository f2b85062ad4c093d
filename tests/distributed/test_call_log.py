"""The call log is read by every rank of a job at once, so each reads it with few requests."""

from __future__ import annotations

import json

import pytest
from torch.distributed import HashStore, Store

from accelkit.runtime.collectives import call_log


class CountedStore(Store):
    """A store that counts the requests to it."""

    def __init__(self, has_extended_api):
        super().__init__()
        self.values, self.requests, self.has_extended = {}, 0, has_extended_api

    def set(self, key, value):
        self.values[key] = value

    def has_extended_api(self):
        return self.has_extended

    def check(self, keys):
        self.requests += 1
        return all(key in self.values for key in keys)

    def get(self, key):
        self.requests += 1
        return self.values[key]

    def multi_get(self, keys):
        self.requests += 1
        return [self.values[key] for key in keys]


@pytest.mark.parametrize(("has_extended_api", "most"), [(True, 2), (False, 101)])
def test_entries_of_ranks_that_made_calls_are_read_with_two_requests_if_the_store_can(has_extended_api, most):
    store = CountedStore(has_extended_api)
    for rank in range(100):
        store.set(f"accelkit/calls/{rank}", json.dumps({"last": f"call of {rank}"}).encode())
    assert call_log._read_batch(store, range(100)) == {rank: {"last": f"call of {rank}"} for rank in range(100)}
    assert store.requests == most


def test_ranks_that_made_no_call_have_empty_entries():
    store = HashStore()
    for rank in (0, 1, 2, 5, 7):
        store.set(f"accelkit/calls/{rank}", json.dumps({"last": f"call of {rank}"}))
    entries = call_log._read_batch(store, range(8))
    assert list(entries) == list(range(8))
    assert [rank for rank, entry in entries.items() if not entry] == [3, 4, 6]
