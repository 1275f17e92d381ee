from tidelog.records.buffers import BinaryBuffers

COMPILED: bool

def key_partitions(column: BinaryBuffers, rows: int, partitions: int, keyless: int = -1) -> bytearray: ...
