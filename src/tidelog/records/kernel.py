# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The kernel: the code that reads single records (encoder.py is the code that writes them).

One source, two lives. Compiled by Cython it runs over C pointers, without the GIL where the work
is long enough; uncompiled the same lines are plain Python, where `data` is a memoryview and integers
know no bounds. So what is not `cython.compiled` masks to 64 bits itself, and nothing relies on overflow.

Always: every varint and every length is checked against the end of the payload before a byte is touched,
and a payload that is not exactly `record_count` well-formed records is one CorruptBatchError.
"""

from __future__ import annotations

import cython

from tidelog.errors import CorruptBatchError

if cython.compiled:
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize

COMPILED = cython.compiled

LONG_BYTES = 2 * 1024 * 1024
"""A walk over a longer payload lets go of the GIL. Below, the walk is over before another thread has done its turn."""

_LONG_BYTES = cython.declare(cython.Py_ssize_t, LONG_BYTES)
_MIN_RECORD_BYTES = cython.declare(cython.Py_ssize_t, 7)
"""Length, attributes, two deltas, two sizes and a header count, a byte each: what bounds a hostile record count."""


@cython.final
@cython.no_gc
@cython.freelist(512)
@cython.cclass
class Record:
    """One record as a consumer sees it. It holds nothing but bytes, so the garbage collector need not look at it."""

    offset = cython.declare(cython.longlong, visibility="readonly")
    timestamp = cython.declare(cython.longlong, visibility="readonly")
    key = cython.declare(bytes, visibility="readonly")
    value = cython.declare(bytes, visibility="readonly")
    headers = cython.declare(tuple, visibility="readonly")

    def __init__(self, offset, timestamp, key, value, headers=()):
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = headers

    def _fields(self):
        return self.offset, self.timestamp, self.key, self.value, self.headers

    def __eq__(self, other):
        return isinstance(other, Record) and self._fields() == other._fields()

    def __hash__(self):
        return hash(self._fields())

    def __reduce__(self):
        return Record, self._fields()

    def __repr__(self):
        return (
            f"Record(offset={self.offset}, timestamp={self.timestamp}, key={self.key!r}, "
            f"value={self.value!r}, headers={self.headers!r})"
        )


@cython.no_gc  # see tidelog.wire.decoder.values.Reader
@cython.final
@cython.cclass
class Cursor:
    """Stands on one record of a payload (the uncompressed bytes after a batch header) and steps to the next."""

    def __init__(self, payload, record_count, base_offset, base_timestamp, append_timestamp=None):
        if cython.compiled:
            PyObject_GetBuffer(payload, cython.address(self.buffer), PyBUF_SIMPLE)
            self.data = cython.cast(cython.pointer[cython.const[cython.uchar]], self.buffer.buf)
            self.end = self.buffer.len
        else:
            self.data = memoryview(payload).cast("B")
            self.end = len(self.data)
        self.payload = payload
        self.record_count = record_count
        self.base_offset = base_offset
        self.base_timestamp = base_timestamp
        self.has_append_time = append_timestamp is not None
        self.append_timestamp = append_timestamp if append_timestamp is not None else 0
        self.rewind()
        if record_count < 0 or record_count > self.end // _MIN_RECORD_BYTES:
            raise CorruptBatchError(
                f"batch at offset {base_offset} claims {record_count} records in {self.end} bytes of them"
            )

    def __dealloc__(self):
        if cython.compiled:
            PyBuffer_Release(cython.address(self.buffer))

    def rewind(self):
        self.at = 0
        self.index = 0
        self.broken = False
        return 0

    def varint(self):
        """The next zigzag varint. Where there is none, `broken` is set and 0 comes back."""
        byte: cython.ulonglong
        raw: cython.ulonglong = 0
        shift: cython.int = 0
        while self.at < self.end and shift < 70:
            byte = self.data[self.at]
            self.at += 1
            if shift == 63 and byte > 1:
                break
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                return cython.cast(cython.longlong, raw >> 1) ^ -cython.cast(cython.longlong, raw & 1)
            shift += 7
        self.broken = True
        return 0

    def sum(self, base, delta):
        """Base and delta together, which must fit 64 bits."""
        total: cython.longlong
        if cython.compiled:
            total = cython.cast(
                cython.longlong, cython.cast(cython.ulonglong, base) + cython.cast(cython.ulonglong, delta)
            )
            if ((base ^ total) & (delta ^ total)) < 0:
                self.broken = True
        else:
            total = base + delta
            if not -(1 << 63) <= total < 1 << 63:
                self.broken = True
        return total

    def skip(self, size, limit):
        """Step over a field of `size` bytes (-1: null, nothing there); the place where it began."""
        place: cython.Py_ssize_t = self.at
        if size < -1 or size > limit - place:
            self.broken = True
        elif size > 0:
            self.at = place + size
        return place

    def next(self):
        """Step onto the next record. False at the end, and where the bytes are no record: `close` tells which."""
        limit: cython.Py_ssize_t
        length: cython.longlong
        delta: cython.longlong
        if self.index == self.record_count:
            return False
        self.start = self.at
        length = self.varint()
        if self.broken or length < 1 or length > self.end - self.at:
            self.broken = True
            return False
        limit = self.at + length
        self.at += 1  # attributes: no bit of them is in use
        delta = self.varint()
        self.timestamp = self.append_timestamp if self.has_append_time else self.sum(self.base_timestamp, delta)
        delta = self.varint()
        if delta < 0 or delta > 0x7FFFFFFF:
            self.broken = True
        self.offset = self.sum(self.base_offset, delta)
        self.key_size = self.varint()
        self.key_at = self.skip(self.key_size, limit)
        self.value_size = self.varint()
        self.value_at = self.skip(self.value_size, limit)
        self.header_count = self.varint()
        self.headers_at = self.at
        if self.header_count != 0:
            self.skip_headers(limit)
        if self.broken or self.at != limit:
            self.broken = True
            return False
        self.index += 1
        return True

    def skip_headers(self, limit):
        left: cython.Py_ssize_t = self.header_count
        size: cython.longlong
        if left < 0 or left > (limit - self.at) // 2:
            self.broken = True
        while left > 0 and not self.broken:
            size = self.varint()
            self.skip(size, limit)
            if size < 0:
                self.broken = True
            size = self.varint()
            self.skip(size, limit)
            left -= 1

    def close(self):
        """Raises unless the payload was exactly its records."""
        if self.broken:
            raise CorruptBatchError(
                f"record {self.index} of {self.record_count} in the batch at offset {self.base_offset} is malformed"
            )
        if self.at != self.end:
            raise CorruptBatchError(
                f"{self.end - self.at} bytes follow the last of {self.record_count} records "
                f"in the batch at offset {self.base_offset}"
            )

    def cut(self, place, size):
        field: bytes
        if cython.compiled:
            field = PyBytes_FromStringAndSize(cython.cast(cython.p_char, self.data) + place, size)
        else:
            field = bytes(self.data[place : place + size])
        return field

    def headers(self):
        """Those of the record it stands on. Keys that are not UTF-8 are mended, as Java's consumer does."""
        resume: cython.Py_ssize_t = self.at
        size: cython.Py_ssize_t
        place: cython.Py_ssize_t
        left: cython.Py_ssize_t = self.header_count
        found: list = []
        self.at = self.headers_at
        while left > 0:
            size = self.varint()
            key = self.cut(self.at, size).decode("utf-8", "replace")
            self.at += size
            size = self.varint()
            place = self.skip(size, self.end)
            found.append((key, None if size < 0 else self.cut(place, size)))
            left -= 1
        self.at = resume
        return tuple(found)


