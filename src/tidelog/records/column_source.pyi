from typing import final

from tidelog.records.buffers import ColumnBuffers

COMPILED: bool

@final
class ColumnSource:
    def __init__(self, columns: ColumnBuffers, keep_offsets: bool = False) -> None: ...
    @property
    def count(self) -> int: ...
