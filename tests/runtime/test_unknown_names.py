"""Names that a Runtime, its constructor or accelkit does not have: the hint, and what stays as it is without the name."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import traceback

import pytest

import accelkit
from accelkit.peer_names import peers, rows


@pytest.mark.parametrize(
    ("name", "instead"),
    [("rank", "rt.process_index"), ("all_reduce", "rt.reduce"), ("clip_gradients", "rt.clip_grad_norm_"), ("set_seed", "seed=")],
)
def test_the_hint_says_what_the_runtime_has_instead(rt, name, instead, error_text):
    with pytest.raises(accelkit.UnknownAttributeError) as caught:
        getattr(rt, name)
    assert repr(name) in caught.value.what
    assert instead in caught.value.hint
    assert caught.value == error_text
    assert "Did you mean" not in "".join(traceback.format_exception(caught.value)), "Python's own guess, which may be another one"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"mixed_precision": "bf16"}, "precision="),
        ({"kwargs_handlers": [], "nodes": 2}, "instead of kwargs_handlers="),
        ({"devces": 2}, "devices="),
        ({"no_such_argument": 1}, "docs/reference/runtime.md"),
    ],
)
def test_the_hint_says_which_argument_was_meant(arguments, text, error_text):
    with pytest.raises(accelkit.UnknownArgumentError) as caught:
        accelkit.Runtime("cpu", **arguments)
    assert all(f"{name}=" in caught.value.what for name in arguments)
    assert text in caught.value.hint
    assert caught.value == error_text
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("name", ["set_seed", "is_available", "LocalSGD", "notebook_launcher", "find_executable_batch_size"])
def test_the_hint_of_the_package(name, error_text):
    with pytest.raises(accelkit.UnknownAttributeError) as caught:
        getattr(accelkit, name)
    assert caught.value == error_text
    with pytest.raises(ImportError, match=re.escape(caught.value.hint)):
        exec(f"from accelkit import {name}")
    with pytest.raises(ImportError, match="cannot import name 'nope'"):
        exec("from accelkit import nope")


def test_a_name_that_is_not_there_is_not_there(rt):
    assert not hasattr(rt, "rank")
    assert not hasattr(accelkit, "set_seed")
    assert getattr(rt, "barrier", None) is None
    assert "rank" not in dir(rt)
    for name in ("nope", "_rank", "__len__"):
        with pytest.raises(AttributeError, match=f"'Runtime' object has no attribute '{name}'") as caught:
            getattr(rt, name)
        assert not isinstance(caught.value, accelkit.AccelkitError)


def test_copy_and_pickle_are_as_before(rt):
    assert copy.deepcopy(rt) is rt
    with pytest.raises(accelkit.UnsupportedError, match="cannot be pickled"):
        pickle.dumps(rt)
    with pytest.raises(AttributeError, match="_session"):
        _ = accelkit.Runtime.__new__(accelkit.Runtime).decision


def test_an_error_inside_a_property_is_not_replaced():
    class Mine(accelkit.Runtime):
        @property
        def rank(self):
            return self.cluster.no_such_attribute

    with pytest.raises(AttributeError, match="no_such_attribute"):
        _ = Mine("cpu").rank


def test_each_name_stands_once_in_the_table_and_has_a_page():
    for kinds in ({"attributes", "functions"}, {"arguments"}):
        names = [name for row in rows() if row.kind in kinds for name in row.names]
        assert sorted(names) == sorted(set(names))
    assert {key for row in rows() for key in row.peers} == set(peers())


def test_no_name_of_the_table_is_there(rt):
    parameters = inspect.signature(accelkit.Runtime).parameters
    for row in rows():
        for name in row.names:
            if row.kind == "arguments":
                assert name not in parameters
            else:
                assert not hasattr(accelkit, name)
                assert not hasattr(rt, name) or (row.kind == "functions" and f"rt.{name}(" in row.instead)


def test_the_hints_name_what_there_is():
    """Each ``rt.x`` and each argument that a hint names exists. Of the strategies, ``parallel`` has all of them."""
    text = "\n".join(row.instead for row in rows())
    named = set(re.findall(r"rt\.(\w+(?:\.\w+)?)", text))
    assert len(named) > 30
    with accelkit.Runtime("cpu", strategy="parallel") as rt:
        for name in named:
            owner = rt
            for part in name.split("."):
                owner = getattr(owner, part)
    arguments = {word for words in re.findall(r"Runtime\(([^`]*)\)`", text) for word in re.findall(r"(?<![\w(])(\w+)=", words)}
    assert arguments <= set(inspect.signature(accelkit.Runtime).parameters) | {"timeout", "process_group_backend"}
