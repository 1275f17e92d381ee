# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Records as columns: many batches read into one set of growing buffers that Arrow can wrap without a copy.

Compiled like kernel.py, on whose cursor it stands. The buffers are bytearrays: offsets grow as 64-bit
numbers and are narrowed to Arrow's usual 32 bits at the end, when it is known that they fit.
"""

from __future__ import annotations

import struct

import cython

from tidelog.records.buffers import BinaryBuffers, ColumnBuffers, HeaderBuffers

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.cpython.ref import Py_REFCNT
    from cython.cimports.libc.string import memcpy
    from cython.cimports.tidelog.records.kernel import Cursor
else:
    from tidelog.records.kernel import Cursor

COMPILED = cython.compiled

_RELEASE_GIL_FROM_BYTES = cython.declare(cython.Py_ssize_t, 65536)
"""Below this the loop is over before another thread could use the GIL, and taking it back may cost a wait."""

_MAX_INT32 = cython.declare(cython.longlong, 0x7FFFFFFF)
_NUMBER = struct.Struct("=q")


@cython.final
@cython.cclass
class _Bytes:
    """A buffer that grows by doubling; `data` is where it lies now.

    The memory of what was handed over two rounds ago is used again once nobody else holds it: fresh memory
    costs a page fault for every forty records, which is more than reading them does.
    """

    store: bytearray
    spare: bytearray
    data: cython.p_uchar

    def __init__(self):
        self.store = bytearray(64)
        self.spare = None
        self.point()

    @cython.cfunc
    def hand_over(self, size: cython.Py_ssize_t):
        """The first `size` bytes as they lie; from now on they are the receiver's."""
        handed: bytearray = self.store
        reusable: cython.bint = False
        if cython.compiled:
            reusable = self.spare is not None and Py_REFCNT(self.spare) == 1
        self.store = self.spare if reusable else bytearray(64)
        self.spare = handed
        self.point()
        return memoryview(handed)[:size]

    @cython.cfunc
    def point(self) -> cython.int:
        if cython.compiled:
            self.data = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.store))
        else:
            self.data = self.store
        return 0

    @cython.cfunc
    def reserve(self, size: cython.Py_ssize_t) -> cython.int:
        """Room for `size` bytes in all."""
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
    def put(self, row: cython.Py_ssize_t, number: cython.longlong) -> cython.void:
        """The `row`th 64-bit number."""
        if cython.compiled:
            cython.cast(cython.pointer[cython.longlong], self.data)[row] = number
        else:
            _NUMBER.pack_into(self.data, row * 8, number)

    @cython.cfunc
    def narrow(self, rows: cython.Py_ssize_t) -> cython.int:
        """The first `rows` numbers from 64 bits to 32, in place."""
        row: cython.Py_ssize_t
        if cython.compiled:
            wide: cython.pointer[cython.longlong] = cython.cast(cython.pointer[cython.longlong], self.data)
            slim: cython.pointer[cython.int] = cython.cast(cython.pointer[cython.int], self.data)
            for row in range(rows):
                slim[row] = cython.cast(cython.int, wide[row])
        else:
            numbers = struct.unpack_from(f"={rows}q", self.data)
            struct.pack_into(f"={rows}i", self.data, 0, *numbers)
        return 0


