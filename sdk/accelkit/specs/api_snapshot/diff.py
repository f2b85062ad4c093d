"""Differences between two records of the specifications. Each difference says which plugins must change and how."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from accelkit.specs.api_snapshot.signature_diff import differences
from accelkit.specs.api_snapshot.snapshot import Record

Concern = Literal["nobody", "who overrides it", "who inherits it", "who uses it", "everybody"]
"""The plugins that must change.

A plugin uses a member if it overrides, calls or reads the member, or creates an object that has the member. A plugin inherits a member if
it does not override the member.
"""

Aspect = Literal["added", "removed", "renamed", "form", "parameters", "returns", "type", "default", "requirement", "marker"]

Member = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """A difference between two records of the specifications.

    Attributes:
        specification, member: The names of the specification and of its member, such as ``Strategy`` and ``step``. ``member`` is empty if
            the whole specification was added or removed, or if the order of its fields has changed.
        aspect: The part of the member that changed, such as ``parameters``, or the kind of the change, such as ``added``.
        old, new: The member's signature in the old and in the new record. If a record contains no such member or specification, the
            corresponding string is empty. If the whole specification was added or removed, the other string is the name of the
            specification. If the order of the specification's fields has changed, both strings list the names of the fields.
        parameter: The name of the changed parameter, or "" if the change is not about a parameter.
        what: The difference, as a predicate whose subject is the member, such as ``is new``.
        concerns: The plugins that must change.
        what_to_do: What the authors of these plugins must do.
    """

    specification: str
    member: str
    aspect: Aspect
    old: str
    new: str
    what: str
    concerns: Concern = "nobody"
    what_to_do: str = "nothing"
    parameter: str = ""

    @property
    def name(self) -> str:
        return f"{self.specification}.{self.member}" if self.member else self.specification


def compare(old: Record, new: Record) -> list[Change]:
    """Return all changes from ``old`` to ``new``, in the order of ``new``. Removed specifications come last."""
    olds, news = old["specifications"], new["specifications"]
    changes: list[Change] = []
    for name, now in news.items():
        if name in olds:
            changes += _Comparison(name, now["role"], olds[name]["members"], now["members"]).changes()
        else:
            changes.append(Change(name, "", "added", "", name, "is new"))
    gone = [name for name in olds if name not in news]
    return [*changes, *(Change(name, "", "removed", name, "", "is gone", "who uses it", "stop using it") for name in gone)]


def spell(name: str, member: Member) -> str:
    """Format a member on one line: ``name(parameters) -> type``, ``name -> type`` for a property, ``name: type = default`` for data."""
    default = f" = {member['default']}" if "default" in member else ""
    if "parameters" not in member:
        return f"{name}: {member['type']}{default}" if "type" in member else f"{name}{default}"
    if member["form"] == "property":
        return f"{name} -> {member['returns']}"
    inside = [_spell_parameter(one) for one in member["parameters"]]
    keywords = [index for index, one in enumerate(member["parameters"]) if one.get("kind") == "keyword_only"]
    if keywords and not any(one.get("kind") == "var_positional" for one in member["parameters"]):
        inside.insert(keywords[0], "*")
    return f"{name}({', '.join(inside)}) -> {member['returns']}"


def _a(member: Member) -> str:
    return f"an {member['form']}" if member["form"] == "attribute" else f"a {member['form']}"


def _spell_parameter(parameter: Member) -> str:
    stars = {"var_positional": "*", "var_keyword": "**"}.get(parameter.get("kind", ""), "")
    annotation = f": {parameter['type']}" if "type" in parameter else ""
    default = (" = " if annotation else "=") + parameter["default"] if "default" in parameter else ""
    return f"{stars}{parameter['name']}{annotation}{default}"


class _Comparison:
    """Comparison of the old and the new members of one specification."""

    def __init__(self, name: str, role: str, olds: Mapping[str, Member], news: Mapping[str, Member]) -> None:
        self._name, self._olds, self._news = name, olds, news
        self._is_data, self._is_given = role in ("made", "given"), role == "given"
        self._user: Concern = "who uses it" if self._is_data else "who overrides it"

    def changes(self) -> Iterator[Change]:
        renamed = self._renamed()
        for name in self._news:
            if name in self._olds:
                yield from self._differences(name)
            elif name not in renamed.values():
                yield self._added(name)
        for name in self._olds:
            if name in renamed:
                now = renamed[name]
                yield self._change(now, "renamed", f"was {name}", "who uses it", f"rename {name} to {now}", before=name)
            elif name not in self._news:
                do = "stop using it" if self._is_data else "remove it: accelkit neither calls nor provides it"
                yield self._change(name, "removed", "is gone", "who uses it", do)
        yield from self._order()

    def _change(
        self, name: str, aspect: Aspect, what: str, concerns: Concern = "nobody", what_to_do: str = "nothing", *, before: str = ""
    ) -> Change:
        then, before = self._olds.get(before or name), before or name
        now = self._news.get(name)
        old, new = spell(before, then) if then else "", spell(name, now) if now else ""
        return Change(self._name, name, aspect, old, new, what, concerns, what_to_do)

    def _renamed(self) -> dict[str, str]:
        """Return the renamed members as ``{old name: new name}``.

        A removed member counts as renamed if a new member has a similar name and is otherwise the same, for example a method with the same
        signature, or an attribute with the same type and default.
        """
        found: dict[str, str] = {}
        for name, then in self._olds.items():
            alike = [other for other, now in self._news.items() if other not in self._olds and other not in found.values() and now == then]
            if name not in self._news and (near := difflib.get_close_matches(name, alike, n=1)):
                found[name] = near[0]
        return found

    def _added(self, name: str) -> Change:
        now = self._news[name]
        is_said = "default" in now if now["form"] in ("attribute", "field") else not now.get("is_required")
        if is_said and self._is_data and not self._is_given and (following := self._fields_after(name)):
            what = f"is new, with a default, and before {', '.join(following)}"
            return self._change(name, "added", what, "who uses it", f"pass {', '.join(following)} by name")
        if is_said or self._is_given:
            return self._change(name, "added", "is new" + (", with a default" if is_said and now["form"] != "hook" else ""))
        if self._is_data:
            return self._change(name, "added", "is new, without a default", "who uses it", f"pass {name} where you create the object")
        return self._change(name, "added", "is new, without a default", "everybody", "define it")

    def _fields_after(self, name: str) -> list[str]:
        """Return the fields that come after ``name`` in the new record and are also in the old record.

        The list is empty if the member called ``name`` is not a field.
        """
        if self._news[name]["form"] != "field":
            return []
        later = list(self._news)[list(self._news).index(name) + 1 :]
        return [other for other in later if other in self._olds and self._news[other]["form"] == "field"]

    def _differences(self, name: str) -> Iterator[Change]:
        then, now = self._olds[name], self._news[name]
        if then["form"] != now["form"]:
            yield self._change(name, "form", f"was {_a(then)}, and is {_a(now)}", "who uses it", f"make it {_a(now)}")
            return
        if now.get("is_required", False) != then.get("is_required", False):
            if now.get("is_required"):
                yield self._change(name, "requirement", "no longer has a default", "who inherits it", "define it")
            else:
                yield self._change(name, "requirement", "has a default now")
        for mark, meaning in (("is_hook", "a hook, called by the names of its arguments"), ("is_first_result", "asked until one answers")):
            if now.get(mark, False) != then.get(mark, False):
                state = "is" if now.get(mark) else "is no longer"
                yield self._change(name, "marker", f"{state} {meaning}", "who overrides it", "check that it still does what you intend")
        if "parameters" in now:
            yield from self._parameters(name, then, now)
            if then["returns"] != now["returns"]:
                what = f"returns {now['returns']}, no longer {then['returns']}"
                yield self._change(name, "returns", what, self._user, f"{'expect' if self._is_data else 'return'} {now['returns']}")
            return
        if then.get("type") != now.get("type"):
            yield self._change(
                name, "type", f"is {now.get('type')}, no longer {then.get('type')}", self._user, "check that your code works with this type"
            )
        if then.get("default") != now.get("default"):
            yield self._default(name, then, now)

    def _default(self, name: str, then: Member, now: Member) -> Change:
        if "default" not in now:
            what = "no longer has a default"
            if self._is_given:
                return self._change(name, "requirement", what)
            if self._is_data:
                return self._change(name, "requirement", what, "who uses it", f"pass {name} where you create the object")
            return self._change(name, "requirement", what, "who inherits it", "define it")
        if "default" not in then:
            return self._change(name, "requirement", f"has a default now, {now['default']}")
        what = f"is {now['default']} by default, no longer {then['default']}"
        if self._is_data:
            return self._change(name, "default", what)
        return self._change(name, "default", what, "who inherits it", f"define it if you want {then['default']}")

    def _parameters(self, name: str, then: Member, now: Member) -> Iterator[Change]:
        is_by_name = now["form"] == "hook" or bool(now.get("is_hook"))
        for one in differences(then["parameters"], now["parameters"], is_by_name=is_by_name, is_called=self._is_data):
            change = self._change(name, one.aspect, one.what, one.concerns, one.what_to_do)
            yield dataclasses.replace(change, parameter=one.parameter)

    def _order(self) -> Iterator[Change]:
        """Yield a change if the order of the fields that occur in both records has changed.

        The new order breaks plugins that pass the fields by position. Yields nothing for objects that plugins only receive.
        """
        stayed = [name for name in self._olds if name in self._news and self._olds[name]["form"] == self._news[name]["form"] == "field"]
        order = [name for name in self._news if name in stayed]
        if stayed != order and not self._is_given:
            what = f"has its fields in the order {', '.join(order)}"
            yield Change(self._name, "", "parameters", ", ".join(stayed), ", ".join(order), what, "who uses it", "pass them by name")
