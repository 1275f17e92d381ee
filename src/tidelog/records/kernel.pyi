from typing import final

from tidelog.types import Buffer, Offset

COMPILED: bool

@final
class Record:
    def __init__(
        self,
        offset: Offset,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[tuple[str, bytes | None], ...] = (),
    ) -> None: ...
    @property
    def offset(self) -> Offset: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]: ...

@final
class Cursor:
    def __init__(
        self,
        payload: Buffer,
        record_count: int,
        base_offset: Offset,
        base_timestamp: int,
        append_timestamp: int | None = None,
    ) -> None: ...
    @property
    def payload(self) -> Buffer: ...
    @property
    def record_count(self) -> int: ...
    @property
    def base_offset(self) -> Offset: ...

def read_records(cursor: Cursor, into: list[Record], from_offset: Offset = 0) -> None: ...
def count_null_keys(cursor: Cursor) -> int: ...
def find_timestamp(cursor: Cursor, timestamp: int, from_offset: Offset = 0) -> tuple[int, Offset] | None: ...
def find_latest(cursor: Cursor) -> tuple[int, Offset] | None: ...