@cython.final
@cython.cclass
class _Binary:
    """One column of byte strings, some of them null: offsets, data and a bit per row that says it is there."""

    offsets: _Bytes
    data: _Bytes
    validity: _Bytes
    rows: cython.Py_ssize_t
    size: cython.Py_ssize_t
    nulls: cython.Py_ssize_t

    def __init__(self):
        self.offsets = _Bytes()
        self.data = _Bytes()
        self.validity = _Bytes()
        self.rows = self.size = self.nulls = 0
        self.offsets.put(0, 0)

    @cython.cfunc
    def reserve(self, rows: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.int:
        """Room for that many rows and bytes more."""
        self.offsets.reserve(8 * (self.rows + rows + 1))
        self.validity.reserve((self.rows + rows + 7) // 8)
        self.data.reserve(self.size + size)
        return 0

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def append(self, cursor: Cursor, place: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.void:
        """The next row: `size` bytes at `place` under the cursor, or a null for -1."""
        bit: cython.uint = cython.cast(cython.uint, self.rows & 7)
        kept: cython.uint = 0
        if bit != 0:
            kept = self.validity.data[self.rows >> 3] & ((1 << bit) - 1)
        if size < 0:
            self.nulls += 1
        else:
            kept |= 1 << bit
            if cython.compiled:
                memcpy(self.data.data + self.size, cursor.data + place, size)
            else:
                self.data.data[self.size : self.size + size] = cursor.data[place : place + size]
            self.size += size
        self.validity.data[self.rows >> 3] = kept
        self.rows += 1
        self.offsets.put(self.rows, self.size)

    @cython.cfunc
    def cut_back(self, rows: cython.Py_ssize_t, size: cython.Py_ssize_t, nulls: cython.Py_ssize_t) -> cython.int:
        self.rows = rows
        self.size = size
        self.nulls = nulls
        return 0

    @cython.cfunc
    def hand_over(self):
        large = self.size > _MAX_INT32
        if not large:
            self.offsets.narrow(self.rows + 1)
        column = BinaryBuffers(
            self.offsets.hand_over((8 if large else 4) * (self.rows + 1)),
            self.data.hand_over(self.size),
            self.validity.hand_over((self.rows + 7) // 8) if self.nulls else None,
            self.nulls,
            0,
            large,
        )
        self.cut_back(0, 0, 0)
        self.offsets.put(0, 0)
        return column


@cython.final
@cython.cclass
class Columns:
    """The columns of the batches appended so far: offset, timestamp, key, value and headers of each record."""

    offsets: _Bytes
    timestamps: _Bytes
    keys: _Binary
    values: _Binary
    header_ends: _Bytes
    header_keys: _Binary
    header_values: _Binary
    rows: cython.Py_ssize_t

    def __init__(self):
        self.offsets = _Bytes()
        self.timestamps = _Bytes()
        self.keys = _Binary()
        self.values = _Binary()
        self.header_ends = _Bytes()
        self.header_keys = _Binary()
        self.header_values = _Binary()
        self.rows = 0
        self.header_ends.put(0, 0)

    def __len__(self):
        return self.rows

    @property
    def size_bytes(self):
        """Bytes of keys, values and headers held."""
        return self.keys.size + self.values.size + self.header_keys.size + self.header_values.size

    def append(self, cursor: Cursor, from_offset: cython.longlong = 0) -> int:
        """Add the records at or after `from_offset`; how many. On a malformed batch nothing is added."""
        rows: cython.Py_ssize_t = self.rows
        key_rows: cython.Py_ssize_t = self.keys.rows
        key_size: cython.Py_ssize_t = self.keys.size
        key_nulls: cython.Py_ssize_t = self.keys.nulls
        value_size: cython.Py_ssize_t = self.values.size
        value_nulls: cython.Py_ssize_t = self.values.nulls
        self.reserve(cursor.record_count, cursor.end)
        cursor.rewind()
        headers: cython.Py_ssize_t
        if cursor.end < _RELEASE_GIL_FROM_BYTES:
            headers = self.read(cursor, from_offset)
        else:
            with cython.nogil:
                headers = self.read(cursor, from_offset)
        if cursor.broken or cursor.at != cursor.end:
            self.keys.cut_back(key_rows, key_size, key_nulls)
            self.values.cut_back(key_rows, value_size, value_nulls)
            self.rows = rows
        cursor.close()
        self.header_ends.reserve(8 * (self.rows + 1))
        if headers:
            self.header_keys.reserve(headers, cursor.end)
            self.header_values.reserve(headers, cursor.end)
            cursor.rewind()
        self.read_headers(cursor, from_offset, rows, headers != 0)
        return self.rows - rows

    @cython.cfunc
    def reserve(self, rows: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.int:
        self.offsets.reserve(8 * (self.rows + rows))
        self.timestamps.reserve(8 * (self.rows + rows))
        self.keys.reserve(rows, size)
        self.values.reserve(rows, size)
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def read(self, cursor: Cursor, from_offset: cython.longlong) -> cython.Py_ssize_t:
        """All but the headers; how many of those there are."""
        headers: cython.Py_ssize_t = 0
        while cursor.next():
            if cursor.offset < from_offset:
                continue
            self.offsets.put(self.rows, cursor.offset)
            self.timestamps.put(self.rows, cursor.timestamp)
            self.keys.append(cursor, cursor.key_at, cursor.key_size)
            self.values.append(cursor, cursor.value_at, cursor.value_size)
            headers += cursor.header_count
            self.rows += 1
        return headers

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def read_headers(
        self, cursor: Cursor, from_offset: cython.longlong, row: cython.Py_ssize_t, present: cython.bint
    ) -> cython.void:
        """The headers of the rows from `row` on. Rare, so a pass of their own that most batches do without."""
        if not present:
            while row < self.rows:
                row += 1
                self.header_ends.put(row, self.header_keys.rows)
            return
        left: cython.Py_ssize_t
        resume: cython.Py_ssize_t
        while cursor.next():
            if cursor.offset < from_offset:
                continue
            resume = cursor.at
            cursor.at = cursor.headers_at
            left = cursor.header_count
            while left > 0:
                self.take_field(cursor, self.header_keys)
                self.take_field(cursor, self.header_values)
                left -= 1
            cursor.at = resume
            row += 1
            self.header_ends.put(row, self.header_keys.rows)

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def take_field(self, cursor: Cursor, column: _Binary) -> cython.void:
        size: cython.Py_ssize_t = cursor.varint()
        place: cython.Py_ssize_t = cursor.skip(size, cursor.end)
        column.append(cursor, place, size)

    def finish(self):
        """Hand the columns over and start anew with none."""
        count = self.rows
        header_count = self.header_keys.rows
        self.header_ends.narrow(count + 1)
        headers = HeaderBuffers(
            self.header_ends.hand_over(4 * (count + 1)),
            header_count,
            self.header_keys.hand_over(),
            self.header_values.hand_over(),
        )
        columns = ColumnBuffers(
            count,
            self.offsets.hand_over(8 * count),
            self.timestamps.hand_over(8 * count),
            self.keys.hand_over(),
            self.values.hand_over(),
            headers.mended(),
        )
        self.header_ends.put(0, 0)
        self.rows = 0
        return columns
