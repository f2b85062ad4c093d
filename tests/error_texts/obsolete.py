"""Entries of the snapshot that no test compares with any more."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Iterable

from .normalisation import ROOT

TEST = re.compile(r"(?P<test>(?P<function>.+?::\w+)(\[.*\])?)(\.\d+)?", re.DOTALL)


def test_of(name: str) -> str:
    """The test that an entry belongs to: a test's second entry ends in ``.1``."""
    return _parts(name)["test"]


def _parts(name: str) -> re.Match[str]:
    parts = TEST.fullmatch(name)
    if parts is None:
        raise ValueError(f"{name!r} is no entry's name: path::test_name[parameters].number is expected")
    return parts


@functools.cache
def _functions(path: str) -> set[str]:
    """The functions of a file that take the fixture."""
    file = ROOT / path
    tree = ast.parse(file.read_text()) if file.is_file() else ast.Module([], [])
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return {function.name for function in functions if "error_text" in {argument.arg for argument in function.args.args}}


def without_a_test(names: Iterable[str]) -> set[str]:
    """The entries whose test is not in the sources, or no longer takes the fixture. It needs no run: parameters are not looked at."""
    return {name for name in names if (parts := _parts(name)["function"].split("::"))[1] not in _functions(parts[0])}


@dataclasses.dataclass
class Recorded:
    """What a run of the tests has seen.

    Attributes:
        has_node_ids: Single tests were asked for, so that others of the same function were not collected.
        collected: Every test that takes the fixture, deselected or not.
        passed: The tests that ran to their end.
        names: The entries that each test compared with.
    """

    has_node_ids: bool
    collected: set[str] = dataclasses.field(default_factory=set)
    passed: set[str] = dataclasses.field(default_factory=set)
    names: dict[str, set[str]] = dataclasses.field(default_factory=dict)

    def obsolete(self, names: set[str]) -> set[str]:
        """Those of ``names`` whose test is gone, whose parameters are gone, or that their test no longer compares with."""
        functions = {_parts(test)["function"] for test in self.collected}
        gone = {
            name
            for name in names
            if not self.has_node_ids and _parts(name)["function"] in functions and test_of(name) not in self.collected
        }
        unused = {name for name in names if (test := test_of(name)) in self.passed and name not in self.names.get(test, set())}
        return without_a_test(names) | gone | unused
