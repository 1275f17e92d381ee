"""What is refused, by a message that names the option."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kits.processkit import free_port
from tests.kits.sparkkit import Topics

pytestmark = pytest.mark.jvm

Read = Callable[..., Any]


def _refusal(action: Callable[[], Any]) -> str:
    with pytest.raises(Exception) as failure:  # noqa: PT011
        action()
    return str(failure.value)


def test_options_of_a_batch(topics: Topics, name: str, batch: Read) -> None:
    topics.create(name, 2)
    topics.fill(name, {0: 1, 1: 1})
    cases: list[tuple[str, dict[str, str]]] = [
        ("subscribe", {}),
        ("assign", {"subscribe": name, "assign": "{}"}),
        ("subscribe", {"subscribe": f"{name}-missing"}),
        ("assign", {"assign": json.dumps({name: [7]})}),
        ("startingOffsets", {"subscribe": name, "startingOffsets": "latest"}),
        ("startingOffsets", {"subscribe": name, "startingOffsets": json.dumps({name: {"0": 0}})}),
        ("startingTimestamp", {"subscribe": name, "startingTimestamp": "99999999999999"}),
        ("kafka.auto.offset.reset", {"subscribe": name, "kafka.auto.offset.reset": "earliest"}),
        ("kafka.fetch.max.byte", {"subscribe": name, "kafka.fetch.max.byte": "9"}),
        ("directRead", {"subscribe": name, "directRead": "maybe"}),
        ("maxoffsetpertrigger", {"subscribe": name, "maxOffsetPerTrigger": "5"}),
    ]
    for option, options in cases:
        assert f"option '{option}'" in _refusal(lambda: batch(**options).count()), options  # noqa: B023


def test_an_end_behind_the_log(topics: Topics, name: str, batch: Read) -> None:
    topics.create(name, 1)
    topics.fill(name, {0: 3})
    behind = {"subscribe": name, "endingOffsets": json.dumps({name: {"0": 5}})}
    refusal = _refusal(lambda: batch(**behind).count())
    assert "endingOffsets" in refusal
    assert "failOnDataLoss" in refusal
    assert batch(**behind, failOnDataLoss="false").count() == 3


def test_nobody_answers(spark: Any) -> None:
    frame = (
        spark.read.format("tidelog")
        .option("subscribe", "t")
        .option("bootstrap.servers", f"127.0.0.1:{free_port()}")
        .option("kafka.default.api.timeout.ms", "1000")
    )
    assert "option 'kafka.bootstrap.servers': no broker answers" in _refusal(lambda: frame.load().count())


def test_a_schema_of_the_users(spark: Any, topics: Topics, name: str) -> None:
    topics.create(name, 1)
    reader = spark.read.format("tidelog").option("kafka.bootstrap.servers", topics.servers).option("subscribe", name)
    assert "option 'schema'" in _refusal(lambda: reader.schema("key string, value string").load().count())


def test_a_stream_has_no_end(topics: Topics, name: str, stream: Read, tmp_path: Path) -> None:
    topics.create(name, 1)

    def run() -> None:
        writer = stream(subscribe=name, endingOffsets="latest").writeStream.format("noop")
        query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        query.awaitTermination(60)

    assert "option 'endingOffsets'" in _refusal(run)


def test_a_group_that_has_members(topics: Topics, name: str, stream: Read, tmp_path: Path) -> None:
    """Its members own its offsets."""
    import confluent_kafka

    topics.create(name, 1)
    member = confluent_kafka.Consumer({"bootstrap.servers": topics.servers, "group.id": f"{name}-members"})
    member.subscribe([name])
    try:
        for _ in range(100):
            member.poll(0.1)
            if member.assignment():
                break
        assert member.assignment()
        writer = stream(subscribe=name, group=f"{name}-members").writeStream.format("noop")
        query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        assert "option 'group'" in _refusal(lambda: query.awaitTermination(60))
    finally:
        member.close()
