# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Columns as the encoder reads them: row by row, in place, from buffers as Arrow lays them out.

Compiled like kernel.py. Always: no byte outside the buffers is touched, whatever offsets and counts they claim;
sizes are checked when a source is made, the offsets of a row when it is located.
"""

from __future__ import annotations

import struct

import cython

if cython.compiled:
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

COMPILED = cython.compiled

_NUMBERS = {4: struct.Struct("=i"), 8: struct.Struct("=q")}


@cython.no_gc  # see tidelog.wire.decoder.values.Reader
@cython.final
@cython.cclass
class ArrowBuffer:
    """One buffer, held while it is read; or none, where Arrow has None."""

    def __init__(self, buffer):
        self.held = False
        self.size = 0
        if buffer is None:
            return
        if cython.compiled:
            PyObject_GetBuffer(buffer, cython.address(self.buffer), PyBUF_SIMPLE)
            self.data = cython.cast(cython.pointer[cython.const[cython.uchar]], self.buffer.buf)
            self.size = self.buffer.len
        else:
            self.data = memoryview(buffer).cast("B")
            self.size = len(self.data)
        self.held = True

    def __dealloc__(self):
        if cython.compiled and self.held:
            PyBuffer_Release(cython.address(self.buffer))

    def number(self, row, width):
        """The `row`th number of 4 or 8 bytes."""
        number: cython.longlong
        if not cython.compiled:
            number = _NUMBERS[width].unpack_from(self.data, row * width)[0]
        elif width == 8:
            number = cython.cast(cython.pointer[cython.const[cython.longlong]], self.data)[row]
        else:
            number = cython.cast(cython.pointer[cython.const[cython.int]], self.data)[row]
        return number


@cython.final
@cython.cclass
class BinarySource:
    """A column of byte strings. `locate` finds a row: where its bytes are and how many, or -1 for a null."""

    def __init__(self, column, rows: cython.Py_ssize_t):
        self.offsets = ArrowBuffer(column.offsets)
        self.bytes = ArrowBuffer(column.data)
        self.validity = ArrowBuffer(column.validity)
        self.start = column.start
        self.width = 8 if column.large else 4
        if self.start < 0 or (rows > 0 and (self.start + rows + 1) * self.width > self.offsets.size):
            raise ValueError(f"a column of {rows} rows from {column.start} has {self.offsets.size} bytes of offsets")
        if self.validity.held and (self.start + rows + 7) // 8 > self.validity.size:
            raise ValueError(f"a column of {rows} rows from {column.start} has {self.validity.size} bytes of validity")

    def locate(self, row):
        """False if the row's offsets do not lie within the data."""
        row += self.start
        self.place = 0
        self.size = -1
        if self.validity.held and not (self.validity.data[row >> 3] >> (row & 7)) & 1:
            return True
        self.place = self.offsets.number(row, self.width)
        self.size = self.offsets.number(row + 1, self.width) - self.place
        return self.place >= 0 and self.size >= 0 and self.size <= self.bytes.size - self.place


@cython.final
@cython.cclass
class ColumnSource:
    """Columns held open for writing; one may feed many batches, row after row."""

    def __init__(self, columns, keep_offsets: cython.bint = False):
        self.count = columns.row_count
        self.number_start = columns.number_start
        self.timestamps = ArrowBuffer(columns.timestamps)
        self.offsets = ArrowBuffer(columns.offsets if keep_offsets else None)
        self.has_offsets = keep_offsets
        self.keys = BinarySource(columns.keys, self.count)
        self.values = BinarySource(columns.values, self.count)
        least = 8 * (self.number_start + self.count)
        if self.number_start < 0 or self.timestamps.size < least or (keep_offsets and self.offsets.size < least):
            raise ValueError(f"{self.count} rows need {least} bytes of timestamps and offsets")
        self.has_headers = columns.headers is not None and columns.headers.header_count > 0
        if self.has_headers:
            self.open_headers(columns.headers)

    def open_headers(self, headers):
        self.header_ends = ArrowBuffer(headers.ends)
        self.header_start = headers.start
        self.header_rows = headers.header_count
        self.header_keys = BinarySource(headers.keys, headers.header_count)
        self.header_values = BinarySource(headers.values, headers.header_count)
        if headers.start < 0 or (headers.start + self.count + 1) * 4 > self.header_ends.size:
            raise ValueError(f"{self.count} rows have {self.header_ends.size} bytes of header offsets")

    def timestamp(self, row):
        return self.timestamps.number(self.number_start + row, 8)

    def offset(self, row):
        return self.offsets.number(self.number_start + row, 8)

    def first_header(self, row):
        """Where the row's headers begin; they end where those of the next row do."""
        return self.header_ends.number(self.header_start + row, 4)
