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
from typing import Any, BinaryIO, NamedTuple

import click

_CHUNK_BYTES = 256 * 1024
_CHUNKS_AHEAD = 4


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


class JsonLines(NamedTuple):
    """One object per line, as `tidelog consume --json` prints them. Values that are no text are written as JSON."""

    headers: list[tuple[str, bytes | None]]
    partition: int | None

    def parse(self, number: int, line: bytes) -> Input:
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("it is not a JSON object")
            headers = [*self.headers, *_headers(row.get("headers"))]
            partition, timestamp = _int(row, "partition"), _int(row, "timestamp")
            key, value = _bytes(row, "key"), _bytes(row, "value")
        except (ValueError, TypeError) as failure:
            raise LineError(number, str(failure)) from failure
        return Input(key, value, headers, partition if self.partition is None else self.partition, timestamp)


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
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ValueError(f"{name} is not a whole number")
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


async def read_lines(stream: BinaryIO) -> AsyncIterator[list[bytes]]:
    """Lines as they come, without their ends; several at a time if several are there.

    The reading is done by a thread that nothing waits for, so that Ctrl-C ends a command that waits for its input.
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
    rest = b""
    while chunk := await chunks.get():
        room.release()
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


def _reader(stream: BinaryIO) -> Any:
    """Reads what is there. From a descriptor where there is one: a buffered reader would hold its lock at exit."""
    try:
        descriptor = stream.fileno()
    except (io.UnsupportedOperation, AttributeError):
        return lambda: stream.read1(_CHUNK_BYTES)  # type: ignore[attr-defined]
    return lambda: os.read(descriptor, _CHUNK_BYTES)
