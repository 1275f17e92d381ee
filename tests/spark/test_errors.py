"""What a user is told when a query cannot go on, in streams and by tasks: always which option or column is meant."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kits.sparkkit import Topics, rows_of

pytestmark = pytest.mark.jvm

Read = Callable[..., Any]
DEADLINE_S = 120


def _failure(action: Callable[[], Any]) -> str:
    with pytest.raises(Exception) as failure:  # noqa: PT011
        action()
    return str(failure.value)


class Runner:
    """Runs a query over all that is there, each time from the same checkpoint."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = str(checkpoint)

    def run(self, frame: Any, form: str = "noop", **options: str) -> int:
        """How many rows it took."""
        writer = frame.writeStream.format(form).options(**options).option("checkpointLocation", self._checkpoint)
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(DEADLINE_S), "the query did not end"
        return sum(one["numInputRows"] for one in query.recentProgress)


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path / "checkpoint")


def test_options_of_a_stream(topics: Topics, name: str, stream: Read, runner: Runner) -> None:
    topics.create(name, 2)
    cases: list[tuple[str, dict[str, str]]] = [
        ("subscribe", {"subscribe": f"{name}-missing"}),
        ("assign", {"assign": json.dumps({name: [0, 2]})}),
        ("startingOffsets", {"subscribe": name, "startingOffsets": json.dumps({name: {"1": 0}})}),
        ("maxOffsetsPerTrigger", {"subscribe": name, "maxOffsetsPerTrigger": "many"}),
        ("failOnDataLoss", {"subscribe": name, "failOnDataLoss": "never"}),
        ("kafka.isolation.level", {"subscribe": name, "kafka.isolation.level": "serializable"}),
        ("kafka.enable.auto.commit", {"subscribe": name, "kafka.enable.auto.commit": "true"}),
        ("maxtriggerdelays", {"subscribe": name, "maxTriggerDelays": "1m"}),
    ]
    for option, options in cases:
        assert f"option '{option}'" in _failure(lambda: runner.run(stream(**options))), options  # noqa: B023


def test_nobody_is_named(spark: Any, name: str, runner: Runner) -> None:
    frame = spark.readStream.format("tidelog").option("subscribe", name).load()
    assert "option 'kafka.bootstrap.servers': it must be given" in _failure(lambda: runner.run(frame))


def test_columns_of_a_batch_that_is_written(spark: Any, topics: Topics, name: str) -> None:
    topics.create(name, 1)
    headers = "map('a', 'b') headers"
    cases = [
        ("value", "must be string or binary, not bigint", "id value"),
        ("value", "the sink needs a column of this name; there are key, data", "'k' key", "'v' data"),
        ("topic", "must be string, not bigint", "'v' value", "id topic"),
        ("partition", "must be int, not bigint", "'v' value", "id partition"),
        ("timestamp", "must be timestamp or timestamp_ntz, not string", "'v' value", "'today' timestamp"),
        ("headers", "must be array<struct<key:string,value:binary>>, not map<string,string>", "'v' value", headers),
    ]
    for column, why, *columns in cases:
        writer = spark.range(3).selectExpr(*columns).write.format("tidelog").mode("append")
        writer = writer.option("kafka.bootstrap.servers", topics.servers).option("topic", name)
        told = _failure(writer.save)
        assert f"option '{column}': " in told
        assert why in told
    assert topics.ends(name) == {0: 0}


def test_columns_of_a_stream_that_is_written(topics: Topics, name: str, stream: Read, runner: Runner) -> None:
    topics.create(name, 1)
    topics.fill(name, {0: 3})
    frame = stream(subscribe=name, startingOffsets="earliest")
    sink: dict[str, str | None] = {"kafka.bootstrap.servers": topics.servers, "topic": f"{name}-missing"}
    cases = [
        ("option 'value': the sink needs", frame.selectExpr("value as data"), sink),
        ("option 'key': the column of this name must be", frame.selectExpr("offset as key", "value"), sink),
        ("option 'topic': it must be given", frame.select("value"), {**sink, "topic": None}),
        (f"option 'topic': topic {name}-missing does not exist", frame.select("value"), sink),
        ("option 'kafka.compression.type'", frame.select("value"), {**sink, "kafka.compression.type": "zip"}),
    ]
    for why, rows, options in cases:
        given = {option: value for option, value in options.items() if value is not None}
        assert why in _failure(lambda: runner.run(rows, "tidelog", **given)), why  # noqa: B023


def test_a_batch_of_what_was_deleted(topics: Topics, name: str, batch: Read) -> None:
    topics.create(name, 1)
    topics.fill(name, {0: 10})
    topics.delete_before(name, 0, 6)
    options = {"subscribe": name, "startingOffsets": json.dumps({name: {"0": 3}})}
    told = _failure(lambda: batch(**options).collect())
    assert f"{name}-0 begins at offset 6, and 3 was to be read next" in told
    assert "option 'failOnDataLoss'" in told
    kept = batch(**options, failOnDataLoss="false")
    assert rows_of(kept, "offset") == [(6,), (7,), (8,), (9,)]


def test_deleted_behind_a_checkpoint(topics: Topics, name: str, stream: Read, runner: Runner) -> None:
    """A query that is away for longer than the topic keeps its records is told so when it comes back."""
    topics.create(name, 1)
    topics.fill(name, {0: 4})
    options = {"subscribe": name, "startingOffsets": "earliest"}
    assert runner.run(stream(**options)) == 4
    topics.fill(name, {0: 6}, start=4)
    topics.delete_before(name, 0, 7)
    told = _failure(lambda: runner.run(stream(**options)))
    assert f"{name}-0 begins at offset 7, and 4 was to be read next" in told
    assert "option 'failOnDataLoss'" in told
    assert runner.run(stream(**options, failOnDataLoss="false")) == 3
