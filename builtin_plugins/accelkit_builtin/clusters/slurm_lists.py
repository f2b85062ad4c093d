"""Parsers for SLURM's lists of nodes (``rack[1-2]node[08-11],login``), tasks (``2(x3),1``) and ports (``12000-12003``)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

_MAX_IN_RANGE = 64 * 1024  # SLURM's own limit, MAX_RANGE of hostlist.c
_MAX_IN_BRACKET = 1_000_000
_RANGE = re.compile(r"([ \t]*[0-9]{1,18})(?:([ \t]*)-([ \t]*[0-9]{1,18}))?")
_TASKS = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")
_ITEM = re.compile(r"(?:[^\[\],\s]+|\[[^\[\]]*\])+")
_PART = re.compile(r"([^\[\]]*)\[([^\[\]]*)\]")


def expand_nodes(written: str) -> Iterator[str]:
    """Return an iterator over the names in a node list, in order.

    The names are exactly those that ``scontrol show hostnames`` prints, with their leading zeros.

    Raises:
        ValueError: If ``written`` is not a node list. The error is raised before the first name is returned.
    """
    return itertools.chain.from_iterable([_names(item) for item in _items(written)])


def tasks_on(node: int, written: str) -> tuple[int, int, int]:
    """Return the number of tasks on the node with the index ``node``, the number of nodes, and the total number of tasks.

    Args:
        node: The index of the node.
        written: A list of the number of tasks on each node. ``2(x3),1`` means 2 tasks on each of three nodes, and 1 task on a fourth.

    Raises:
        ValueError: If ``written`` is not a list of this form, or lists no tasks for the node.
    """
    here, nodes, total = 0, 0, 0
    for part in written.split(","):
        if (match := _TASKS.fullmatch(part)) is None:
            raise ValueError(f"{part!r:.60} is not a number of tasks such as 2 or 2(x3)")
        tasks, repeated = int(match[1]), int(match[2] or 1)
        if nodes <= node < nodes + repeated:
            here = tasks
        nodes, total = nodes + repeated, total + tasks * repeated
    if node >= nodes or here < 1:
        raise ValueError(f"it has no number of tasks for node {node}")
    return here, nodes, total


def reserved_ports(written: str) -> Sequence[int]:
    """Return the ports in a list such as ``12000-12003,12007``, in order.

    Raises:
        ValueError: If ``written`` is not a list of ports.
    """
    ports = list(itertools.islice((port for part in written.split(",") for port in _numbers(part)[0]), _MAX_IN_RANGE))
    if not all(0 < port < 65536 for port in ports):
        raise ValueError("a port must be between 1 and 65535")
    return ports


def _items(written: str) -> list[str]:
    """Return the parts of ``written`` that are separated by commas or white space outside brackets."""
    items, position = [], 0
    while position < len(written):
        if written[position] in ", \t\n":
            position += 1
        elif match := _ITEM.match(written, position):
            items.append(match[0])
            position = match.end()
        else:
            raise ValueError(f"unbalanced brackets: {written[position:]!r:.60}")
    return items


def _names(item: str) -> Iterator[str]:
    """Return the names that an item with brackets stands for, in the order in which scontrol prints them.

    The number in the last bracket varies fastest, then the number in the first bracket, then the number in the second, and so on. This is
    scontrol's order: ``a[1-2]b[1-2]c[1-2]`` begins with ``a1b1c1``, ``a1b1c2``, ``a2b1c1``.
    """
    parts, end = [], 0
    for match in _PART.finditer(item):
        numbers = [_numbers(part) for part in match[2].split(",")]
        if sum(len(range_) for range_, _ in numbers) > _MAX_IN_BRACKET:
            raise ValueError(f"a bracket contains more than {_MAX_IN_BRACKET} names")
        parts.append([f"{match[1]}{number:0{width}}" for range_, width in numbers for number in range_])
        end = match.end()
    if parts and end < len(item):
        raise ValueError(f"{item[end:]!r:.60} follows a bracket")  # scontrol rejects this too
    if not parts:
        return iter([item])
    counted = itertools.product(*reversed(parts[:-1]), parts[-1])
    return ("".join((*reversed(chosen[:-1]), chosen[-1])) for chosen in counted)


def _numbers(part: str) -> tuple[range, int]:
    """Return the numbers of a range such as ``08-11``, and the width to which they are padded with zeros.

    Blanks around the first number count as part of the width, as in scontrol.
    """
    if (match := _RANGE.fullmatch(part)) is None:
        raise ValueError(f"{part!r:.60} is not a range of numbers")
    first, last = int(match[1]), int(match[3] or match[1])
    if not first <= last < first + _MAX_IN_RANGE:
        raise ValueError(f"{part!r:.60} is not a valid range: its end is before its start, or it has more than {_MAX_IN_RANGE} numbers")
    return range(first, last + 1), len(match[1]) + len(match[2] or "")
