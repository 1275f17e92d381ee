"""The orders of the demo, made by a seed: the same seed makes the same orders, byte for byte. Pure.

Event time runs at ORDERS_PER_EVENT_S orders a second. Orders come out of order and late, but within the ten minutes
that the pipeline's watermark allows; a few are marked and come an hour and more too late; a few are no orders at all.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from examples.demo.ledger import Ledger

PARTITIONS = 6
PER_CHUNK = 5_000
ORDERS_PER_EVENT_S = 500
BASE_MS = 1_700_000_040_000
"""A whole minute."""
MINUTE_MS = 60_000

_JITTER_MS = 5_000
_LATE_SHARE = 0.02
_LATE_WITHIN_MS = 60_000
_MALFORMED_SHARE = 0.0001
_TOO_LATE_MS = 3_600_000
_DAY_MS = 86_400_000
_DIGITS = 20


class Packet(NamedTuple):
    """Records for one partition, acknowledged together or not at all, and what they put into the books."""

    partition: int
    records: list[tuple[bytes, bytes]]
    ledger: Ledger


class Plan(NamedTuple):
    """What is sent: `orders` of them, then the one that closes the last minute."""

    orders: int
    seed: int

    @property
    def chunks(self) -> int:
        return -(-self.orders // PER_CHUNK)

    @property
    def too_late(self) -> int:
        """How many come later than the watermark allows."""
        return max(1, self.orders // 20_000)

    def chunk(self, number: int) -> list[Packet]:
        """Orders that follow each other, a packet for each partition."""
        chance = random.Random(self.seed << _DIGITS | number)
        packets = [Packet(partition, [], Ledger()) for partition in range(PARTITIONS)]
        first = number * PER_CHUNK
        for order in range(first, min(first + PER_CHUNK, self.orders)):
            _put_order(packets[order % PARTITIONS], order, chance)
        return [packet for packet in packets if packet.records]

    def late_packets(self) -> Iterator[Packet]:
        """One marked order each, in a minute of its own, so that Spark counts each that it drops."""
        for index in range(self.too_late):
            ts = BASE_MS - _TOO_LATE_MS - index * MINUTE_MS
            value = b'{"order": %d, "ts": %d, "amount_cents": 1, "late": true}' % (self.orders + index, ts)
            yield Packet(index % PARTITIONS, [(b"late-%d" % index, value)], Ledger(late=1))

    def closing_packet(self) -> Packet:
        """An order of the next day: with it the watermark passes all minutes before."""
        ts = BASE_MS + self.orders * 1000 // ORDERS_PER_EVENT_S + _DAY_MS
        value = b'{"order": %d, "ts": %d, "amount_cents": 0}' % (self.orders + self.too_late, ts)
        return Packet(0, [(b"closing", value)], Ledger(closing=1))


def _put_order(packet: Packet, order: int, chance: random.Random) -> None:
    behind_ms = int(chance.random() * _JITTER_MS)
    if chance.random() < _LATE_SHARE:
        behind_ms += int(chance.random() * _LATE_WITHIN_MS)
    ts = BASE_MS + order * 1000 // ORDERS_PER_EVENT_S - behind_ms
    cents = 100 + int(chance.random() * 20_000)
    value = b'{"order": %d, "ts": %d, "amount_cents": %d}' % (order, ts, cents)
    if chance.random() < _MALFORMED_SHARE:
        value = value[: value.index(b"amount")]
        packet.ledger.malformed.add(value)
    else:
        packet.ledger.count(ts - ts % MINUTE_MS, cents)
    packet.records.append((b"customer-%d" % (order * 7919 % 10_007), value))
