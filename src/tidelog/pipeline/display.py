"""A run as people see it: a table that changes while it runs, and stays when it ended."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from tidelog.pipeline.run import Flow, Run
from tidelog.types import TopicPartition

NONE = "-"
WIDTH_WITHOUT_TERMINAL = 200
_COLOURS = {"COMPLETED": "green", "FAILED": "red", "RUNNING": "cyan"}


def run_table(run: Run) -> Group:
    title = Text(f"pipeline {run.pipeline} on {run.master}  ")
    title.append(run.state, _COLOURS.get(run.state, ""))
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("flow", "state"):
        table.add_column(name)
    for name in ("batches", "rows", "rows/s", "too late", "lag"):
        table.add_column(name, justify="right")
    table.add_column("lag by partition")
    table.add_column("watermark")
    for flow in run.flows.values():
        table.add_row(*flow_cells(flow))
    return Group(title, table)


def flow_cells(flow: Flow) -> list[str | Text]:
    lags = flow.lags
    return [
        flow.name,
        Text(flow.state, _COLOURS.get(flow.state, "")),
        f"{flow.batches:,}",
        f"{flow.rows:,}",
        f"{flow.rows_per_s:,.0f}" if flow.batches else NONE,
        f"{flow.dropped:,}" if flow.watermark_ms is not None else NONE,
        f"{sum(lags.values()):,}" if lags else NONE,
        lags_text(lags.items()),
        time_text(flow.watermark_ms),
    ]


def lags_text(lags: Iterable[tuple[TopicPartition, int | None]]) -> str:
    """orders 0:12 1:0; a lag that is not known is a question mark."""
    by_topic: dict[str, list[str]] = {}
    for partition, lag in sorted(lags):
        by_topic.setdefault(partition.topic, []).append(f"{partition.partition}:{'?' if lag is None else lag}")
    return "  ".join(f"{topic} {' '.join(parts)}" for topic, parts in by_topic.items()) or NONE


def time_text(moment_ms: int | None) -> str:
    return NONE if moment_ms is None else f"{datetime.fromtimestamp(moment_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
