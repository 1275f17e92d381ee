"""All that is known of a run of a pipeline, gathered from its events one by one. Pure.

The same events come live from Spark and, later, from the journal, so `run` and `status` show the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidelog.pipeline.progress import BatchProgress, flow_name, parse_progress
from tidelog.types import TopicPartition

STARTED, MESSAGE, PROGRESS, ENDED = "started", "message", "progress", "ended"
_FLOW = re.compile(r"Flow (?:'(?P<quoted>[^']+)'|(?P<name>\S+)) (?:is|has) (?P<state>[A-Z]+)\b")


@dataclass
class Flow:
    """One stream of the pipeline: in which state, and how far."""

    name: str
    state: str = "QUEUED"
    batches: int = 0
    rows: int = 0
    busy_ms: int = 0
    dropped: int = 0
    last: BatchProgress | None = None

    @property
    def rows_per_s(self) -> float:
        """Of all micro-batches of this run, while they ran."""
        return self.rows * 1000 / self.busy_ms if self.busy_ms else 0.0

    @property
    def lags(self) -> dict[TopicPartition, int]:
        return self.last.lags if self.last is not None else {}

    @property
    def watermark_ms(self) -> int | None:
        return self.last.watermark_ms if self.last is not None else None


@dataclass
class Run:
    """A run from its first event on. `failure` is what it said when it failed. Without an end it runs, or died."""

    pipeline: str = ""
    master: str = ""
    pid: int = 0
    started_ms: int | None = None
    ended_ms: int | None = None
    failure: str | None = None
    flows: dict[str, Flow] = field(default_factory=dict)
    streams_started: int = 0
    """A flow that failed and was started again counts twice."""

    @property
    def state(self) -> str:
        if self.started_ms is None:
            return "NEVER RAN"
        if self.ended_ms is None:
            return "RUNNING"
        return "FAILED" if self.failure is not None else "COMPLETED"

    def flow(self, name: str) -> Flow:
        return self.flows.setdefault(name, Flow(name))

    def take(self, event: Mapping[str, Any]) -> None:
        """Events of a kind that is not known are left: a newer version may have written the journal."""
        kind = event.get("event")
        if kind == STARTED:
            self.pipeline, self.master, self.pid = event["pipeline"], event["master"], event["pid"]
            self.started_ms = event["at_ms"]
        elif kind == MESSAGE:
            self._take_message(event["text"])
        elif kind == PROGRESS:
            self._take_progress(parse_progress(event["progress"]))
        elif kind == ENDED:
            self.ended_ms, self.failure = event["at_ms"], event["failure"]

    def _take_message(self, text: str) -> None:
        if found := _FLOW.search(text):
            self.flow(flow_name(found["quoted"] or found["name"])).state = found["state"]
            self.streams_started += found["state"] == "RUNNING"

    def _take_progress(self, progress: BatchProgress) -> None:
        flow = self.flow(progress.flow)
        flow.batches += 1
        flow.rows += progress.rows
        flow.busy_ms += progress.duration_ms
        flow.dropped += progress.dropped
        flow.last = progress


def replayed(events: Iterable[Mapping[str, Any]]) -> Run:
    run = Run()
    for event in events:
        run.take(event)
    return run