@cython.cfunc
@cython.inline
def _record(cursor: Cursor) -> Record:
    """The record that the cursor stands on, as a Python object."""
    record: Record = Record.__new__(Record)
    record.offset = cursor.offset
    record.timestamp = cursor.timestamp
    record.key = None if cursor.key_size < 0 else cursor.cut(cursor.key_at, cursor.key_size)
    record.value = None if cursor.value_size < 0 else cursor.cut(cursor.value_at, cursor.value_size)
    record.headers = () if cursor.header_count == 0 else cursor.headers()
    return record


def read_records(cursor: Cursor, into: list, from_offset: cython.longlong = 0) -> None:
    """Append the records at or after `from_offset` as Python objects; on a malformed batch `into` gets none of them."""
    before: cython.Py_ssize_t = len(into)
    cursor.rewind()
    while cursor.next():
        if cursor.offset >= from_offset:
            into.append(_record(cursor))
    if cursor.broken or cursor.at != cursor.end:
        del into[before:]
    cursor.close()


def read_some(cursor: Cursor, into: list, count: cython.Py_ssize_t) -> bool:
    """Append the next `count` records, or as many as are left; whether more may follow. After `check_records`."""
    left: cython.Py_ssize_t = count
    while left > 0 and cursor.next():
        into.append(_record(cursor))
        left -= 1
    if left > 0:
        cursor.close()
        return False
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _walk(cursor: Cursor) -> cython.void:
    while cursor.next():
        pass


