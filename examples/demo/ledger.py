"""The books of the demo: what was acknowledged, what was found, and whether the two agree. Pure, and without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Minutes = dict[int, tuple[int, int]]
"""Of each minute, by its first millisecond: how many orders, and what they come to in cents."""


@dataclass
class Ledger:
    """What brokers have acknowledged, by what must become of it."""

    minutes: Minutes = field(default_factory=dict)
    malformed: set[bytes] = field(default_factory=set)
    late: int = 0
    """Later than the watermark allows, each in a minute of its own."""
    closing: int = 0
    """Orders of the far future that close all minutes before them; their own minute stays open."""

    def add(self, other: Ledger) -> None:
        for minute, (count, cents) in other.minutes.items():
            self.count(minute, cents, count)
        self.malformed |= other.malformed
        self.late += other.late
        self.closing += other.closing

    def count(self, minute: int, cents: int, orders: int = 1) -> None:
        before = self.minutes.get(minute, (0, 0))
        self.minutes[minute] = (before[0] + orders, before[1] + cents)

    @property
    def orders(self) -> int:
        return sum(count for count, _ in self.minutes.values())

    @property
    def cents(self) -> int:
        return sum(cents for _, cents in self.minutes.values())

    @property
    def records(self) -> int:
        return self.orders + len(self.malformed) + self.late + self.closing


class Found(NamedTuple):
    """What is there after the pipeline has run."""

    records: int
    """In the raw topic."""
    table: list[tuple[int, int, int]]
    """Rows of the Parquet table: minute, orders, cents."""
    topic: list[tuple[int, int, int]]
    """Records of the topic of minutes; one that was written again is there twice."""
    dead_letters: list[bytes]
    dropped: int
    """How many late orders Spark says that it dropped."""


class Line(NamedTuple):
    """One entry of the proof."""

    what: str
    expected: int
    found: int

    @property
    def is_right(self) -> bool:
        return self.expected == self.found


def prove(ledger: Ledger, found: Found) -> list[Line]:
    """All lines must be right."""
    table, topic = by_minute(found.table), by_minute(found.topic)
    return [
        Line("records in the topic orders, acknowledged", ledger.records, found.records),
        Line("orders counted in the table", ledger.orders, sum(count for _, count, _ in found.table)),
        Line("their sum in cents", ledger.cents, sum(cents for _, _, cents in found.table)),
        Line("minutes in the table", len(ledger.minutes), len(table)),
        Line("minutes that are twice in the table", 0, len(found.table) - len(table)),
        Line("minutes of the table that are wrong", 0, differing(ledger.minutes, table)),
        Line("minutes in the topic, one of each key", len(ledger.minutes), len(topic)),
        Line("minutes of the topic that are wrong", 0, differing(ledger.minutes, topic)),
        Line("minutes that the topic has in two versions", 0, len(set(found.topic)) - len(topic)),
        Line("malformed, in the dead-letter topic", len(ledger.malformed), len(set(found.dead_letters))),
        Line("dead letters that are not these", 0, len(set(found.dead_letters) - ledger.malformed)),
        Line("too late, dropped by the watermark", ledger.late, found.dropped),
    ]


def by_minute(rows: Iterable[tuple[int, int, int]]) -> Minutes:
    """The last row of each minute."""
    return {minute: (count, cents) for minute, count, cents in rows}


def differing(expected: Mapping[int, tuple[int, int]], found: Mapping[int, tuple[int, int]]) -> int:
    """In how many minutes the two do not agree, those that only one of them has included."""
    return sum(expected.get(minute) != found.get(minute) for minute in {*expected, *found})
