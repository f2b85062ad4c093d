"""Pairwise covering arrays: small sets of combinations of settings.

For any two settings, every pair of their values is in at least one combination. Most faults depend on only one or two settings, so testing
all pairs detects nearly as many faults as testing all combinations (D. R. Kuhn, D. R. Wallace, A. M. Gallo, "Software fault
interactions and implications for software testing", IEEE TSE 30(6), 2004).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence


def covering_rows(
    axes: Mapping[str, Sequence[str]], is_allowed: Callable[[Mapping[str, str]], bool] = lambda row: True
) -> list[dict[str, str]]:
    """Return combinations of values, one value per axis, that together contain all pairs of values.

    For any two axes, every pair of their values is in at least one combination. Pairs and combinations for which ``is_allowed`` returns
    False are left out. ``is_allowed`` is also called with incomplete combinations. It must return True for an incomplete combination only
    if each missing axis has a value that can be added.

    The first combination has the first value of each axis. ``is_allowed`` must return True for it. The others are built greedily. Each
    starts with a pair that no earlier combination contains. For each remaining axis, the allowed value that covers the most new pairs is
    then added. The result is the same on every call.
    """
    names = list(axes)
    missing = {(one, x, other, y) for one, other in itertools.combinations(names, 2) for x in axes[one] for y in axes[other]}
    missing = {pair for pair in missing if is_allowed({pair[0]: pair[1], pair[2]: pair[3]})}
    rows: list[dict[str, str]] = []

    def pairs(row: Mapping[str, str]) -> set[tuple[str, str, str, str]]:
        return {(a, row[a], b, row[b]) for a, b in itertools.combinations(names, 2) if a in row and b in row}

    def add(row: dict[str, str]) -> None:
        for name in names:
            if name not in row:
                allowed = [value for value in axes[name] if is_allowed({**row, name: value})]
                row[name] = max(allowed, key=lambda value: len(pairs({**row, name: value}) & missing))
        missing.difference_update(pairs(row))
        rows.append({name: row[name] for name in names})

    add({name: values[0] for name, values in axes.items()})
    while missing:
        one, x, other, y = min(
            missing, key=lambda pair: (names.index(pair[0]), axes[pair[0]].index(pair[1]), names.index(pair[2]), pair[3])
        )
        add({one: x, other: y})
    return rows
