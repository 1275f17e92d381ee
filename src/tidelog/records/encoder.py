# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Writes single records: from Python values, or from columns as Arrow lays them out.

Compiled like kernel.py; uncompiled the same lines are plain Python. A writer leaves room for the batch header
in front of its records, so that an uncompressed batch is finished where it was written (build.py).
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING
    from cython.cimports.libc.string import memcpy
    from cython.cimports.tidelog.records.column_source import ColumnSource
else:
    from tidelog.records.column_source import ColumnSource

COMPILED = cython.compiled

_HEADER_SIZE = cython.declare(cython.Py_ssize_t, 61)
_MAX_DELTA = cython.declare(cython.longlong, 0x7FFFFFFF)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _zigzag(number: cython.longlong) -> cython.ulonglong:
    return (cython.cast(cython.ulonglong, number) << 1) ^ cython.cast(cython.ulonglong, number >> 63)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _varint_size(number: cython.longlong) -> cython.Py_ssize_t:
    raw: cython.ulonglong = _zigzag(number)
    size: cython.Py_ssize_t = 1
    while raw > 0x7F:
        raw >>= 7
        size += 1
    return size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _field_size(size: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """What a field of `size` bytes takes with its length in front; -1 is a null, which takes one."""
    return 1 if size < 0 else size + _varint_size(size)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _headers_size(source: ColumnSource, row: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Bytes that the row's headers take with their count, or -1 if the columns contradict each other."""
    header: cython.Py_ssize_t = source.first_header(row)
    end: cython.Py_ssize_t = source.first_header(row + 1)
    if header < 0 or end < header or end > source.header_rows:
        return -1
    size: cython.Py_ssize_t = _varint_size(end - header)
    while header < end:
        if not source.header_keys.locate(header) or source.header_keys.size < 0:
            return -1
        if not source.header_values.locate(header):
            return -1
        size += _field_size(source.header_keys.size) + _field_size(source.header_values.size)
        header += 1
    return size


@cython.final
@cython.cclass
class RecordWriter:
    """The records of one batch as they are written.

    Timestamps are deltas to `base_timestamp`, the first record's unless it was given; offsets are deltas to
    `base_offset`, and count up from it unless they are given.
    """

    store: bytearray
    data: cython.p_uchar
    base_offset: cython.longlong
    has_base_timestamp: cython.bint
    wanted: cython.Py_ssize_t
    size_bytes = cython.declare(cython.Py_ssize_t, visibility="readonly")
    count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    base_timestamp = cython.declare(cython.longlong, visibility="readonly")
    max_timestamp = cython.declare(cython.longlong, visibility="readonly")
    last_offset_delta = cython.declare(cython.longlong, visibility="readonly")

    def __init__(self, base_offset: cython.longlong = 0, base_timestamp=None, capacity_bytes: int = 4096):
        self.store = bytearray(max(capacity_bytes, 128))
        self.point()
        self.base_offset = base_offset
        self.has_base_timestamp = base_timestamp is not None
        self.base_timestamp = base_timestamp if base_timestamp is not None else -1
        self.size_bytes = _HEADER_SIZE
        self.count = 0
        self.max_timestamp = -1
        self.last_offset_delta = -1

    @cython.cfunc
    def point(self) -> cython.int:
        if cython.compiled:
            self.data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.store))
        else:
            self.data = self.store
        return 0

    @cython.cfunc
    @cython.inline
    def reserve(self, more: cython.Py_ssize_t) -> cython.int:
        size: cython.Py_ssize_t = self.size_bytes + more
        if size <= len(self.store):
            return 0
        size = max(size, 2 * len(self.store))
        if cython.compiled:
            PyByteArray_Resize(self.store, size)
        else:
            self.store.extend(bytes(size - len(self.store)))
        return self.point()

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def put_varint(self, number: cython.longlong) -> cython.void:
        raw: cython.ulonglong = _zigzag(number)
        while raw > 0x7F:
            self.data[self.size_bytes] = cython.cast(cython.uchar, (raw & 0x7F) | 0x80)
            self.size_bytes += 1
            raw >>= 7
        self.data[self.size_bytes] = cython.cast(cython.uchar, raw)
        self.size_bytes += 1

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def put_field(
        self, data: cython.pointer[cython.const[cython.uchar]], place: cython.Py_ssize_t, size: cython.Py_ssize_t
    ) -> cython.void:
        self.put_varint(size)
        if size > 0:
            if cython.compiled:
                memcpy(self.data + self.size_bytes, data + place, size)
            else:
                self.data[self.size_bytes : self.size_bytes + size] = data[place : place + size]
            self.size_bytes += size

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def takes(self, timestamp: cython.longlong) -> cython.bint:
        """Whether its distance to the base timestamp fits 64 bits."""
        if not self.has_base_timestamp:
            return True
        base: cython.longlong = self.base_timestamp
        delta: cython.longlong = cython.cast(
            cython.longlong, cython.cast(cython.ulonglong, timestamp) - cython.cast(cython.ulonglong, base)
        )
        if not cython.compiled:
            delta = (timestamp - base + (1 << 63)) % (1 << 64) - (1 << 63)
        return ((timestamp ^ base) & (timestamp ^ delta)) >= 0

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def start_record(
        self, size: cython.Py_ssize_t, timestamp: cython.longlong, offset_delta: cython.longlong
    ) -> cython.void:
        """All up to the key. `size` is that of key, value and headers; room has been made."""
        if not self.has_base_timestamp:
            self.has_base_timestamp = True
            self.base_timestamp = timestamp
        if self.count == 0 or timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        timestamp -= self.base_timestamp
        self.put_varint(1 + _varint_size(timestamp) + _varint_size(offset_delta) + size)
        self.data[self.size_bytes] = 0
        self.size_bytes += 1
        self.put_varint(timestamp)
        self.put_varint(offset_delta)
        self.last_offset_delta = offset_delta
        self.count += 1

    def append(self, timestamp: cython.longlong, key, value, headers=(), offset_delta: cython.longlong = -1) -> int:
        """Write one record; the bytes it took. Without `offset_delta` it comes right after the one before."""
        key_size: cython.Py_ssize_t = -1
        value_size: cython.Py_ssize_t = -1
        header_bytes: bytes = b"\x00" if not headers else _encoded_headers(headers)
        before: cython.Py_ssize_t = self.size_bytes
        if key is not None:
            key = key if type(key) is bytes else bytes(memoryview(key))
            key_size = len(key)
        if value is not None:
            value = value if type(value) is bytes else bytes(memoryview(value))
            value_size = len(value)
        if offset_delta < 0:
            offset_delta = self.last_offset_delta + 1
        if not self.takes(timestamp) or offset_delta <= self.last_offset_delta or offset_delta > _MAX_DELTA:
            raise ValueError(f"timestamp {timestamp} or offset delta {offset_delta} cannot come next")
        size: cython.Py_ssize_t = _field_size(key_size) + _field_size(value_size) + len(header_bytes)
        if size > _MAX_DELTA - 32:
            raise ValueError(f"a record of {size} bytes is too large for any batch")
        self.reserve(size + 32)
        self.start_record(size, timestamp, offset_delta)
        self.put_bytes(key, key_size)
        self.put_bytes(value, value_size)
        self.put_raw(header_bytes)
        return self.size_bytes - before

    @cython.cfunc
    @cython.inline
    def put_bytes(self, field, size: cython.Py_ssize_t) -> cython.int:
        if size < 0:
            self.put_varint(-1)
        elif cython.compiled:
            self.put_field(cython.cast(cython.p_uchar, PyBytes_AS_STRING(field)), 0, size)
        else:
            self.put_field(field, 0, size)
        return 0

    @cython.cfunc
    @cython.inline
    def put_raw(self, field: bytes) -> cython.int:
        size: cython.Py_ssize_t = len(field)
        if cython.compiled:
            memcpy(self.data + self.size_bytes, PyBytes_AS_STRING(field), size)
        else:
            self.data[self.size_bytes : self.size_bytes + size] = field
        self.size_bytes += size
        return 0

    def append_rows(self, source: ColumnSource, row: cython.Py_ssize_t, limit_bytes: cython.Py_ssize_t) -> int:
        """Write rows from `row` on while the batch stays within the limit; the first row not written.

        A batch without records takes its first one whatever its size: else no progress would be made.
        """
        if not 0 <= row <= source.count:
            raise ValueError(f"row {row} of {source.count}")
        capacity: cython.Py_ssize_t
        while row < source.count:
            capacity = len(self.store)
            with cython.nogil:
                row = self.write_rows(source, row, capacity, limit_bytes)
            if self.wanted < 0:
                raise ValueError(f"row {row} of the columns cannot be written: its offsets or numbers are out of order")
            if row == source.count or (self.count > 0 and self.size_bytes + self.wanted > limit_bytes):
                break
            self.reserve(self.wanted)
        return row

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def write_rows(
        self, source: ColumnSource, row: cython.Py_ssize_t, capacity: cython.Py_ssize_t, limit: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Until the columns, the room or the limit end. `wanted`: bytes the next row needs, -1 if it is impossible."""
        size: cython.Py_ssize_t
        timestamp: cython.longlong
        delta: cython.longlong
        while row < source.count:
            timestamp = source.timestamp(row)
            delta = self.last_offset_delta + 1
            if source.has_offsets:
                delta = source.offset(row) - self.base_offset
            size = _headers_size(source, row) if source.has_headers else 1
            self.wanted = -1
            if size < 0 or not self.takes(timestamp) or delta <= self.last_offset_delta or delta > _MAX_DELTA:
                return row
            if not source.keys.locate(row) or not source.values.locate(row):
                return row
            size += _field_size(source.keys.size) + _field_size(source.values.size)
            if size > _MAX_DELTA - 32:
                return row
            self.wanted = size + 32
            if self.size_bytes + self.wanted > capacity or (self.count > 0 and self.size_bytes + self.wanted > limit):
                return row
            self.start_record(size, timestamp, delta)
            self.put_field(source.keys.bytes.data, source.keys.place, source.keys.size)
            self.put_field(source.values.bytes.data, source.values.place, source.values.size)
            self.write_headers(source, row)
            row += 1
        return row

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def write_headers(self, source: ColumnSource, row: cython.Py_ssize_t) -> cython.void:
        if not source.has_headers:
            self.put_varint(0)
            return
        header: cython.Py_ssize_t = source.first_header(row)
        end: cython.Py_ssize_t = source.first_header(row + 1)
        self.put_varint(end - header)
        while header < end:
            source.header_keys.locate(header)
            source.header_values.locate(header)
            self.put_field(source.header_keys.bytes.data, source.header_keys.place, source.header_keys.size)
            self.put_field(source.header_values.bytes.data, source.header_values.place, source.header_values.size)
            header += 1

    def take(self) -> memoryview:
        """What was written, behind room for a header. The writer is done with."""
        return memoryview(self.store)[: self.size_bytes]


def _encoded_headers(headers) -> bytes:
    """A record's headers with their count in front; rare enough to be built aside."""
    parts: list = [_encoded_varint(len(headers))]
    for key, value in headers:
        name = key.encode()
        parts += [_encoded_varint(len(name)), name]
        parts += [b"\x01"] if value is None else [_encoded_varint(len(value)), value]
    return b"".join(parts)


def _encoded_varint(number: cython.longlong) -> bytes:
    raw: cython.ulonglong = _zigzag(number)
    out: bytearray = bytearray()
    while raw > 0x7F:
        out.append((raw & 0x7F) | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)
