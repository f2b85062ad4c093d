"""The call log: how often a rank writes its entry, and what ranks learn from the entries with few requests."""

from __future__ import annotations

import json
import time

import pytest
from torch.distributed import HashStore, Store

from accelkit.runtime.collectives import call_log, desync_report


class CountedStore(Store):
    """A store that counts the requests to it."""

    def __init__(self, has_extended_api=True):
        super().__init__()
        self.values, self.requests, self.has_extended = {}, 0, has_extended_api

    def set(self, key, value):
        self.requests += 1
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

    def last(self, key):
        return json.loads(self.values[key])["last"]


@pytest.mark.parametrize(("has_extended_api", "most"), [(True, 2), (False, 101)])
def test_entries_of_ranks_that_made_calls_are_read_with_two_requests_if_the_store_can(has_extended_api, most):
    store = CountedStore(has_extended_api)
    for rank in range(100):
        store.set(f"accelkit/calls/{rank}", json.dumps({"last": f"call of {rank}"}).encode())
    store.requests = 0
    assert desync_report._read_batch(store, range(100)) == {rank: {"last": f"call of {rank}"} for rank in range(100)}
    assert store.requests == most


def test_ranks_that_made_no_call_have_empty_entries():
    store = HashStore()
    for rank in (0, 1, 2, 5, 7):
        store.set(f"accelkit/calls/{rank}", json.dumps({"last": f"call of {rank}"}))
    entries = desync_report._read_batch(store, range(8))
    assert list(entries) == list(range(8))
    assert [rank for rank, entry in entries.items() if not entry] == [3, 4, 6]


def test_a_rank_that_makes_many_calls_writes_its_first_entry_now_and_its_last_entry_when_it_may():
    store, writer = CountedStore(), call_log.EntryWriter()
    began = time.monotonic()
    for number in range(100):
        writer.put(store, "entry", {"last": number}, seconds=1.0)
        assert store.last("entry") == 0 or time.monotonic() - began >= 1.0
    deadline = time.monotonic() + 60
    while store.last("entry") != 99 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert store.last("entry") == 99
    assert time.monotonic() - began >= 1.0
    assert store.requests == 2
    writer.stop()


@pytest.mark.parametrize("finish", ["flush", "stop"])
def test_the_last_entry_is_written_early_when_a_call_fails_and_when_the_process_exits(finish):
    store, writer = CountedStore(), call_log.EntryWriter()
    for number in range(3):
        writer.put(store, "entry", {"last": number}, seconds=3600.0)
    getattr(writer, finish)()
    assert store.last("entry") == 2
    writer.stop()
    assert store.requests == 2


def test_the_last_entry_is_written_if_the_writer_is_stopped_before_its_thread_waits():
    store, writer = CountedStore(), call_log.EntryWriter()
    writer.put(store, "entry", {"last": 0}, seconds=3600.0)
    writer._is_stopping.set()
    writer.put(store, "entry", {"last": 1}, seconds=3600.0)
    writer._thread.join(60)
    assert store.last("entry") == 1


def entries_of(counts):
    return {
        rank: {"at": f"host, process {rank}", "last": f"call {count}", "group": "0", "groups": {"0": count}}
        for rank, count in counts.items()
    }


class Group:
    group_name = "0"


@pytest.mark.parametrize("missing", [{5}, set(range(100, 4096, 3))])
def test_a_summary_names_the_first_missing_ranks_and_counts_the_others_in_a_few_kilobytes(missing):
    call = call_log.Call("gather", Group(), 7, range(4096), is_verified=True)
    summary = desync_report.Summary.of(entries_of({rank: 6 if rank in missing else 7 for rank in range(4096)}), call)
    assert len(summary.as_json()) < 2000
    found = desync_report.Summary.from_json(summary.as_json().encode())
    assert found == summary
    behind, arrived = found.rows
    assert (behind.count, behind.size, arrived.size) == (6, len(missing), 4096 - len(missing))
    assert list(behind.at) == sorted(missing)[:8]


def test_a_summary_of_ranks_that_all_differ_keeps_those_that_made_the_fewest_calls():
    call = call_log.Call("gather", Group(), 7, range(4096), is_verified=True)
    summary = desync_report.Summary.of(entries_of({rank: 5000 - rank for rank in range(4096)}), call)
    assert [list(row.at) for row in summary.rows] == [[4095 - place] for place in range(16)]
    assert len(summary.as_json()) < 8000


def test_a_rank_whose_last_call_was_in_another_group_has_not_made_a_different_call():
    call = call_log.Call("call 7", Group(), 7, range(2), is_verified=True)
    elsewhere = {"last": "reduce", "group": "1", "groups": {"0": 7, "1": 3}}
    (row,) = desync_report.Summary.of({1: elsewhere}, call).rows
    assert not desync_report._has_diverged(row, call, has_timed_out=False)
    (row,) = desync_report.Summary.of({1: elsewhere | {"group": "0"}}, call).rows
    assert desync_report._has_diverged(row, call, has_timed_out=False)
