"""What Spark says of one micro-batch, read into what we show: rows, speed, lag per partition, watermark. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from tidelog.types import Offset, TopicPartition


class BatchProgress(NamedTuple):
    """One micro-batch of one flow."""

    flow: str
    batch: int
    rows: int
    duration_ms: int
    watermark_ms: int | None
    """Up to where event time is complete; None before there is one, or if the flow has none."""
    dropped: int
    """What came too late for the watermark. After an aggregation in the task: a group of late rows is one."""
    offsets: dict[TopicPartition, Offset]
    """Of topics: where the next micro-batch begins."""
    ends: dict[TopicPartition, Offset]
    """Of topics: where the logs ended when this one began."""

    @property
    def rows_per_s(self) -> float:
        return self.rows * 1000 / self.duration_ms if self.duration_ms > 0 else 0.0

    @property
    def lags(self) -> dict[TopicPartition, int]:
        return {partition: max(0, end - self.offsets.get(partition, 0)) for partition, end in self.ends.items()}


def parse_progress(said: Mapping[str, Any]) -> BatchProgress:
    """From the JSON of Spark's StreamingQueryProgress."""
    offsets: dict[TopicPartition, Offset] = {}
    ends: dict[TopicPartition, Offset] = {}
    for source in said.get("sources", ()):
        offsets.update(topic_offsets(source.get("endOffset")))
        ends.update(topic_offsets(source.get("latestOffset")))
    return BatchProgress(
        flow=flow_name(said.get("name") or str(said.get("id", ""))),
        batch=int(said.get("batchId", 0)),
        rows=int(said.get("numInputRows", 0)),
        duration_ms=int((said.get("durationMs") or {}).get("triggerExecution", said.get("batchDuration", 0))),
        watermark_ms=time_ms((said.get("eventTime") or {}).get("watermark")),
        dropped=sum(int(state.get("numRowsDroppedByWatermark", 0)) for state in said.get("stateOperators", ())),
        offsets=offsets,
        ends=ends,
    )


def flow_name(name: str) -> str:
    """Without the catalog and database that every flow of a pipeline has by default."""
    return name.removeprefix("spark_catalog.default.")


def topic_offsets(said: Any) -> dict[TopicPartition, Offset]:
    """{"topic": {"0": 23}}, as text or as it is; of a source that is no topic, nothing."""
    if isinstance(said, str):
        try:
            said = json.loads(said)
        except ValueError:
            return {}
    if not isinstance(said, dict):
        return {}
    return {
        TopicPartition(topic, int(number)): offset
        for topic, numbers in said.items()
        if isinstance(numbers, dict)
        for number, offset in numbers.items()
        if str(number).isdecimal() and type(offset) is int
    }


def time_ms(text: str | None) -> int | None:
    """Spark's 1970 says that there is no watermark yet."""
    if not text:
        return None
    moment = int(datetime.fromisoformat(text).timestamp() * 1000)
    return moment if moment > 0 else None
