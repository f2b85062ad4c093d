"""Sets of time intervals. A set is a sorted list of disjoint pairs ``(start, end)``, in nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[int, int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return sorted, disjoint intervals that together cover the same time as ``intervals``. The given intervals may overlap and may be in
    any order.
    """
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        elif end > start:
            merged.append((start, end))
    return merged


def subtract(whole: Sequence[Interval], parts: Sequence[Interval]) -> list[Interval]:
    """Return the time that the set ``whole`` covers and the set ``parts`` does not, as a set of intervals."""
    left: list[Interval] = []
    first = 0
    for begin, end in whole:
        start = begin
        while first < len(parts) and parts[first][1] <= start:
            first += 1
        at = first
        while at < len(parts) and parts[at][0] < end:
            if parts[at][0] > start:
                left.append((start, parts[at][0]))
            start, at = max(start, parts[at][1]), at + 1
        if end > start:
            left.append((start, end))
    return left


def clip(intervals: Sequence[Interval], whole: Sequence[Interval]) -> list[Interval]:
    """Return the time that the sets ``intervals`` and ``whole`` have in common, as a set of intervals."""
    return subtract(whole, subtract(whole, intervals))


def total(intervals: Iterable[Interval]) -> int:
    """Return the total length of the intervals of a set, in nanoseconds."""
    return sum(end - start for start, end in intervals)
