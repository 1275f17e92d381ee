"""Frames that no client should send: valid requests of every API that is served, and what chance makes of them.

Everything follows from a seed, so a frame that finds a fault can be made again.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from crc32c import crc32c

from tests.kits.logkit import batch, idempotent
from tidelog.net.channel import Call
from tidelog.net.connection import ServerConnection
from tidelog.records.header import Codec
from tidelog.wire import API, Message
from tidelog.wire.frames import decode_response, encode_request
from tidelog.wire.schema import ArrayType, FieldType, Scalar, StructType
from tidelog.wire.versions import Versions

CREATE_TOPICS, CREATE_PARTITIONS, DELETE_TOPICS = 19, 37, 20
ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS = 33, 44
COSTLY = frozenset((CREATE_TOPICS, CREATE_PARTITIONS, DELETE_TOPICS, ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS))
"""What changes the cluster where it succeeds: rarer than the others, so that a run is not all about that."""

_TURN = 64
_MOST_PENDING = 64

_LENGTH_START, _CRC_END = 8, 21
"""Of a record batch."""

_INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint16": 16, "uint32": 32}
_LENGTHS = [
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\x00\x00\xff\xff",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\x01",
    b"\x00",
    b"\x01",
]
_SOME_WORDS = (
    "retention.ms",
    "cleanup.policy",
    "compact,delete",
    "delete",
    "compression.type",
    "zstd",
    "message.timestamp.type",
    "LogAppendTime",
    "segment.bytes",
    "1048576",
    "100000",
    "1",
    "-1",
    "log.retention.ms",
    "no.such.setting",
)
_SOME_NAMES = ("", ".", "..", "a/b", "x" * 249, "x" * 250, "ü", "no-such", "__consumer_offsets", "a b", "\x00", "a\nb")


class Frames:
    """An endless row of frames, without the four bytes of their size."""

    def __init__(
        self, served: Mapping[int, Versions], seed: int, topics: Mapping[str, bytes], *, largest: int = 2000
    ) -> None:
        self._chance = random.Random(seed)
        self._topics = dict(topics)
        self._largest = largest
        self._strings = [*topics, *topics, *topics, *_SOME_NAMES, *_SOME_WORDS]
        self._batches = [b"", b"\x00" * 61, idempotent(0), idempotent(5, producer_id=2**40)]
        for codec in Codec:
            good = batch([b"value" * 20] * 3, keys=[b"a", b"b", None], codec=codec)
            self._batches += [good, good + good, *(self._damaged(good) for _ in range(20))]
        self._served = dict(served)
        self._keys = [key for key in served for _ in range(1 if key in COSTLY else 8)]
        self._pool: dict[int, list[bytes]] = {key: [] for key in served}
        for key, versions in served.items():
            for version in versions:
                for _ in range(4):
                    self._pool[key].append(self._valid(key, version))

    def __iter__(self) -> Iterator[bytes]:
        while True:
            yield self.next()

    def next(self) -> bytes:
        chance = self._chance
        kind = chance.random()
        if kind < 0.03:
            return chance.randbytes(chance.randrange(3, 200))
        key = chance.choice(self._keys)
        if kind < 0.08:
            header = struct.pack(">hhih", key, chance.randrange(-1, 20), chance.getrandbits(31), -1)
            return header + chance.randbytes(chance.randrange(0, 120))
        if kind < 0.28:
            pool = self._pool[key]
            pool[chance.randrange(len(pool))] = self._valid(key, chance.choice(list(self._served[key])))
        frame = chance.choice(self._pool[key])
        return frame if kind < 0.48 else self._mutated(frame)

    # Valid ones

    def _valid(self, key: int, version: int) -> bytes:
        request = self._message(API[key].request, version, 0)
        if hasattr(request, "validate_only"):
            request.validate_only = True
        parts = encode_request(request, version, self._chance.getrandbits(31), self._chance.choice(("fuzz", None, "")))
        return b"".join(bytes(part) for part in parts)[4:]

    def _message(self, kind: type[Message], version: int, depth: int) -> Message:
        values: dict[str, Any] = {}
        for field in kind.__schema__.fields:
            if version not in field.versions:
                continue
            if version in field.tagged and self._chance.random() < 0.5:
                continue
            if version in field.nullable and self._chance.random() < 0.15:
                values[field.name] = None
            else:
                values[field.name] = self._value(field.name, field.type, version, depth)
        return kind(**values)

    def _value(self, name: str, kind: FieldType, version: int, depth: int) -> Any:
        if isinstance(kind, StructType):
            return self._message(kind.message, version, depth + 1)
        if isinstance(kind, ArrayType):
            count = self._chance.choice((0, 1, 1, 2, 3) if depth < 2 else (0, 1, 2))
            return [self._value(name, kind.element, version, depth + 1) for _ in range(count)]
        assert isinstance(kind, Scalar)
        return self._scalar(name, kind.name)

    def _scalar(self, name: str, kind: str) -> Any:
        chance = self._chance
        if kind in _INTEGERS:
            return self._integer(name, _INTEGERS[kind], signed=kind[0] != "u")
        if kind == "bool":
            return chance.random() < 0.5
        if kind == "float64":
            return chance.random()
        if kind == "string":
            return chance.choice(self._strings)
        if kind == "uuid":
            return chance.choice([*self._topics.values(), bytes(16), chance.randbytes(16)])
        if kind == "records":
            return chance.choice(self._batches)
        return chance.randbytes(chance.randrange(20))

    def _integer(self, name: str, bits: int, *, signed: bool) -> int:
        """Mostly what such a field holds, sometimes what it cannot mean."""
        chance = self._chance
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        if chance.random() < 0.1:
            return chance.choice((low, high, low + 1, high - 1, high // 2))
        if "max_bytes" in name:
            return chance.choice((0, 1, 1000, min(high, 1 << 20)))
        if name.endswith("_ms") and "wait" in name:
            return chance.choice((0, 1, 5))
        if name in ("acks", "replica_id"):
            return chance.choice((-1, 0, 1)) if name == "acks" else -1
        return chance.choice((-1, 0, 0, 1, 2, 5)) if signed else chance.randrange(4)

    def _damaged(self, good: bytes) -> bytes:
        """A batch whose checksum holds and whose insides do not."""
        bad = bytearray(good)
        for _ in range(self._chance.choice((1, 1, 4))):
            bad[self._chance.randrange(_CRC_END, len(bad))] = self._chance.randrange(256)
        if self._chance.random() < 0.3:
            bad += self._chance.randbytes(self._chance.randrange(1, 50))
            struct.pack_into(">i", bad, _LENGTH_START, len(bad) - _LENGTH_START - 4)
        struct.pack_into(">I", bad, _CRC_END - 4, crc32c(bytes(bad[_CRC_END:])))
        return bytes(bad)

    # What becomes of them

    def _mutated(self, frame: bytes) -> bytes:
        chance, changed = self._chance, bytearray(frame)
        for _ in range(chance.choice((1, 1, 2, 3, 8))):
            at = chance.randrange(len(changed) + 1)
            match chance.randrange(8):
                case 0:
                    del changed[at:]
                case 1 | 2 | 3:
                    if at < len(changed):
                        changed[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
                case 4:
                    length = chance.choice(_LENGTHS)
                    changed[at : at + len(length)] = length
                case 5:
                    del changed[at : at + chance.randrange(1, 9)]
                case 6:
                    changed[at:at] = chance.randbytes(chance.randrange(1, 9))
                case 7:
                    other = chance.choice(self._pool[chance.choice(self._keys)])
                    changed[at:] = other[chance.randrange(len(other)) :]
        if len(changed) < 3:
            changed += bytes(3)
        return bytes(changed[: self._largest])


def server_errors(message: Message) -> Iterator[str]:
    """Where an answer says UNKNOWN_SERVER_ERROR, which means nothing to a client."""
    for field in message.__schema__.fields:
        value = getattr(message, field.name)
        if field.name == "error_code" and value == -1:
            yield type(message).__name__
        elif isinstance(value, Message):
            yield from server_errors(value)
        elif isinstance(value, list):
            for one in value:
                if isinstance(one, Message):
                    yield from server_errors(one)


class FakeConnection:
    """What the dispatcher sees of a connection, without a socket."""

    client_host = "fuzz"
    listener = "PLAINTEXT"
    is_broker = False
    is_stalled = False
    unanswered = 1

    def __init__(self) -> None:
        self.is_closed = False
        self.fault: BaseException | None = None
        self.call: Call | None = None

    def close(self, why: str, fault: BaseException | None = None) -> None:
        assert why
        self.is_closed = True
        self.fault = self.fault or fault
        if self.call is not None and self.call.when_gone is not None:
            self.call.when_gone()

    def answered(self, call: Call) -> None:
        """Seen by `is_done`."""

    def keep(self, call: Call) -> None:
        """Nothing is counted here."""

    def let_go(self, call: Call) -> None:
        """Nothing is counted here."""


class Drive:
    """Hands frames to a handler and looks at what becomes of each: an answer that can be read, or a closed connection.

    Always: no fault of ours, and never UNKNOWN_SERVER_ERROR.
    """

    def __init__(self, handle: Callable[[Call], None]) -> None:
        self._handle = handle
        self._pending: list[tuple[bytes, Call, FakeConnection]] = []
        self.answered = self.closed = self.given_up = 0

    async def run(self, frames: Frames, count: int) -> None:
        for number in range(count):
            self._put(frames.next())
            if number % _TURN == 0:
                await self._turn()
        for _ in range(100):
            await self._turn()
        for _, _, connection in self._pending:
            connection.close("enough")
        self.given_up += len(self._pending)

    def _put(self, frame: bytes) -> None:
        connection = FakeConnection()
        key = int.from_bytes(frame[:2], "big", signed=True)
        call = connection.call = Call(cast(ServerConnection, connection), memoryview(bytearray(frame)), key, 0)
        self._handle(call)
        self._pending.append((frame, call, connection))

    async def _turn(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        pending, self._pending = self._pending, []
        for frame, call, connection in pending:
            assert connection.fault is None, f"{frame.hex()} failed: {connection.fault!r}"
            if call.is_done:
                self.answered += 1
                self._check(frame, call)
            elif connection.is_closed:
                self.closed += 1
            else:
                self._pending.append((frame, call, connection))
        if len(self._pending) > _MOST_PENDING:
            self.given_up += 1
            self._pending.pop(0)[2].close("enough")

    @staticmethod
    def _check(frame: bytes, call: Call) -> None:
        if call.parts:
            whole = b"".join(part if isinstance(part, bytes) else bytes(len(part)) for part in call.parts)
            assert int.from_bytes(whole[:4], "big") == len(whole) - 4
            answer = decode_response(call.api_key, call.version, whole[4:])
            assert answer.correlation_id == int.from_bytes(frame[4:8], "big", signed=True)
            errors = list(server_errors(answer.response))
            assert not errors, f"{frame.hex()} was answered UNKNOWN_SERVER_ERROR in {errors}"
