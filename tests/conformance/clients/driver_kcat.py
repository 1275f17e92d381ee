"""kcat as a driver: one process per call, records through its standard streams."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, ClassVar

import cases_admin
from driver import (
    EARLIEST,
    LATEST,
    MESSAGE_TOO_LARGE,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_TOPIC_OR_PARTITION,
    ClientError,
    Driver,
    Listed,
    Partition,
    Place,
    Reading,
    Record,
    Sending,
    partitions_of,
)

from peers import kcat

_CODES = {
    "Unknown topic": UNKNOWN_TOPIC_OR_PARTITION,
    "Unknown partition": UNKNOWN_TOPIC_OR_PARTITION,
    "Message size too large": MESSAGE_TOO_LARGE,
    "Offset out of range": OFFSET_OUT_OF_RANGE,
}
_NO_ADMIN = "kcat has no admin calls"
_METADATA = ("list-topics", "describe-unknown-topic")
_FORMAT = "%o %T %p %K %S\\n%k%s\\n%h\\n"
_KEY_ENDS, _RECORD_ENDS = b"\x1f", b"\x1e"


class Kcat(Driver):
    name: ClassVar[str] = "kcat"
    lacks: ClassVar[Mapping[str, str]] = {
        "create-time": "kcat does not set timestamps",
        "offset-by-timestamp": "kcat does not set timestamps",
        "log-append-time": "kcat does not show the type of a timestamp",
        "offset-of-max-timestamp": "kcat does not ask for it",
        "hundred-partitions": "kcat writes to one partition and reads one topic",
        "many-topics": "kcat reads one topic",
        "null-header": "kcat's headers have values",
        **{case.id: _NO_ADMIN for case in cases_admin.TABLE.cases if case.id not in _METADATA},
    }

    def version(self) -> str:
        return kcat.version()

    def _run(self, arguments: list[str], given: bytes | None = None) -> bytes:
        done = kcat.run(["-b", self.bootstrap, *arguments], given)
        if done.returncode != 0 or b"Delivery failed" in done.stderr:
            raise _error(done)
        return done.stdout

    def produce(self, topic: str, records: Sequence[Record], sending: Sending = Sending()) -> list[int]:  # noqa: B008
        settings = {
            "acks": sending.acks,
            "enable.idempotence": str(sending.idempotent).lower(),
            "linger.ms": sending.linger_ms,
            "message.max.bytes": 4_000_000,
            "topic.metadata.propagation.max.ms": 1000,
        }
        options = [option for name, value in settings.items() for option in ("-X", f"{name}={value}")]
        for group in _alike(records):
            first = group[0]
            arguments = ["-P", "-t", topic, "-p", str(first.partition), "-z", sending.codec, *options]
            for name, value in first.headers:
                assert value is not None
                arguments += ["-H", f"{name}={value.decode()}"]
            if first.value is None:
                arguments.append("-Z")
            self._write(arguments, group)
        return [-1] * len(records)

    def _write(self, arguments: list[str], records: list[Record]) -> None:
        """A single record without a key is given as a file: it may hold any byte."""
        if records[0].key is not None:
            lines = [(record.key or b"") + _KEY_ENDS + (record.value or b"") for record in records]
            delimiters = ["-K", _KEY_ENDS.decode(), "-D", _RECORD_ENDS.decode()]
            self._run([*arguments, *delimiters], _RECORD_ENDS.join(lines))
        elif len(records) == 1:
            with tempfile.NamedTemporaryFile() as file:
                Path(file.name).write_bytes(records[0].value or b"")
                self._run([*arguments, file.name])
        else:
            lines = [record.value or b"" for record in records]
            self._run([*arguments, "-D", _RECORD_ENDS.decode()], _RECORD_ENDS.join(lines))

    def consume(self, places: Sequence[Place], count: int, reading: Reading = Reading()) -> list[Record]:  # noqa: B008
        ((topic, partition, start),) = places
        settings: dict[str, Any] = {
            "auto.offset.reset": {"none": "error"}.get(reading.reset, reading.reset),
            "isolation.level": reading.isolation,
            "fetch.message.max.bytes": reading.max_bytes,
            "fetch.wait.max.ms": reading.max_wait_ms,
            "check.crcs": "true",
            "topic.metadata.propagation.max.ms": 1000,
        }
        options = [option for name, value in settings.items() for option in ("-X", f"{name}={value}")]
        place = {EARLIEST: "beginning", LATEST: "end"}.get(start, str(start))
        arguments = ["-C", "-t", topic, "-p", str(partition), "-o", place, "-c", str(count), "-f", _FORMAT]
        printed = self._run([*arguments, *options])
        return list(_records(printed, topic))

    def list_offsets(self, topic: str, partition: int, timestamp: int) -> Listed:
        printed = self._run(["-Q", "-t", f"{topic}:{partition}:{timestamp}"]).decode()
        found = re.search(r"offset (-?\d+)", printed)
        assert found is not None, printed
        return Listed(int(found[1]))

    def list_topics(self) -> list[str]:
        return [entry["topic"] for entry in json.loads(self._run(["-L", "-J"]))["topics"]]

    def describe_topic(self, topic: str) -> list[Partition]:
        (found,) = json.loads(self._run(["-L", "-J", "-t", topic]))["topics"]
        if "error" in found:
            raise ClientError(_code(found["error"]), found["error"])
        return partitions_of(
            [
                (p["partition"], p["leader"], [n["id"] for n in p["replicas"]], [n["id"] for n in p["isrs"]])
                for p in found["partitions"]
            ]
        )


def _alike(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Runs of records that one process can send: it has one set of headers and one idea of what is null."""

    def kind(record: Record) -> tuple[Any, ...]:
        return record.partition, record.headers, record.key is None, record.value is None, record.value == b""

    for _, group in groupby(records, kind):
        alike = list(group)
        yield from [alike] if alike[0].value else [[record] for record in alike]


def _records(printed: bytes, topic: str) -> Iterator[Record]:
    at = 0
    while at < len(printed):
        line, _, _ = printed[at:].partition(b"\n")
        offset, timestamp, partition, key_size, value_size = map(int, line.split())
        at += len(line) + 1
        key = printed[at : at + max(key_size, 0)]
        at += len(key)
        value = printed[at : at + max(value_size, 0)]
        at += len(value) + 1
        headers, _, _ = printed[at:].partition(b"\n")
        at += len(headers) + 1
        yield Record(
            key=None if key_size < 0 else key,
            value=None if value_size < 0 else value,
            headers=_headers(headers.decode()),
            timestamp=timestamp,
            partition=partition,
            offset=offset,
            topic=topic,
        )


def _headers(text: str) -> tuple[tuple[str, bytes | None], ...]:
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    return tuple((name, None if value == "NULL" else value.encode()) for name, _, value in pairs)


def _error(done: CompletedProcess[bytes]) -> ClientError:
    said = done.stderr.decode(errors="replace")
    return ClientError(_code(said), said)


def _code(said: str) -> int:
    return next((code for text, code in _CODES.items() if text.lower() in said.lower()), -1)
