"""A sink beside a real broker: rows that come slowly, and batches above the topic's max.message.bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.kits.processkit import BrokerProcess, broker_process, wait_for
from tests.kits.sparkkit import Topics
from tidelog.client.sending import PartlyWrittenError
from tidelog.spark.options import write_options
from tidelog.spark.writing import write_batches


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path) as broker:
        yield broker


def _rows(count: int, size: int = 100) -> pa.RecordBatch:
    """Of noise, so that compression does not make it small."""
    noise = random.Random(1)
    return pa.RecordBatch.from_arrays([pa.array([noise.randbytes(size) for _ in range(count)], pa.binary())], ["value"])


def _write(topics: Topics, batches: Iterator[pa.RecordBatch], topic: str, **settings: str) -> int:
    options = {f"kafka.{name.replace('_', '.')}": value for name, value in settings.items()}
    # A name: the connections that are made later go to 127.0.0.1, as the broker says.
    options |= {"kafka.bootstrap.servers": topics.servers.replace("127.0.0.1", "localhost"), "topic": topic}
    return write_batches(write_options(options), batches).record_count


def test_edge_40_rows_are_written_while_the_task_waits_for_the_next_ones(broker: BrokerProcess) -> None:
    topics = Topics(broker)
    topic = topics.create("slow", 1)

    def batches() -> Iterator[pa.RecordBatch]:
        for end in (6000, 12_000, 18_000):
            yield _rows(6000)
            wait_for(lambda: topics.ends(topic) == {0: end}, f"{end} rows")  # noqa: B023

    assert _write(topics, batches(), topic) == 18_000


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_batches_above_the_limit_of_the_topic_are_split(broker: BrokerProcess, codec: str) -> None:
    topics = Topics(broker)
    topic = topics.create("small", 2, max_message_bytes="3000")
    assert _write(topics, iter([_rows(10_000)] * 3), topic, compression_type=codec) == 30_000
    assert sum(topics.ends(topic).values()) == 30_000
    with pytest.raises(PartlyWrittenError, match=r"1 of the 101 records .* are not written") as failure:
        _write(topics, iter([pa.concat_batches([_rows(100, 10), _rows(1, 4000)])]), topic)
    assert failure.match(r"one record makes a batch of 40\d\d bytes, and max.message.bytes of topic small is less")
    assert sum(topics.ends(topic).values()) == 30_100
