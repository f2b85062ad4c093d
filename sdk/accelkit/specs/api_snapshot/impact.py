"""Find out which changes to the specifications affect a plugin, given what its class defines and which names its code mentions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accelkit.specs.api_snapshot.diff import Change, Member
from accelkit.specs.api_snapshot.snapshot import Record

_STARRED = ("var_positional", "var_keyword")


def concerned(changes: Sequence[Change], old: Record, new: Record, kind: str, definitions: Mapping[str, Any]) -> list[Change]:
    """Return those of ``changes`` that require a plugin to change.

    Args:
        changes: The changes from ``old`` to ``new``.
        old, new: The records of the old and the new specifications (see ``snapshot.Record``).
        kind: The kind of the plugin.
        definitions: What the plugin's class defines and mentions, as returned by ``snapshot.definitions``. Code of the plugin outside this
            class and its bases is not considered.
    """
    specifications = {**old["specifications"], **new["specifications"]}
    found = []
    for change in changes:
        specification = specifications[change.specification]
        role = specification["role"]
        now = specification["members"].get(change.member, {})
        if role == "hooks" or (role == kind and change.specification in definitions["specifications"]):
            is_concerned = _as_its_own(change, now, role == "hooks", definitions)
        elif role in ("made", "given"):
            is_concerned = _as_data(change, now, role == "made", definitions["mentions"])
        else:
            is_concerned = False
        if is_concerned:
            found.append(change)
    return found


def _as_its_own(change: Change, now: Member, is_hook: bool, definitions: Mapping[str, Any]) -> bool:
    former = change.old.partition("(")[0].partition(":")[0].partition(" ")[0] if change.aspect == "renamed" else change.member
    own = definitions["members"].get(former)
    is_defined = own is not None and (own.get("is_hook", False) or not is_hook)
    if change.concerns in ("everybody", "who inherits it"):
        return not is_defined
    if change.concerns == "who overrides it":
        return is_defined and not _has_adapted(change, own, now)
    if change.concerns == "who uses it":
        return (is_defined and not _has_adapted(change, own, now)) or (not is_hook and former in definitions["mentions"])
    return False


def _as_data(change: Change, now: Member, is_made: bool, mentions: Sequence[str]) -> bool:
    """Return whether a change to a data class concerns a plugin whose code mentions the names in ``mentions``.

    A change can concern the plugin only if its ``concerns`` is ``"who uses it"``. Such a change concerns the plugin in these cases:

    - Plugins only receive instances of the class (``is_made`` is False), and the code mentions the member.
    - Plugins create instances of the class (``is_made`` is True), and the code mentions the class. If the new record contains the member
      and the member is not a field, the code must also mention the member.
    """
    if change.concerns != "who uses it":
        return False
    if not is_made:
        return change.member in mentions
    is_member_enough = now.get("form", "field") == "field"
    return change.specification in mentions and (is_member_enough or change.member in mentions)


def _has_adapted(change: Change, own: Member | None, now: Member) -> bool:
    """Return whether the plugin's own definition of the member already matches the new specification in the respect that ``change``
    describes."""
    if own is None or change.aspect in ("removed", "renamed"):
        return False
    if change.aspect == "form":
        return bool(own["form"] == now["form"])
    if change.aspect == "returns":
        return bool(own.get("returns") == now["returns"])
    if change.aspect == "type" and not change.parameter:
        return bool(own.get("type") == now.get("type"))
    if change.aspect == "type":
        return _type_of(change.parameter, own) == _type_of(change.parameter, now)
    return change.aspect == "parameters" and _takes(own, now)


def _takes(own: Member, now: Member) -> bool:
    """Return whether the plugin's method has the parameters of the specification.

    The method must have the same parameters as the specification: the same names and kinds in the same order, and defaults for the same
    parameters. An implementation of a hook, in contrast, may omit parameters of the specification, and may have additional parameters that
    have defaults.
    """
    mine, asked = own.get("parameters", []), now["parameters"]
    if now["form"] == "hook" or now.get("is_hook"):
        return {one["name"] for one in mine if "default" not in one and one.get("kind") not in _STARRED} <= {one["name"] for one in asked}
    return _spelled(mine) == _spelled(asked)


def _type_of(parameter: str, member: Member) -> str | None:
    return next((one.get("type") for one in member.get("parameters", []) if one["name"] == parameter), None)


def _spelled(parameters: Sequence[Member]) -> list[tuple[str, str | None, bool]]:
    return [(one["name"], one.get("kind"), "default" in one) for one in parameters]
