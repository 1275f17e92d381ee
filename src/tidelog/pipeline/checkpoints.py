"""How far each flow is, as Spark's checkpoints have it: true whether or not the last run ended well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from tidelog.pipeline.progress import topic_offsets
from tidelog.types import Offset, TopicPartition

_NO_OFFSET = "-"
"""Of a source that has none yet."""
_MAX_MS = 253_402_300_800_000
"""The year 10000, which no clock can show."""


class FlowCheckpoint(NamedTuple):
    """After the last micro-batch that a flow has committed."""

    flow: str
    batch: int
    watermark_ms: int | None
    offsets: dict[TopicPartition, Offset]
    problem: str | None = None
    """What is wrong with the checkpoint, if its offsets could not be read."""


def read_checkpoints(directory: Path) -> list[FlowCheckpoint]:
    """Spark keeps DIRECTORY/<names of the target>/<flow>/<version>/; a full refresh begins the next version."""
    versions: dict[Path, int] = {}
    for commits in directory.glob("**/commits"):
        version = commits.parent
        if version.name.isdecimal():
            versions[version.parent] = max(versions.get(version.parent, 0), int(version.name))
    found = [_read(flow.name, flow / str(version)) for flow, version in sorted(versions.items())]
    return [one for one in found if one is not None]


def _read(flow: str, checkpoint: Path) -> FlowCheckpoint | None:
    """None if nothing is committed."""
    batches = [int(file.name) for file in checkpoint.glob("commits/*") if file.name.isdecimal()]
    if not batches:
        return None
    last = max(batches)
    file = checkpoint / "offsets" / str(last)
    try:
        return parse_offset_file(flow, last, file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        problem = "is missing, though its micro-batch is committed"
    except OSError as failure:
        problem = f"cannot be read: {failure.strerror}"
    except ValueError as failure:
        problem = f"is damaged: {failure}"
    return FlowCheckpoint(flow, last, None, {}, f"{file} {problem}")


def parse_offset_file(flow: str, batch: int, text: str) -> FlowCheckpoint:
    """A version, what the micro-batch knew, and then an offset for each source. ValueError if that is not there."""
    lines = text.splitlines()
    if len(lines) < 3:
        raise ValueError("it ends before the offsets")
    known = _json(lines[1])
    if not isinstance(known, dict):
        raise ValueError("its second line is not an object")
    offsets: dict[TopicPartition, Offset] = {}
    for line in lines[2:]:
        if line.strip() != _NO_OFFSET:
            offsets.update(topic_offsets(_json(line)))
    watermark_ms = known.get("batchWatermarkMs")
    is_time = isinstance(watermark_ms, int) and 0 < watermark_ms < _MAX_MS
    return FlowCheckpoint(flow, batch, watermark_ms if is_time else None, offsets)


def _json(line: str) -> Any:
    """Of a source written in Python, Spark may put the JSON into a text, which `topic_offsets` reads."""
    try:
        return json.loads(line)
    except ValueError as failure:
        raise ValueError(f"{line[:40]!r} is not JSON") from failure
