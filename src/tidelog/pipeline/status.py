"""What is known of a pipeline when it is asked for: the last run's journal, the checkpoints, and the ends of topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tidelog.pipeline.checkpoints import FlowCheckpoint
from tidelog.pipeline.display import lags_text, time_text
from tidelog.pipeline.lock import is_alive
from tidelog.pipeline.run import Flow, Run
from tidelog.types import Offset, TopicPartition


def state_of(last: Run) -> str:
    """A run whose process is gone does not run, whatever its journal says."""
    if last.state == "RUNNING" and not is_alive(last.pid):
        return "DIED"
    return last.state


def positions(last: Run, checkpoints: Iterable[FlowCheckpoint]) -> list[FlowCheckpoint]:
    """How far each flow is: by its checkpoint, or by the journal if it has none that this machine can see."""
    found = list(checkpoints)
    named = {checkpoint.flow for checkpoint in found}
    return found + [_by_journal(flow) for name, flow in last.flows.items() if name not in named]


def _by_journal(flow: Flow) -> FlowCheckpoint:
    if flow.last is None:
        return FlowCheckpoint(flow.name, -1, None, {})
    return FlowCheckpoint(flow.name, flow.last.batch, flow.last.watermark_ms, flow.last.offsets)


def status_row(last: Run, position: FlowCheckpoint, ends: Mapping[TopicPartition, Offset]) -> dict[str, Any]:
    """How far the flow is, and of the last run, if the flow was in it, what it did there."""
    flow = last.flows.get(position.flow)
    lags = {partition: ends[partition] - offset for partition, offset in position.offsets.items() if partition in ends}
    return {
        "flow": position.flow,
        "state": None if flow is None else flow.state,
        "batches": position.batch + 1,
        "rows_of_last_run": 0 if flow is None else flow.rows,
        "rows_per_s": 0 if flow is None else round(flow.rows_per_s),
        "too_late": 0 if flow is None else flow.dropped,
        "lag": sum(lags.values()) if lags else None,
        "lag_by_partition": lags_text((partition, lags.get(partition)) for partition in position.offsets),
        "watermark": time_text(position.watermark_ms),
    }
