from collections.abc import Sequence
from typing import final

from tidelog.records.column_source import ColumnSource
from tidelog.types import Buffer, Offset

COMPILED: bool

@final
class RecordWriter:
    def __init__(
        self, base_offset: Offset = 0, base_timestamp: int | None = None, capacity_bytes: int = 4096
    ) -> None: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def base_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def last_offset_delta(self) -> int: ...
    def append(
        self,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        offset_delta: int = -1,
    ) -> int: ...
    def append_rows(self, source: ColumnSource, row: int, limit_bytes: int) -> int: ...
    def take(self) -> memoryview: ...
