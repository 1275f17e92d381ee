"""Streaming reads: checkpoints, limits, Trigger.AvailableNow, new partitions, lost data, and the lag of a group."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kits.processkit import wait_for
from tests.kits.sparkkit import Topics
from tidelog.spark.offsets import from_json
from tidelog.types import TopicPartition

pytestmark = pytest.mark.jvm

Read = Callable[..., Any]
DEADLINE_S = 120


@pytest.fixture
def reading(directly: dict[str, str]) -> dict[str, str]:
    return directly


class Collected:
    """What a query gave, by micro-batch; a batch that was run twice counts once."""

    def __init__(self, directory: Path) -> None:
        self.checkpoint = str(directory / "checkpoint")
        self.batches: dict[int, list[tuple[int, int]]] = {}

    def start(self, frame: Any, **trigger: Any) -> Any:
        def take(rows: Any, batch_id: int) -> None:
            found = rows.select("partition", "offset").collect()
            self.batches[batch_id] = sorted((row["partition"], row["offset"]) for row in found)

        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", self.checkpoint)
        return writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()

    def run(self, frame: Any) -> list[tuple[int, int]]:
        """All that is there now."""
        query = self.start(frame, availableNow=True)
        assert query.awaitTermination(DEADLINE_S), "the query did not end"
        return self.rows

    @property
    def rows(self) -> list[tuple[int, int]]:
        return sorted(row for rows in self.batches.values() for row in rows)


@pytest.fixture
def collected(tmp_path: Path) -> Collected:
    return Collected(tmp_path)


def _all(partition: int, start: int, end: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(start, end)]


def test_available_now_and_on_from_the_checkpoint(
    topics: Topics, name: str, stream: Read, collected: Collected
) -> None:
    topics.create(name, 2)
    topics.fill(name, {0: 10, 1: 4})
    frame = stream(subscribe=name, startingOffsets="earliest")
    assert collected.run(frame) == _all(0, 0, 10) + _all(1, 0, 4)
    assert collected.run(frame) == _all(0, 0, 10) + _all(1, 0, 4)
    topics.fill(name, {1: 3}, start=4)
    assert collected.run(frame) == _all(0, 0, 10) + _all(1, 0, 7)
    logged = (Path(collected.checkpoint) / "offsets" / "0").read_text().splitlines()[-1]
    assert from_json(json.loads(logged)) == {TopicPartition(name, 0): 10, TopicPartition(name, 1): 4}


def test_a_limit_is_split_in_proportion(topics: Topics, name: str, stream: Read, collected: Collected) -> None:
    topics.create(name, 2)
    topics.fill(name, {0: 60, 1: 20})
    frame = stream(subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    assert collected.run(frame) == _all(0, 0, 60) + _all(1, 0, 20)
    assert collected.batches[0] == _all(0, 0, 15) + _all(1, 0, 5)
    assert [len(rows) for rows in collected.batches.values()] == [20, 20, 20, 20]


def test_a_stream_starts_at_latest_and_follows(topics: Topics, name: str, stream: Read, collected: Collected) -> None:
    topics.create(name, 2)
    topics.fill(name, {0: 5, 1: 5})
    query = collected.start(stream(subscribe=name))
    try:
        query.processAllAvailable()
        assert collected.rows == []
        topics.fill(name, {0: 2}, start=5)
        query.processAllAvailable()
        assert collected.rows == _all(0, 5, 7)
        topics.add_partitions(name, 3)
        topics.fill(name, {2: 3})
        wait_for(lambda: len(collected.rows) == 5, "the records of the new partition")
        assert collected.rows == _all(0, 5, 7) + _all(2, 0, 3)
        ends = {name: {"0": 7, "1": 5, "2": 3}}
        wait_for(lambda: json.loads(query.lastProgress["sources"][0]["latestOffset"]) == ends, "the latest offsets")
    finally:
        query.stop()


def test_too_little_is_waited_for(topics: Topics, name: str, stream: Read, collected: Collected) -> None:
    topics.create(name, 1)
    topics.fill(name, {0: 1})
    frame = stream(subscribe=name, startingOffsets="earliest", minOffsetsPerTrigger="10", maxTriggerDelay="1h")
    query = collected.start(frame)
    try:
        wait_for(lambda: len(collected.rows) == 1, "the first micro-batch, which does not wait")
        topics.fill(name, {0: 4}, start=1)
        wait_for(lambda: topics.ends(name) == {0: 5}, "the records")
        topics.fill(name, {0: 7}, start=5)
        wait_for(lambda: len(collected.rows) == 12, "enough for a second micro-batch")
        assert collected.batches == {0: _all(0, 0, 1), 1: _all(0, 1, 12)}
    finally:
        query.stop()
    topics.fill(name, {0: 2}, start=12)
    assert collected.run(frame) == _all(0, 0, 14)


def test_progress_is_the_lag_of_a_group(topics: Topics, name: str, stream: Read, collected: Collected) -> None:
    topics.create(name, 2)
    topics.fill(name, {0: 30, 1: 10})
    group = f"{name}-query"
    frame = stream(subscribe=name, startingOffsets="earliest", maxOffsetsPerTrigger="8", group=group)
    assert len(collected.run(frame)) == 40
    lags = {TopicPartition(name, 0): 0, TopicPartition(name, 1): 0}
    assert topics.lag(group) == lags
    topics.fill(name, {1: 6}, start=10)
    assert topics.lag(group) == {**lags, TopicPartition(name, 1): 6}
    query = collected.start(frame)
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert topics.lag(group) == lags


def test_a_batch_that_failed_is_no_progress(topics: Topics, name: str, stream: Read, collected: Collected) -> None:
    """Nor is it when it is run again, from the checkpoint, and fails again."""
    topics.create(name, 1)
    topics.fill(name, {0: 4})

    def fail(rows: Any, batch_id: int) -> None:
        assert rows.count() == 4
        raise RuntimeError("the sink is broken")

    frame = stream(subscribe=name, startingOffsets="earliest", group=f"{name}-query")
    for _ in range(2):
        writer = frame.writeStream.foreachBatch(fail).option("checkpointLocation", collected.checkpoint)
        query = writer.trigger(availableNow=True).start()
        with pytest.raises(Exception, match="the sink is broken"):
            query.awaitTermination(DEADLINE_S)
        assert topics.lag(f"{name}-query") == {TopicPartition(name, 0): 4}
    assert collected.run(frame) == _all(0, 0, 4)
    assert topics.lag(f"{name}-query") == {TopicPartition(name, 0): 0}


def _failure(query: Any) -> str:
    with pytest.raises(Exception) as failure:  # noqa: PT011
        query.awaitTermination(DEADLINE_S)
    return str(failure.value)


def test_deleted_records_are_lost(topics: Topics, name: str, stream: Read, collected: Collected) -> None:
    topics.create(name, 1)
    topics.fill(name, {0: 10})
    options = {"subscribe": name, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "4"}
    first = json.dumps({name: {"0": 2}})
    topics.delete_before(name, 0, 6)
    failure = _failure(collected.start(stream(**{**options, "startingOffsets": first}), availableNow=True))
    assert "begins at offset 6" in failure
    assert "failOnDataLoss" in failure
    allowed = {**options, "startingOffsets": first, "failOnDataLoss": "false"}
    assert collected.run(stream(**allowed)) == _all(0, 6, 10)


def test_a_deleted_topic_is_lost(topics: Topics, name: str, stream: Read, collected: Collected) -> None:
    other = f"{name}-other"
    for topic in (name, other):
        topics.create(topic, 1)
        topics.fill(topic, {0: 3})
    pattern = {"subscribePattern": f"{name}.*", "startingOffsets": "earliest"}
    assert len(collected.run(stream(**pattern))) == 6
    topics.delete(other)
    topics.fill(name, {0: 1}, start=3)
    failure = _failure(collected.start(stream(**pattern), availableNow=True))
    assert f"{other}-0 is gone" in failure
    assert "failOnDataLoss" in failure
    assert collected.run(stream(**pattern, failOnDataLoss="false"))[-1] == (0, 3)


def test_a_topic_made_anew_is_lost(topics: Topics, name: str, stream: Read, collected: Collected) -> None:
    options = {"subscribe": name, "startingOffsets": "earliest", "fetchOffset.numRetries": "1"}
    topics.create(name, 1)
    topics.fill(name, {0: 5})
    assert len(collected.run(stream(**options))) == 5
    topics.delete(name)
    topics.create(name, 1)
    topics.fill(name, {0: 2})
    failure = _failure(collected.start(stream(**options), availableNow=True))
    assert f"from offset 5 on: topic {name} was deleted and made again" in failure
    assert "failOnDataLoss" in failure
    collected.run(stream(**options, failOnDataLoss="false"))
    assert list(collected.batches.values()) == [_all(0, 0, 5), _all(0, 0, 2)]
    topics.fill(name, {0: 1}, start=2)
    collected.run(stream(**options))
    assert list(collected.batches.values()) == [_all(0, 0, 5), _all(0, 0, 2), _all(0, 2, 3)]
