"""Things that pairs connect, as trees that know their root (union and find)."""

from collections.abc import Iterable


def groups(pairs: Iterable[tuple[int, int]], count: int) -> list[list[int]]:
    """Photos that pairs connect, each group in order, the first one's first."""
    parent = list(range(count))
    for first, second in pairs:
        join(parent, first, second)
    by_root: dict[int, list[int]] = {}
    for one in range(count):
        by_root.setdefault(root(parent, one), []).append(one)
    return [group for group in by_root.values() if len(group) > 1]


def join(parent: list[int], first: int, second: int) -> bool:
    """Makes two trees one; False where they were one already."""
    first, second = root(parent, first), root(parent, second)
    parent[max(first, second)] = min(first, second)
    return first != second


def root(parent: list[int], one: int) -> int:
    """The tree that one stands in, by its root; shortens the way for the next time."""
    while parent[one] != one:
        parent[one] = one = parent[parent[one]]
    return one
