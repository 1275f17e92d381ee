"""Ranges of versions, written as Kafka writes them: `0-12`, `3+`, `4`, `none`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

_OPEN_END = 32767


class Versions:
    """All versions from `first` to `last`; none at all where first > last."""

    __slots__ = ("first", "last")

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def __bool__(self) -> bool:
        return self.first <= self.last

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Versions):
            return NotImplemented
        return (self.first, self.last) == (other.first, other.last) or not (self or other)

    def __hash__(self) -> int:
        return hash((self.first, self.last)) if self else 0

    def __repr__(self) -> str:
        return f"Versions({str(self)!r})"

    def __str__(self) -> str:
        if not self:
            return "none"
        if self.last == _OPEN_END:
            return f"{self.first}+"
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


NO_VERSIONS = Versions(0, -1)


@cache
def versions(text: str) -> Versions:
    """Read the notation; ranges are shared, for they never change."""
    if text == "none":
        return NO_VERSIONS
    if text.endswith("+"):
        return Versions(int(text[:-1]), _OPEN_END)
    first, _, last = text.partition("-")
    return Versions(int(first), int(last or first))