def check_records(cursor: Cursor) -> None:
    """Raises unless the payload is exactly its records; leaves the cursor before the first of them."""
    cursor.rewind()
    if cursor.end > _LONG_BYTES:
        with cython.nogil:
            _walk(cursor)
    else:
        _walk(cursor)
    cursor.close()
    cursor.rewind()


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _to_invalid(
    cursor: Cursor, needs_keys: cython.bint, earliest: cython.longlong, latest: cython.longlong
) -> cython.bint:
    while cursor.next():
        if needs_keys and cursor.key_size < 0:
            return True
        if cursor.timestamp != -1 and (cursor.timestamp < earliest or cursor.timestamp > latest):
            return True
    return False


def find_invalid(
    cursor: Cursor,
    needs_keys: cython.bint,
    earliest: cython.longlong,
    latest: cython.longlong,
    most: cython.Py_ssize_t,
) -> list:
    """The first `most` records that lack a key that they need or lie outside of [earliest, latest].

    Each is (index in the batch, timestamp), with None for the timestamp where the key is missing. A timestamp of -1
    says that there is none, and is never out of range.
    """
    is_found: cython.bint = True
    found: list = []
    cursor.rewind()
    while len(found) < most:
        if cursor.end > _LONG_BYTES:
            with cython.nogil:
                is_found = _to_invalid(cursor, needs_keys, earliest, latest)
        else:
            is_found = _to_invalid(cursor, needs_keys, earliest, latest)
        if not is_found:
            cursor.close()
            break
        is_keyless = needs_keys and cursor.key_size < 0
        found.append((cursor.index - 1, None if is_keyless else cursor.timestamp))
    return found


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _to_timestamp(cursor: Cursor, timestamp: cython.longlong, from_offset: cython.longlong) -> cython.bint:
    while cursor.next():
        if cursor.timestamp >= timestamp and cursor.offset >= from_offset:
            return True
    return False


def find_timestamp(cursor: Cursor, timestamp: cython.longlong, from_offset: cython.longlong = 0):
    """(timestamp, offset) of the first record not older than `timestamp`, or None."""
    is_found: cython.bint
    cursor.rewind()
    if cursor.end > _LONG_BYTES:
        with cython.nogil:
            is_found = _to_timestamp(cursor, timestamp, from_offset)
    else:
        is_found = _to_timestamp(cursor, timestamp, from_offset)
    if is_found:
        return cursor.timestamp, cursor.offset
    cursor.close()
    return None


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _latest_place(cursor: Cursor, from_offset: cython.longlong) -> cython.Py_ssize_t:
    """The place of the record with the largest timestamp, or -1; the cursor stands behind the last record."""
    latest: cython.Py_ssize_t = -1
    timestamp: cython.longlong = 0
    while cursor.next():
        if cursor.offset >= from_offset and (latest < 0 or cursor.timestamp > timestamp):
            latest = cursor.start
            timestamp = cursor.timestamp
    return latest


def find_latest(cursor: Cursor, from_offset: cython.longlong = 0):
    """(timestamp, offset) of the first among the records with the largest timestamp from `from_offset` on, or None."""
    place: cython.Py_ssize_t
    cursor.rewind()
    if cursor.end > _LONG_BYTES:
        with cython.nogil:
            place = _latest_place(cursor, from_offset)
    else:
        place = _latest_place(cursor, from_offset)
    cursor.close()
    if place < 0:
        return None
    cursor.rewind()
    cursor.at = place
    cursor.next()
    return cursor.timestamp, cursor.offset
