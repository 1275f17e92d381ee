"""The lines of the embedded home's journal, and how they are cut from its bytes.

A line is a checksum and JSON, ended by a newline and also begun by one: whoever died in the midst of a write leaves a
torn line, and the next writer's newline ends it, so that every reader drops the same bytes. JSON holds no newline.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, NamedTuple, TypeAlias

from tidelog.coordination.port import Check, Create, Delete, Op, Set


class Opened(NamedTuple):
    """A session begins. `name` is that of its file, where its lock and its lease are."""

    name: str
    timeout_ms: int


class Changed(NamedTuple):
    """A session asks for a transaction. What comes of it is decided by the lines before."""

    session: int
    request: int
    ops: list[Op]


class Ended(NamedTuple):
    """A session is over: closed by its owner, or found dead by somebody else. Only the first of several counts."""

    session: int


class Sealed(NamedTuple):
    """The generation ends here: all lines after this one are void, and the next begins with a snapshot of it."""

    generation: int


class Snapshot(NamedTuple):
    """The first line of a generation: what all earlier ones came to."""

    tree: dict[str, Any]
    sessions: list[tuple[int, str, int]]
    """Id, name and timeout of those that are open."""


Entry: TypeAlias = Opened | Changed | Ended | Sealed | Snapshot

_KINDS: dict[str, type[Entry]] = {
    "opened": Opened,
    "changed": Changed,
    "ended": Ended,
    "sealed": Sealed,
    "snapshot": Snapshot,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_OPS: dict[str, type[Op]] = {"create": Create, "set": Set, "delete": Delete, "check": Check}
_OP_NAMES = {kind: name for name, kind in _OPS.items()}


def to_line(entry: Entry) -> bytes:
    values: tuple[Any, ...] = entry
    if isinstance(entry, Changed):
        values = entry.session, entry.request, _ops_out(entry.ops)
    body = json.dumps([_NAMES[type(entry)], *values], separators=(",", ":")).encode()
    return b"\n%08x %b\n" % (zlib.crc32(body), body)


def from_line(line: bytes) -> Entry | None:
    """None for what is torn."""
    checksum, _, body = line.partition(b" ")
    if not body or checksum != b"%08x" % zlib.crc32(body):
        return None
    name, *values = json.loads(body)
    kind = _KINDS[name]
    if kind is Changed:
        session, request, ops = values
        return Changed(session, request, _ops_in(ops))
    if kind is Snapshot:
        tree, sessions = values
        return Snapshot(tree, [(session, name, timeout_ms) for session, name, timeout_ms in sessions])
    return kind(*values)


def _ops_out(ops: list[Op]) -> list[list[Any]]:
    return [
        [_OP_NAMES[type(op)], *(value.decode("latin-1") if isinstance(value, bytes) else value for value in op)]
        for op in ops
    ]


def _ops_in(ops: list[list[Any]]) -> list[Op]:
    return [
        _OPS[name](*(value.encode("latin-1") if field == "data" else value for field, value in _named(name, values)))
        for name, *values in ops
    ]


def _named(op: str, values: list[Any]) -> list[tuple[str, Any]]:
    return list(zip(_OPS[op]._fields, values, strict=True))


class LineCutter:
    """Entries out of the bytes of one generation, as they come, up to its seal."""

    def __init__(self, generation: int) -> None:
        self.position = 0
        """Of the file: where the next bytes are to be read."""
        self.snapshot_bytes = 0
        self._generation = generation
        self._rest = b""

    def feed(self, data: bytes) -> list[Entry]:
        self.position += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        entries: list[Entry] = []
        for line in lines:
            entry = from_line(line) if line else None
            if isinstance(entry, Sealed) and entry.generation != self._generation:
                continue  # meant for the one before, and came late
            if isinstance(entry, Snapshot):
                self.snapshot_bytes = len(line)
            if entry is not None:
                entries.append(entry)
            if isinstance(entry, Sealed):
                break
        return entries
