"""That Spark finds us, writes, reads and streams: the one test of Spark that `make test` runs, where there is Java."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kits.sparkkit import Topics, rows_of

pytestmark = pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java")


def test_rows_go_to_a_topic_and_come_back(
    spark: Any, topics: Topics, name: str, batch: Callable[..., Any], stream: Callable[..., Any], tmp_path: Path
) -> None:
    topics.create(name, 2, segment_bytes="2000")
    frame = spark.range(300).selectExpr("cast(id as string) key", "concat('v', id) value")
    writer = frame.write.format("tidelog").option("kafka.bootstrap.servers", topics.servers).option("topic", name)
    writer.mode("append").save()
    rows = rows_of(batch(subscribe=name, directRead="true"), "partition", "offset", "key", "value")
    assert sorted((key, value) for _, _, key, value in rows) == sorted((b"%d" % n, b"v%d" % n) for n in range(300))
    parquet, checkpoint = str(tmp_path / "table"), str(tmp_path / "checkpoint")
    query = stream(subscribe=name, startingOffsets="earliest").writeStream.format("parquet").option("path", parquet)
    running = query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert running.awaitTermination(120)
    assert rows_of(spark.read.parquet(parquet), "partition", "offset", "key", "value") == rows
