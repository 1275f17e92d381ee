"""What the pipeline has made, read without Spark: the Parquet table and the topics."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq

from tidelog.client.cluster import Cluster
from tidelog.client.fetch import Fetcher
from tidelog.client.offsets import start_and_end
from tidelog.records.batch import decode
from tidelog.types import TopicPartition

Row = tuple[int, int, int]


def table_files(table: Path) -> list[Path]:
    """Those that Spark has committed: a task that failed may have left others."""
    found: dict[str, Path] = {}
    for log in sorted((table / "_spark_metadata").iterdir()):
        if log.name.startswith("."):
            continue
        for line in log.read_text(encoding="utf-8").splitlines()[1:]:
            path = unquote(urlparse(json.loads(line)["path"]).path)
            found[path] = Path(path)
    return list(found.values())


def table_rows(table: Path) -> list[Row]:
    rows: list[Row] = []
    for file in table_files(table):
        for row in pq.read_table(file).to_pylist():
            rows.append((int(row["minute"].timestamp() * 1000), row["orders"], row["amount_cents"]))
    return sorted(rows)


def minute_of(value: bytes) -> Row:
    """From a record of the topic of minutes."""
    said = json.loads(value)
    minute = datetime.fromisoformat(said["minute"]).astimezone(UTC)
    return int(minute.timestamp() * 1000), said["orders"], said["amount_cents"]


async def topic_values(cluster: Cluster, topic: str) -> list[bytes]:
    """All of them, from the first to the last."""
    partitions = [TopicPartition(topic, number) for number in (await cluster.topic(topic, fresh=True)).partitions]
    bounds = await start_and_end(cluster, partitions)
    # What was handed out, not `position`: the fetcher reads ahead.
    left = {partition: end for partition, (start, end) in bounds.items() if start < end}
    fetcher = Fetcher(cluster, {partition: start for partition, (start, _) in bounds.items()})
    values: list[bytes] = []
    while left:
        for fetched in await fetcher.next():
            values += [bytes(record.value) for record in decode(fetched.records) if record.value is not None]
            if fetched.next_offset >= left.get(fetched.partition, 0):
                left.pop(fetched.partition, None)
    fetcher.close()
    return values


async def record_count(cluster: Cluster, topic: str) -> int:
    partitions = [TopicPartition(topic, number) for number in (await cluster.topic(topic, fresh=True)).partitions]
    return sum(end - start for start, end in (await start_and_end(cluster, partitions)).values())
