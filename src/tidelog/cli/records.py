"""Records as lines of output."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from string import Formatter
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from tidelog.cli.output import put_bytes
from tidelog.cli.since import iso_time

if TYPE_CHECKING:
    from tidelog.records.kernel import Record
    from tidelog.types import TopicPartition

    Show: TypeAlias = Callable[[TopicPartition, Record], bytes]

_FIELDS = "{topic} {partition} {offset} {timestamp} {time} {key} {value} {headers}"
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f]")
"""What a terminal may take for a command; a tab is harmless."""


def as_object(record: Record) -> dict[str, Any]:
    """A record in JSON, wherever a command shows one."""
    row: dict[str, Any] = {"offset": record.offset, "timestamp": record.timestamp}
    put_bytes(row, "key", record.key)
    put_bytes(row, "value", record.value)
    row["headers"] = []
    for name, value in record.headers:
        header: dict[str, Any] = {"key": name}
        put_bytes(header, "value", value)
        row["headers"].append(header)
    return row


def as_json_line(*, escape: bool) -> Show:
    """What `tidelog produce --json` reads again."""

    def show(partition: TopicPartition, record: Record) -> bytes:
        row = {"topic": partition.topic, "partition": partition.partition, **as_object(record)}
        text = json.dumps(row, ensure_ascii=False)
        if escape:
            text = _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
        return text.encode("utf-8", "surrogatepass") + b"\n"

    return show


def as_text(*, keys: bool, headers: bool, offsets: bool, times: bool, topics: bool, escape: bool) -> Show:
    """The bytes of the value, and before them what was asked for, with tabs between."""
    shown = _escaped if escape else bytes

    def show(partition: TopicPartition, record: Record) -> bytes:
        fields = []
        if offsets:
            where = b"%d:%d" % (partition.partition, record.offset)
            fields.append(partition.topic.encode() + b":" + where if topics else where)
        if times:
            fields.append(iso_time(record.timestamp).encode())
        if headers:
            fields.append(shown(_headers(record)))
        if keys:
            fields.append(shown(record.key or b""))
        return b"\t".join([*fields, shown(record.value or b"")]) + b"\n"

    return show


def from_template(template: str, *, escape: bool) -> Show:
    r"""Fields in braces; \t and \n as a shell user types them. A line ends once, also if the template ends it."""
    _check_template(template)
    text = template.replace(r"\t", "\t").replace(r"\n", "\n")
    text = text if text.endswith("\n") else text + "\n"
    shown = _escaped if escape else bytes

    def show(partition: TopicPartition, record: Record) -> bytes:
        fields = {
            "topic": partition.topic,
            "partition": partition.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "time": iso_time(record.timestamp),
            "key": _text(shown(record.key or b"")),
            "value": _text(shown(record.value or b"")),
            "headers": _text(shown(_headers(record))),
        }
        try:
            line = text.format(**fields)
        except (KeyError, IndexError, ValueError, AttributeError, TypeError, MemoryError, OverflowError) as failure:
            raise click.UsageError(f"--format knows {_FIELDS}; not {failure}") from failure
        return line.encode("utf-8", "surrogateescape")

    return show


def _check_template(template: str) -> None:
    """Without a field in it all lines would be the same; with half a brace there would be none."""
    try:
        has_field = any(name is not None for _, name, _, _ in Formatter().parse(template))
    except ValueError as failure:
        raise click.UsageError(
            f"--format {template!r} is not well formed: {failure}; write {{{{ for a brace"
        ) from failure
    if not has_field:
        raise click.UsageError(f"--format {template!r} has no field in it; there are {_FIELDS}")


def _escaped(data: bytes) -> bytes:
    r"""Control bytes, and what is not UTF-8, as \x1b and the like."""
    text = data.decode("utf-8", "backslashreplace")
    return _CONTROL.sub(lambda found: "\\n" if found[0] == "\n" else f"\\x{ord(found[0]):02x}", text).encode()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _headers(record: Record) -> bytes:
    return b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers)
