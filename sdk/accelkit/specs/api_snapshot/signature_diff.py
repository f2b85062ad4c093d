"""Differences between the old and the new parameters of a callable."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from accelkit.specs.api_snapshot.diff import Concern

Parameter = Mapping[str, Any]
_STARRED = ("var_positional", "var_keyword")


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """A difference between the old and the new parameters of a callable.

    Attributes:
        parameter: The new name of the parameter, or its old name if it was removed. An empty string if the order of parameters changed.
        what: The difference, as a predicate whose subject is the callable, such as ``takes step too``.
        concerns: The plugins that must change.
        what_to_do: What the authors of these plugins must do.
        aspect: ``type`` if the type of the parameter changed, otherwise ``parameters``.
    """

    parameter: str
    what: str
    concerns: Concern = "nobody"
    what_to_do: str = "nothing"
    aspect: Literal["parameters", "type"] = "parameters"


def differences(olds: Sequence[Parameter], news: Sequence[Parameter], *, is_by_name: bool, is_called: bool) -> Iterator[Difference]:
    """Yield the differences between the parameters ``olds`` and ``news``.

    Args:
        olds, news: The old and the new parameters.
        is_by_name: Whether the callable is a hook. Hooks are called with arguments passed by name, and an implementation of a hook may
            declare only some of the arguments.
        is_called: Whether plugins call the callable rather than override it.
    """
    then, now = {one["name"]: one for one in olds}, {one["name"]: one for one in news}
    renamed = {} if is_by_name else _renamed(olds, news)
    user: Concern = "who uses it" if is_called else "who overrides it"
    for name, new in now.items():
        if name in renamed.values():
            continue
        if name not in then:
            yield _added(new, is_by_name=is_by_name, is_called=is_called)
        else:
            yield from _changed(then[name], new, user, is_by_name=is_by_name, is_called=is_called)
    for name, old in then.items():
        if name in renamed:
            known = renamed[name]
            yield Difference(known, f"now calls {name} {known}", "who uses it", f"rename {name} to {known}")
            yield from _changed(old, now[known], user, is_by_name=is_by_name, is_called=is_called)
        elif name not in now:
            yield Difference(name, f"no longer has {name}", user if is_by_name else "who uses it", f"remove {name}")
    places = {old: renamed.get(old, old) for old in then}
    stayed = [places[name] for name in then if places[name] in now and _has_a_place(then[name]) and _has_a_place(now[places[name]])]
    order = [name for name in now if name in stayed]
    if stayed != order and not is_by_name:
        yield Difference(
            "", f"takes {', '.join(order)} in this order", "who uses it", f"accept and pass them in the order {', '.join(order)}"
        )


def _renamed(olds: Sequence[Parameter], news: Sequence[Parameter]) -> dict[str, str]:
    """Return the renamed parameters as ``{old name: new name}``.

    A parameter counts as renamed if a parameter of the same kind with a new name has taken its position. The result is empty if the number
    of parameters has changed.
    """
    if len(olds) != len(news):
        return {}
    known, gone = {one["name"] for one in news}, {one["name"] for one in olds}
    pairs = [(old["name"], new["name"]) for old, new in zip(olds, news, strict=True) if old.get("kind") == new.get("kind")]
    return {old: new for old, new in pairs if old not in known and new not in gone}


def _has_a_place(parameter: Parameter) -> bool:
    return parameter.get("kind") not in (*_STARRED, "keyword_only")


def _added(parameter: Parameter, *, is_by_name: bool, is_called: bool) -> Difference:
    name = parameter["name"]
    what = f"takes {name} too"
    if is_by_name:
        return Difference(name, what)
    if "default" in parameter or parameter.get("kind") in _STARRED:
        return Difference(name, what) if is_called else Difference(name, what, "who overrides it", f"accept {name} too")
    return Difference(name, what, "who uses it", f"pass {name} too" if is_called else f"accept {name} too, and pass it where you call it")


def _changed(then: Parameter, now: Parameter, user: Concern, *, is_by_name: bool, is_called: bool) -> Iterator[Difference]:
    name = now["name"]
    if then.get("type") != now.get("type"):
        what = f"takes {name} as {now.get('type', 'anything')}, no longer as {then.get('type', 'anything')}"
        yield Difference(name, what, user, f"{'pass' if is_called else 'expect'} {now.get('type', 'anything')}", "type")
    if then.get("kind") != now.get("kind") and not is_by_name:
        how = f"as {now['kind'].replace('_', ' ')}" if "kind" in now else "by position or name"
        yield Difference(name, f"takes {name} {how}", "who uses it", f"accept and pass it {how}")
    if then.get("default") != now.get("default"):
        yield _default(then, now, is_by_name=is_by_name, is_called=is_called)


def _default(then: Parameter, now: Parameter, *, is_by_name: bool, is_called: bool) -> Difference:
    name = now["name"]
    if "default" not in now:
        what = f"no longer has a default for {name}"
        return Difference(name, what) if is_by_name else Difference(name, what, "who uses it", f"pass {name} where you call it")
    what = f"takes {now['default']} for {name} by default" + (f", no longer {then['default']}" if "default" in then else "")
    if is_called or is_by_name:
        return Difference(name, what)
    return Difference(name, what, "who overrides it", f"give {name} the default {now['default']}")
