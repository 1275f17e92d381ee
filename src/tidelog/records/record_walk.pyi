from typing import final

from tidelog.types import Buffer

COMPILED: bool

@final
class RecordWalk:
    @property
    def null_keys(self) -> int: ...
    @property
    def invalid(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...

def walk_records(
    batch: Buffer, start: int, record_count: int, base_timestamp: int, needs_keys: bool, earliest: int, latest: int
) -> RecordWalk: ...
