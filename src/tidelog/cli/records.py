"""Records as lines of output."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.output import put_bytes

if TYPE_CHECKING:
    from tidelog.records.kernel import Record
    from tidelog.types import TopicPartition


def as_json_line(partition: TopicPartition, record: Record) -> bytes:
    """What `tidelog produce --json` reads again."""
    row: dict[str, Any] = {
        "topic": partition.topic,
        "partition": partition.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
    }
    put_bytes(row, "key", record.key)
    put_bytes(row, "value", record.value)
    row["headers"] = []
    for name, value in record.headers:
        header: dict[str, Any] = {"key": name}
        put_bytes(header, "value", value)
        row["headers"].append(header)
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def as_text(*, keys: bool, headers: bool, offsets: bool) -> Callable[[TopicPartition, Record], bytes]:
    """The bytes of the value, and before them what was asked for, with tabs between."""

    def show(partition: TopicPartition, record: Record) -> bytes:
        fields = []
        if offsets:
            fields.append(b"%d:%d" % (partition.partition, record.offset))
        if headers:
            fields.append(_headers(record))
        if keys:
            fields.append(record.key or b"")
        return b"\t".join([*fields, record.value or b""]) + b"\n"

    return show


def from_template(template: str) -> Callable[[TopicPartition, Record], bytes]:
    r"""Fields in braces; \t and \n as a shell user types them. Bytes go through as they are."""
    text = template.replace(r"\t", "\t").replace(r"\n", "\n")

    def show(partition: TopicPartition, record: Record) -> bytes:
        try:
            line = text.format(
                topic=partition.topic,
                partition=partition.partition,
                offset=record.offset,
                timestamp=record.timestamp,
                key=_text(record.key),
                value=_text(record.value),
                headers=_text(_headers(record)),
            )
        except (KeyError, IndexError, ValueError, AttributeError) as failure:
            raise click.UsageError(
                f"--format knows {{topic}} {{partition}} {{offset}} {{timestamp}} {{key}} {{value}} {{headers}}; "
                f"not {failure}"
            ) from failure
        return line.encode("utf-8", "surrogateescape") + b"\n"

    return show


def _text(data: bytes | None) -> str:
    return "" if data is None else data.decode("utf-8", "surrogateescape")


def _headers(record: Record) -> bytes:
    return b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers)
