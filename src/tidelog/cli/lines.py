"""Standard input, line by line, on the event loop, and what a line of it means as a record."""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import json
import os
import threading
from collections.abc import AsyncIterator
from difflib import get_close_matches
from typing import Any, BinaryIO, NamedTuple

import click

_CHUNK_BYTES = 256 * 1024
_CHUNKS_AHEAD = 4
_LARGEST = {"partition": (1 << 31) - 1, "timestamp": (1 << 63) - 1}


class LineError(click.ClickException):
    """A line that cannot become a record."""

    def __init__(self, number: int, fault: str) -> None:
        super().__init__(f"line {number}: {fault}")


class Input(NamedTuple):
    """A record as it was typed; what is None was not said, but for key and value, where it is null."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    partition: int | None = None
    timestamp: int | None = None


class TextLines(NamedTuple):
    """Lines as values, or as keys and values with a separator between them."""

    key_separator: bytes | None
    null_marker: bytes | None
    headers: list[tuple[str, bytes | None]]
    partition: int | None

    def parse(self, number: int, line: bytes) -> Input:
        key: bytes | None = None
        value = line
        if self.key_separator is not None:
            key, separator, value = line.partition(self.key_separator)
            if not separator:
                shown = self.key_separator.decode("utf-8", "backslashreplace")
                raise LineError(number, f"no key separator {shown!r} in it (see --key-separator)")
        return Input(
            None if key is None or key == self.null_marker else key,
            None if value == self.null_marker else value,
            self.headers,
            self.partition,
        )

    def longest(self, record_bytes: int) -> int:
        """The longest line that can become a record of this size."""
        return record_bytes


_FIELDS = ("key", "key_base64", "value", "value_base64", "headers", "partition", "timestamp")
_FIELDS_OF_CONSUME = ("topic", "offset")
"""`tidelog consume --json` prints these too. They say where the record was, not where it goes."""
_LONGEST_ESCAPE = 6
"""Characters that JSON may take for one byte of a text."""


class JsonLines(NamedTuple):
    """One object per line, as `tidelog consume --json` prints them. Values that are no text are written as JSON."""

    headers: list[tuple[str, bytes | None]]
    partition: int | None

    def longest(self, record_bytes: int) -> int:
        return _LONGEST_ESCAPE * record_bytes + 4096

    def parse(self, number: int, line: bytes) -> Input:
        try:
            row = json.loads(line)
            _check_fields(row)
            headers = [*self.headers, *_headers(row.get("headers"))]
            partition, timestamp = _int(row, "partition"), _int(row, "timestamp")
            key, value = _bytes(row, "key"), _bytes(row, "value")
        except json.JSONDecodeError as failure:
            raise LineError(number, f"it is not JSON: {failure}") from failure
        except RecursionError as failure:
            raise LineError(number, "its JSON is nested too deeply") from failure
        except (ValueError, TypeError) as failure:
            raise LineError(number, str(failure)) from failure
        return Input(key, value, headers, partition if self.partition is None else self.partition, timestamp)


def _check_fields(row: Any) -> None:
    """A mistyped name must not silently become a record without a value."""
    if not isinstance(row, dict):
        raise ValueError("it is not a JSON object")
    unknown = next((name for name in row if name not in _FIELDS and name not in _FIELDS_OF_CONSUME), None)
    if unknown is not None:
        near = get_close_matches(unknown, _FIELDS, 1)
        meant = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(_FIELDS)}"
        raise ValueError(f"unknown field {unknown!r}{meant}")
    for name in ("key", "value"):
        if name in row and f"{name}_base64" in row:
            raise ValueError(f"it has both {name} and {name}_base64")
    if "value" not in row and "value_base64" not in row:
        raise ValueError('it has no value; "value": null writes a tombstone')


def _headers(value: Any) -> list[tuple[str, bytes | None]]:
    """An object of names and values, or, where names repeat, a list of objects with key and value."""
    if value is None:
        return []
    if isinstance(value, dict):
        return [(name, _bytes(value, name)) for name in value]
    if isinstance(value, list) and all(isinstance(item, dict) and isinstance(item.get("key"), str) for item in value):
        return [(item["key"], _bytes(item, "value")) for item in value]
    raise ValueError('headers are an object, or a list of {"key": ..., "value": ...}')


def _int(row: dict[str, Any], name: str) -> int | None:
    value = row.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} is not a whole number")
    if not 0 <= value <= _LARGEST[name]:
        raise ValueError(f"{name} {value} is not between 0 and {_LARGEST[name]}")
    return value


def _bytes(row: dict[str, Any], name: str) -> bytes | None:
    encoded = row.get(f"{name}_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError) as failure:
            raise ValueError(f"{name}_base64 is not base 64") from failure
    value = row.get(name)
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8")


async def read_lines(stream: BinaryIO, longest_bytes: int) -> AsyncIterator[list[bytes]]:
    """Lines as they come, without their ends; several at a time if several are there.

    A line that is longer than that is refused before all of it is read. The reading is done by a thread that nothing
    waits for, so that Ctrl-C ends a command that waits for its input.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue()
    room = threading.Semaphore(_CHUNKS_AHEAD)
    read = _reader(stream)

    def pump() -> None:
        chunk = b"start"
        while chunk:
            room.acquire()
            chunk = read()
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            except RuntimeError:  # the loop has ended
                return

    threading.Thread(target=pump, daemon=True, name="stdin").start()
    cutter = _Cutter(longest_bytes)
    while chunk := await chunks.get():
        room.release()
        if lines := cutter.cut(chunk):
            yield lines
    if rest := cutter.rest():
        yield [rest]


class _Cutter:
    """Cuts a stream into lines. Each byte is copied once, however long its line is."""

    def __init__(self, longest_bytes: int) -> None:
        self._longest_bytes = longest_bytes
        self._parts: list[bytes] = []
        """Of the line that has not ended yet."""
        self._size = 0
        self._number = 1
        """Of that line."""

    def cut(self, chunk: bytes) -> list[bytes]:
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._parts, lines[0]])
            for number, line in enumerate(lines, start=self._number):
                self._check(number, len(line))
            self._number += len(lines)
            self._parts, self._size = [], 0
        self._parts.append(rest)
        self._size += len(rest)
        self._check(self._number, self._size)
        return [line.removesuffix(b"\r") for line in lines]

    def rest(self) -> bytes:
        return b"".join(self._parts)

    def _check(self, number: int, size: int) -> None:
        if size > self._longest_bytes:
            raise LineError(
                number,
                f"it is longer than {self._longest_bytes} bytes; the topic takes no such record (max.message.bytes)",
            )


def _reader(stream: BinaryIO) -> Any:
    """Reads what is there. From a descriptor where there is one: a buffered reader would hold its lock at exit."""
    try:
        descriptor = stream.fileno()
    except (io.UnsupportedOperation, AttributeError):
        return lambda: stream.read1(_CHUNK_BYTES)  # type: ignore[attr-defined]
    return lambda: os.read(descriptor, _CHUNK_BYTES)
