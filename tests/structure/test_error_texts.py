"""The snapshot of error texts, without running a test that has an entry in it."""

from __future__ import annotations

from error_texts.obsolete import Recorded, without_a_test
from error_texts.plugin import SNAPSHOT, ErrorTexts

HERE = "tests/structure/test_error_texts.py"


def test_every_entry_has_a_test_that_takes_the_fixture():
    names = {entry.name for entry in ErrorTexts().read_snapshot_collection(snapshot_location=str(SNAPSHOT))}
    assert len(names) > 100
    assert without_a_test(names) == set(), "make snapshots removes them"


def test_what_is_gone_is_found_in_the_sources():
    there = "tests/cluster/test_detection.py::test_why_of_a_name_that_nobody_offers"
    does_not_take_it = f"{HERE}::test_what_is_gone_is_found_in_the_sources"
    gone = {f"{HERE}::test_of_yesterday[a.1]", "tests/gone/test_gone.py::test_gone.1", does_not_take_it}
    assert without_a_test({there, f"{there}[x::y].1", f"{there}.2", *gone}) == gone


def test_what_a_run_did_not_compare_with_is_obsolete():
    here = "tests/cluster/test_detection.py::test_why_of_a_name_that_nobody_offers"
    names = {f"{here}[a]", f"{here}[a].1", f"{here}[b]", f"{here}[skipped]"}
    run = Recorded(
        has_node_ids=False, collected={f"{here}[a]", f"{here}[skipped]"}, passed={f"{here}[a]"}, names={f"{here}[a]": {f"{here}[a]"}}
    )
    assert run.obsolete(names) == {f"{here}[a].1", f"{here}[b]"}
    run.has_node_ids = True
    assert run.obsolete(names) == {f"{here}[a].1"}, "[b] was perhaps not asked for"
    run.passed = set()
    assert run.obsolete(names) == set(), "a test that failed or was skipped may compare with more"
