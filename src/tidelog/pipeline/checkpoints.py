"""How far each flow is, as Spark's checkpoints have it: true whether or not the last run ended well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from tidelog.pipeline.progress import topic_offsets
from tidelog.types import Offset, TopicPartition


class FlowCheckpoint(NamedTuple):
    """After the last micro-batch that a flow has committed."""

    flow: str
    batch: int
    watermark_ms: int | None
    offsets: dict[TopicPartition, Offset]


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
    batches = [int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdecimal()]
    if not batches:
        return None
    last = max(batches)
    return parse_offset_file(flow, last, (checkpoint / "offsets" / str(last)).read_text(encoding="utf-8"))


def parse_offset_file(flow: str, batch: int, text: str) -> FlowCheckpoint:
    """A version, what the micro-batch knew, and then an offset for each source."""
    lines = text.splitlines()
    known = json.loads(lines[1]) if len(lines) > 1 else {}
    offsets: dict[TopicPartition, Offset] = {}
    for line in lines[2:]:
        offsets.update(topic_offsets(_offsets_of(line)))
    return FlowCheckpoint(flow, batch, known.get("batchWatermarkMs") or None, offsets)


def _offsets_of(line: str) -> object:
    """Of a source written in Python, Spark may put the JSON into a text."""
    try:
        said = json.loads(line)
        return json.loads(said) if isinstance(said, str) else said
    except ValueError:
        return None
