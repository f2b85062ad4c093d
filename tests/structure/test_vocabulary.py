"""The code uses the field's words. Words that it used before are listed with those that replaced them."""

from __future__ import annotations

import io
import keyword
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REPLACED = {
    "attendance": "call_log",
    "blaming": "plugin_errors",
    "come": "record_call",
    "configured": "runtime_created",
    "crew": "WorkerGroup",
    "doomed": "renamed",
    "facet": "component",
    "facets": "components",
    "first_call_seconds": "first_call_timeout",
    "guilty": "failed",
    "lane": "Executor",
    "lanes": "parallel",
    "launched": "process_group_initialized",
    "meet": "verify",
    "meeting": "rendezvous",
    "met": "verified",
    "obituary": "retirement",
    "preempted": "job_preempted",
    "settle": "wait_for_torch_threads",
    "settling": "thread_shutdown",
    "stay_on": "assert_on_device",
    "strangers": "unknown",
    "take_leave": "leave",
    "word_of_failure": "read_remote_failure",
}
SOURCES = sorted(
    path for folder in ("sdk", "builtin_plugins", "conformance", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")
)


def names_in(source: str) -> set[str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME and not keyword.iskeyword(token.string)}


def replaced_words_in(source: str) -> set[str]:
    return {name for name in names_in(source) if name.lower().strip("_") in REPLACED}


def test_such_a_word_is_found():
    assert replaced_words_in("def _meet(lanes): return Crew(lanes).plane") == {"_meet", "lanes", "Crew"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_file_and_its_names_have_no_replaced_word(path):
    found = replaced_words_in(path.read_text("utf-8")) | ({path.stem} & set(REPLACED))
    assert {name: REPLACED[name.lower().strip("_")] for name in found} == {}
