# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""One walk over the records of a client's batch, before a leader appends it: is every record one that can be read?

Compiled like kernel.py, but made for speed alone, because every produced record passes here: nothing is kept of a
record but what a leader needs to know of the whole batch. It is stricter than the kernel, which also reads what
compaction left: offset deltas are 0, 1, 2, ..., and a number of 32 bits takes at most five bytes, because Java's
consumer refuses longer ones.

Always: no byte is read before it is known to lie within its record, and the record within the payload.
"""

from __future__ import annotations

import cython

from tidelog.errors import InvalidRecordError, RecordError
from tidelog.records.kernel import LONG_BYTES as LONG_BYTES_

if cython.compiled:
    from cython.cimports.cpython.buffer import Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

COMPILED = cython.compiled

_LONG_BYTES = cython.declare(cython.Py_ssize_t, LONG_BYTES_)
_INT_BYTES = cython.declare(cython.int, 5)
_LONG_INT_BYTES = cython.declare(cython.int, 10)
_BROKEN = cython.declare(cython.Py_ssize_t, -1)
_MAX_INT64 = cython.declare(cython.longlong, (1 << 63) - 1)


@cython.final
@cython.cclass
class RecordWalk:
    """What a walk found out about the records of one batch."""

    null_keys = cython.declare(cython.Py_ssize_t, visibility="readonly")
    invalid = cython.declare(cython.Py_ssize_t, visibility="readonly")
    """How many records lack a key that they need, or have a timestamp outside of [earliest, latest]."""
    max_timestamp = cython.declare(cython.longlong, visibility="readonly")
    """The largest timestamp; -1, which says that there is none, if no record has a larger one."""
    index = cython.declare(cython.Py_ssize_t)
    raw = cython.declare(cython.ulonglong)
    has_wrong_offset = cython.declare(cython.bint)

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def varint(
        self,
        data: cython.pointer[cython.const[cython.uchar]],
        at: cython.Py_ssize_t,
        limit: cython.Py_ssize_t,
        most: cython.int,
    ) -> cython.Py_ssize_t:
        """Read the varint at `at` into `raw`, still in zigzag; where it ends, or _BROKEN. Most are short."""
        if at >= limit:
            return _BROKEN
        self.raw = data[at]
        if self.raw < 0x80:
            return at + 1
        if at + 1 < limit and data[at + 1] < 0x80:
            self.raw = (self.raw & 0x7F) | cython.cast(cython.ulonglong, data[at + 1]) << 7
            return at + 2
        return self.long_varint(data, at, limit, most)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def long_varint(
        self,
        data: cython.pointer[cython.const[cython.uchar]],
        at: cython.Py_ssize_t,
        limit: cython.Py_ssize_t,
        most: cython.int,
    ) -> cython.Py_ssize_t:
        byte: cython.ulonglong
        raw: cython.ulonglong = 0
        shift: cython.int = 0
        while at < limit and shift < 7 * most:
            byte = data[at]
            at += 1
            if shift == 63 and byte > 1:
                break
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.raw = raw
                return at
            shift += 7
        return _BROKEN

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def value(self) -> cython.longlong:
        """The signed number that `raw` stands for."""
        return cython.cast(cython.longlong, self.raw >> 1) ^ -cython.cast(cython.longlong, self.raw & 1)

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def skip_field(
        self, data: cython.pointer[cython.const[cython.uchar]], at: cython.Py_ssize_t, limit: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Behind a size and so many bytes (-1: null, none); `raw` keeps the size."""
        size: cython.longlong
        at = self.varint(data, at, limit, _INT_BYTES)
        if at < 0:
            return _BROKEN
        size = self.value()
        if size < 0:
            return at if size == -1 else _BROKEN
        return at + cython.cast(cython.Py_ssize_t, size) if size <= limit - at else _BROKEN

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def skip_headers(
        self, data: cython.pointer[cython.const[cython.uchar]], at: cython.Py_ssize_t, limit: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        left: cython.longlong = self.value()
        if left < 0 or left > (limit - at) // 2:
            return _BROKEN
        while left > 0:
            at = self.skip_field(data, at, limit)
            if at < 0 or self.raw & 1:  # the key of a header is never null
                return _BROKEN
            at = self.skip_field(data, at, limit)
            if at < 0:
                return _BROKEN
            left -= 1
        return at

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def run(
        self,
        data: cython.pointer[cython.const[cython.uchar]],
        end: cython.Py_ssize_t,
        count: cython.Py_ssize_t,
        base_timestamp: cython.longlong,
        needs_keys: cython.bint,
        earliest: cython.longlong,
        latest: cython.longlong,
    ) -> cython.Py_ssize_t:
        """Where the last record ends, or _BROKEN at the record `index`."""
        at: cython.Py_ssize_t = 0
        limit: cython.Py_ssize_t
        index: cython.Py_ssize_t = 0
        null_keys: cython.Py_ssize_t = 0
        invalid: cython.Py_ssize_t = 0
        length: cython.longlong
        timestamp: cython.longlong
        delta: cython.longlong
        max_timestamp: cython.longlong = -1
        is_keyless: cython.bint
        while index < count:
            self.index = index
            at = self.varint(data, at, end, _INT_BYTES)
            if at < 0:
                return _BROKEN
            length = self.value()
            if length < 1 or length > end - at:
                return _BROKEN
            limit = at + cython.cast(cython.Py_ssize_t, length)
            at = self.varint(data, at + 1, limit, _LONG_INT_BYTES)  # no bit of the attributes is in use
            if at < 0:
                return _BROKEN
            delta = self.value()
            if delta >= 0:
                if base_timestamp > _MAX_INT64 - delta:
                    return _BROKEN
            elif base_timestamp < ~_MAX_INT64 - delta:
                return _BROKEN
            timestamp = base_timestamp + delta
            at = self.varint(data, at, limit, _INT_BYTES)
            if at < 0:
                return _BROKEN
            if self.raw != cython.cast(cython.ulonglong, index) << 1:
                self.has_wrong_offset = True
                return _BROKEN
            at = self.skip_field(data, at, limit)
            if at < 0:
                return _BROKEN
            is_keyless = self.raw & 1
            at = self.skip_field(data, at, limit)
            if at < 0:
                return _BROKEN
            at = self.varint(data, at, limit, _INT_BYTES)
            if at < 0:
                return _BROKEN
            if self.raw != 0:
                at = self.skip_headers(data, at, limit)
            if at != limit:
                return _BROKEN
            if timestamp > max_timestamp:
                max_timestamp = timestamp
            null_keys += is_keyless
            if (is_keyless and needs_keys) or ((timestamp < earliest or timestamp > latest) and timestamp != -1):
                invalid += 1
            index += 1
        self.null_keys = null_keys
        self.invalid = invalid
        self.max_timestamp = max_timestamp
        return at

    @cython.cfunc
    def problem(self, count: cython.Py_ssize_t):
        """The error that says what is wrong with the record `index`."""
        if self.has_wrong_offset:
            found = f"has the offset delta {self.value()}"
        else:
            found = "is malformed: its lengths do not fit the bytes of the batch"
        return InvalidRecordError(
            f"record {self.index} of {count} in a batch {found}", [RecordError(self.index, f"The record {found}")]
        )


def walk_records(
    batch,
    start: cython.Py_ssize_t,
    record_count: cython.Py_ssize_t,
    base_timestamp: cython.longlong,
    needs_keys: cython.bint,
    earliest: cython.longlong,
    latest: cython.longlong,
) -> RecordWalk:
    """Walk the uncompressed records of a batch, which begin at `start` and go on to the end of the bytes.
    InvalidRecordError unless they are exactly so many good records.

    A long walk lets go of the GIL; a short one is over before the GIL would be had again.
    """
    walk: RecordWalk = RecordWalk()
    end: cython.Py_ssize_t
    at: cython.Py_ssize_t
    if cython.compiled:
        buffer = cython.declare(Py_buffer)
        PyObject_GetBuffer(batch, cython.address(buffer), PyBUF_SIMPLE)
        data: cython.pointer[cython.const[cython.uchar]] = (
            cython.cast(cython.pointer[cython.const[cython.uchar]], buffer.buf) + start
        )
        end = max(buffer.len - start, 0)
        if end > _LONG_BYTES:
            with cython.nogil:
                at = walk.run(data, end, record_count, base_timestamp, needs_keys, earliest, latest)
        else:
            at = walk.run(data, end, record_count, base_timestamp, needs_keys, earliest, latest)
        PyBuffer_Release(cython.address(buffer))
    else:
        view = memoryview(batch).cast("B")[start:]
        end = len(view)
        at = walk.run(view, end, record_count, base_timestamp, needs_keys, earliest, latest)
    if at < 0:
        raise walk.problem(record_count)
    if at != end:
        raise InvalidRecordError(f"{end - at} bytes follow the last of {record_count} records in a batch")
    return walk
