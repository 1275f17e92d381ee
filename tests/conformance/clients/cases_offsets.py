"""Cases about where a consumer starts, what offsets the broker names, and waiting for records."""

from __future__ import annotations

import time
from typing import Any

from cases import Table
from cases_records import some_records
from driver import (
    DEADLINE_S,
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_TOPIC_OR_PARTITION,
    Reading,
    Record,
)
from scene import Scene, now_ms

TABLE = Table()
_HOUR_MS = 3_600_000
_QUIET_S = 0.5
_BETWEEN_S = 0.1
_LONG_MS = 10_000


def _fed(scene: Scene[Any], count: int = 10) -> str:
    topic = scene.topic()
    scene.feed(topic, some_records(count))
    return topic


def _timed(scene: Scene[Any]) -> tuple[str, int]:
    """Ten records a second apart, each in a batch of its own; the timestamp of the first."""
    topic = scene.topic()
    base = now_ms() - _HOUR_MS
    for index in range(10):
        scene.feed(topic, [Record(None, b"%d" % index, timestamp=base + 1000 * index)])
    return topic, base


@TABLE.case("Consuming", "from a given offset")
def consume_from_offset(scene: Scene[Any]) -> None:
    topic = _fed(scene)
    assert [record.offset for record in scene.client.consume([(topic, 0, 7)], 3)] == [7, 8, 9]


@TABLE.case("Consuming", "from the earliest offset, which need not be 0")
def consume_from_earliest(scene: Scene[Any]) -> None:
    topic = _fed(scene)
    scene.delete_records(topic, before=4)
    assert [record.offset for record in scene.client.consume([(topic, 0, EARLIEST)], 6)] == [4, 5, 6, 7, 8, 9]


@TABLE.case("Consuming", "from the latest offset: only what comes later")
def consume_from_latest(scene: Scene[Any]) -> None:
    topic = _fed(scene)
    result = scene.beside(lambda: scene.client.consume([(topic, 0, LATEST)], 1))
    while not result.done():
        scene.feed(topic, [Record(None, b"later")])
        time.sleep(_BETWEEN_S)
    assert all(record.offset >= 10 and record.value == b"later" for record in result.result())


@TABLE.case("Consuming", "a waiting fetch is answered as soon as a record comes")
def long_poll(scene: Scene[Any]) -> None:
    topic = scene.topic()
    result = scene.beside(lambda: scene.client.consume([(topic, 0, 0)], 1, Reading(max_wait_ms=_LONG_MS)))
    time.sleep(_QUIET_S)
    scene.feed(topic, [Record(None, b"now")])
    fed_at = now_ms()
    (record,) = result.result(DEADLINE_S)
    assert record.value == b"now"
    assert now_ms() - fed_at < _LONG_MS / 2


@TABLE.case("Consuming", "fetches smaller than a batch still make progress")
def small_fetches(scene: Scene[Any]) -> None:
    topic = scene.topic()
    for _ in range(3):
        scene.feed(topic, some_records(10, size=2000))
    found = scene.client.consume([(topic, 0, 0)], 30, Reading(max_bytes=1000))
    assert [record.offset for record in found] == list(range(30))


@TABLE.case("Consuming", "read_committed sees what no transaction holds back")
def read_committed(scene: Scene[Any]) -> None:
    topic = _fed(scene)
    found = scene.client.consume([(topic, 0, EARLIEST)], 10, Reading(isolation="read_committed"))
    assert [record.offset for record in found] == list(range(10))


@TABLE.case("Consuming", "an offset out of range is reset to the earliest")
def reset_to_earliest(scene: Scene[Any]) -> None:
    topic = _fed(scene)
    found = scene.client.consume([(topic, 0, 1000)], 10, Reading(reset="earliest"))
    assert [record.offset for record in found] == list(range(10))


@TABLE.case("Errors", "consume from an offset out of range")
def offset_out_of_range(scene: Scene[Any]) -> None:
    topic = _fed(scene)
    scene.fails(OFFSET_OUT_OF_RANGE, lambda: scene.client.consume([(topic, 0, 1000)], 1))


@TABLE.case("Errors", "consume from an unknown topic")
def consume_from_unknown_topic(scene: Scene[Any]) -> None:
    scene.fails(UNKNOWN_TOPIC_OR_PARTITION, lambda: scene.client.consume([("nobody-made-this", 0, 0)], 1))


@TABLE.case("Offsets", "first and next offset")
def earliest_and_latest(scene: Scene[Any]) -> None:
    topic = _fed(scene)
    scene.delete_records(topic, before=3)
    assert scene.client.list_offsets(topic, 0, EARLIEST).offset == 3
    assert scene.client.list_offsets(topic, 0, LATEST).offset == 10


@TABLE.case("Offsets", "by timestamp: the first record at or after it, or none")
def offset_by_timestamp(scene: Scene[Any]) -> None:
    topic, base = _timed(scene)
    assert scene.client.list_offsets(topic, 0, base + 2500).offset == 3
    assert scene.client.list_offsets(topic, 0, base + 3000).offset == 3
    assert scene.client.list_offsets(topic, 0, base - 5).offset == 0


@TABLE.case("Offsets", "by a timestamp after the last record: none, or the end")
def offset_by_late_timestamp(scene: Scene[Any]) -> None:
    topic, base = _timed(scene)
    assert scene.client.list_offsets(topic, 0, base + 60_000).offset in (-1, 10)


@TABLE.case("Offsets", "the record with the greatest timestamp")
def offset_of_max_timestamp(scene: Scene[Any]) -> None:
    topic = scene.topic()
    base = now_ms() - _HOUR_MS
    scene.feed(topic, [Record(None, b"v", timestamp=base + ms) for ms in (5, 9, 1)])
    found = scene.client.list_offsets(topic, 0, MAX_TIMESTAMP)
    assert (found.offset, found.timestamp) == (1, base + 9)


@TABLE.case("Errors", "offsets of an unknown topic")
def offsets_of_unknown_topic(scene: Scene[Any]) -> None:
    scene.fails(UNKNOWN_TOPIC_OR_PARTITION, lambda: scene.client.list_offsets("nobody-made-this", 0, LATEST))
