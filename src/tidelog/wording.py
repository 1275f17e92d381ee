"""Pieces of log lines: names that clients have chosen, and lists that may be long."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

MOST_OF_NAME = 100
"""Characters of a name that a log line shows."""
MOST_LISTED = 3
"""Members of a list that a log line shows."""


def shown(text: str | None, most: int = MOST_OF_NAME) -> str:
    """A text that a client has chosen, on one line and not longer than a line can bear."""
    if text is None:
        return "-"
    cut = text[:most]
    if not cut.isprintable():
        cut = "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in cut)
    return cut if len(text) <= most else f"{cut}... ({len(text)} characters)"


def counted(count: int, noun: str) -> str:
    """`1 partition`, `2 partitions`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(items: Collection[T], text_of: Callable[[T], str] = str, most: int = MOST_LISTED) -> str:
    """The first few, and how many more there are."""
    texts = ", ".join(text_of(item) for item in islice(items, most))
    return texts if len(items) <= most else f"{texts} and {len(items) - most:,} more"


def settings_text(settings: Iterable[tuple[str, str | None]], most: int = 10) -> str:
    """` a=1, b=2`, for settings that are no secrets."""
    pairs = list(settings)
    return listed(pairs, lambda pair: f"{shown(pair[0])}={shown(pair[1])}", most)
