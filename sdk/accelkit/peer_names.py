"""Hints for programs that use the API of another library: what accelkit has instead of names such as ``all_reduce`` or ``set_seed``.

``peer_names.toml`` is the only list of these names. It is read only when a program uses a name that accelkit does not have.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import re
import tomllib
from collections.abc import Callable, Iterable
from importlib import resources
from typing import Any, Literal

from accelkit.errors import UnknownArgumentError, UnknownAttributeError

Kind = Literal["attributes", "functions", "arguments"]
_SENTENCES = ("accelkit ", "call ", "run ", "use ", "write ")
"""The first words of the replacements that are sentences. The other replacements are nouns, or begin with "nothing"."""
_LINK = re.compile(r"\[([^\]]*)\]\((?:\.\./)*([^)#]*)[^)]*\)")


@dataclasses.dataclass(frozen=True, slots=True)
class Peer:
    """A class or package of another library.

    Attributes:
        title: The name of the class or package in error messages, such as ``Lightning's Fabric``.
        package: The name of the package, such as ``accelerate``. If it is not empty, error messages about functions contain it instead of
            ``title``.
        page: The page of the documentation that shows the peer's names in a table, relative to ``docs``.
    """

    title: str
    page: str
    package: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """Names from the APIs of other libraries. All of these names have the same replacement in accelkit.

    Attributes:
        kind: What the names are: attributes of a class, functions of a package, or arguments of a constructor.
        peers: The classes and packages that have these names. Each is given by its key in :func:`peers`, such as ``fabric``.
        names: The names.
        instead: The replacement, in Markdown. Links are relative to a page in a subfolder of ``docs``, such as ``docs/guides``.
    """

    kind: Kind
    peers: tuple[str, ...]
    names: tuple[str, ...]
    instead: str


@functools.cache
def peers() -> dict[str, Peer]:
    """Return the classes and packages of other libraries that ``peer_names.toml`` covers, by key, such as ``fabric``."""
    return {key: Peer(**fields) for key, fields in _table()["peers"].items()}


@functools.cache
def rows() -> tuple[Row, ...]:
    """Return all rows of ``peer_names.toml``, in the order of the file."""
    found: list[Row] = []
    kinds: tuple[Kind, ...] = ("attributes", "functions", "arguments")
    for kind in kinds:
        for owners, names, instead in _table()["rows"][kind]:
            found.append(Row(kind, tuple(owners.split()), tuple(names.split(", ")), instead))
    return tuple(found)


def missing_attribute(owner: str, name: str) -> UnknownAttributeError | None:
    """Return the error for an attribute that ``owner`` (``Runtime`` or ``accelkit``) does not have but another library has.

    The error says what to use instead. Returns None if ``peer_names.toml`` lists ``name`` neither as an attribute nor as a function.
    """
    row = None if name.startswith("_") else _find(name, ("attributes", "functions"))
    if row is None:
        return None
    error = UnknownAttributeError(f"{owner} has no attribute {name!r}", why=_origin(row, name), hint=_hint(row))
    error.name, error.obj = name, None  # without an object, Python does not add a "Did you mean" of its own, which is often wrong
    return error


def unknown_arguments(given: Iterable[str], function: Callable[..., object]) -> UnknownArgumentError:
    """Return the error for arguments that a function does not accept.

    Args:
        given: The names of the arguments that are not accepted. There is at least one. The error's hint covers only the first.
        function: The function or class that was called, such as ``Runtime``.
    """
    names = list(given)
    listed = ", ".join(f"{name}=" for name in names)
    what = f"{function.__name__} has no {'argument' if len(names) == 1 else 'arguments'} {listed}"
    row = _find(names[0], ("arguments",))
    if row is not None:
        hint = _hint(row) if len(names) == 1 else f"instead of {names[0]}=, {_hint(row)}"
        return UnknownArgumentError(what, why=_origin(row, names[0]), hint=hint)
    known = [one.name for one in inspect.signature(function).parameters.values() if one.kind is not one.VAR_KEYWORD]
    near = difflib.get_close_matches(names[0], known, n=1)
    hint = f"did you mean {near[0]}=?" if near else "docs/reference/runtime.md lists the arguments"
    return UnknownArgumentError(what, hint=hint)


def _find(name: str, kinds: tuple[Kind, ...]) -> Row | None:
    return next((row for row in rows() if row.kind in kinds and name in row.names), None)


def _origin(row: Row, name: str) -> str:
    if row.peers == ("torch",):
        return ""
    one = {"attributes": "an attribute", "functions": "a name", "arguments": "an argument"}[row.kind]
    owners = [peers()[key] for key in row.peers if key != "torch"]
    titles = [peer.package or peer.title if row.kind == "functions" else peer.title for peer in owners]
    return f"{name} is {one} of {' and of '.join(titles)}"


def _hint(row: Row) -> str:
    text = _LINK.sub(r"\1 (docs/\2)", row.instead)
    if text.startswith("nothing: "):
        text = text.replace("nothing", "write nothing instead", 1)
    elif not text.startswith(_SENTENCES):
        text = f"use {text}"
    text = text.replace("`", "")
    return f"{text}; see docs/{peers()[row.peers[0]].page}"


@functools.cache
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(resources.files("accelkit").joinpath("peer_names.toml").read_text("utf-8"))
