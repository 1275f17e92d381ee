# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# ruff: noqa: RET505 - Cython takes what stands behind a branch on cython.compiled for unreachable
"""Reads single values: a position in bytes, and a codec for each type but the struct.

The methods of Reader and the codecs that call them stand in one module: across modules the calls would go through a
table, which makes messages full of integers and arrays 4 per cent slower.

Nothing is trusted: every length is compared with the bytes that are left before anything is made of it.
"""

from __future__ import annotations

import struct
from typing import Any

import cython

from tidelog.errors import TooManyElementsError

if cython.compiled:
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.cpython.unicode import PyUnicode_DecodeUTF8
    from cython.cimports.tidelog.wire.capi import view_within

_2_TO_32 = cython.declare(cython.longlong, 0x100000000)
_MAX_STRING = cython.declare(cython.int, 32767)
_FLOAT64 = struct.Struct(">d")


class MalformedError(Exception):
    """Why bytes cannot be read. The struct that meets it adds where, and makes it a WireError."""


@cython.no_gc
@cython.final
@cython.cclass
class Reader:
    """A position in bytes that are being decoded. Holds on to the buffer for as long as it lives.

    The garbage collector does not look into it (no_gc). It clears a memoryview that it finds in garbage, although the
    Reader still has its buffer, and to give that back then crashes the process.
    """

    def __init__(self, source: Any, pos: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> None:
        """At most `limit` elements of arrays and tagged fields are read, in all of the message together."""
        self.source = source
        self.whole = None
        self.pos = pos
        self.limit = limit
        self.left = limit
        if cython.compiled:
            PyObject_GetBuffer(source, cython.address(self.view), PyBUF_SIMPLE)
            self.data = cython.cast(cython.p_uchar, self.view.buf)
            self.end = self.view.len
        else:
            self.data = memoryview(source).cast("B")
            self.end = len(self.data)

    if cython.compiled:

        def __dealloc__(self) -> None:
            PyBuffer_Release(cython.address(self.view))

    @cython.cfunc
    @cython.exceptval(-1)
    def need(self, size: cython.Py_ssize_t) -> cython.int:
        if self.end - self.pos < size:
            self.fall_short(size)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def fall_short(self, size: cython.Py_ssize_t) -> cython.int:
        raise MalformedError(f"{size} bytes wanted where {self.end - self.pos} are left")

    @cython.cfunc
    @cython.exceptval(-1)
    def count(self, elements: cython.Py_ssize_t) -> cython.int:
        self.left -= elements
        if self.left < 0:
            raise TooManyElementsError(f"more than {self.limit} elements of arrays and tagged fields")
        return 0

    @cython.cfunc
    @cython.exceptval(-129)
    def int8(self) -> cython.int:
        self.need(1)
        value: cython.int = self.data[self.pos]
        self.pos += 1
        return value - 256 if value > 127 else value

    @cython.cfunc
    @cython.exceptval(-1)
    def uint16(self) -> cython.int:
        self.need(2)
        data: cython.p_uchar = self.data
        pos: cython.Py_ssize_t = self.pos
        value: cython.int = (data[pos] << 8) | data[pos + 1]
        self.pos = pos + 2
        return value

    @cython.cfunc
    @cython.exceptval(-1)
    def uint32(self) -> cython.longlong:
        self.need(4)
        data: cython.p_uchar = self.data
        pos: cython.Py_ssize_t = self.pos
        high: cython.uint = data[pos]
        value: cython.uint = (high << 24) | (data[pos + 1] << 16) | (data[pos + 2] << 8) | data[pos + 3]
        self.pos = pos + 4
        return value

    @cython.cfunc
    @cython.exceptval(-0x8001)
    def int16(self) -> cython.int:
        value: cython.int = self.uint16()
        return value - 0x10000 if value > 0x7FFF else value

    @cython.cfunc
    @cython.exceptval(-0x80000001)
    def int32(self) -> cython.longlong:
        value: cython.longlong = self.uint32()
        return value - _2_TO_32 if value > 0x7FFFFFFF else value

    @cython.cfunc
    @cython.exceptval(-0x7FFFFFFFFFFFFFFF, check=True)
    def int64(self) -> cython.longlong:
        high: cython.longlong = self.int32()
        return high * _2_TO_32 + self.uint32()

    @cython.cfunc
    @cython.exceptval(-1)
    def uvarint(self) -> cython.longlong:
        if self.pos < self.end and self.data[self.pos] < 0x80:
            self.pos += 1
            return self.data[self.pos - 1]
        return self.long_uvarint()

    @cython.cfunc
    @cython.exceptval(-1)
    def long_uvarint(self) -> cython.longlong:
        value: cython.longlong = 0
        shift: cython.int = 0
        while True:
            self.need(1)
            byte: cython.longlong = self.data[self.pos]
            self.pos += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 28:
                raise MalformedError("a varint of more than five bytes")
        if value > 0xFFFFFFFF:
            raise MalformedError("a varint of more than 32 bits")
        return value

    @cython.cfunc
    @cython.exceptval(-2)
    def length(self, compact: cython.bint, nullable: cython.bint, narrow: cython.bint) -> cython.longlong:
        """A length or count before what it counts; -1 for null."""
        size: cython.longlong
        if compact:
            size = self.uvarint() - 1
        elif narrow:
            size = self.int16()
        else:
            size = self.int32()
        if size >= 0:
            return size
        if size != -1:
            raise MalformedError(f"a length of {size}")
        if not nullable:
            raise MalformedError("null, which this version does not allow")
        return -1

    @cython.cfunc
    def copy(self, size: cython.Py_ssize_t) -> object:
        self.need(size)
        pos: cython.Py_ssize_t = self.pos
        self.pos = pos + size
        if cython.compiled:
            return PyBytes_FromStringAndSize(cython.cast(cython.p_char, self.data + pos), size)
        else:
            return bytes(self.data[pos : pos + size])

    @cython.cfunc
    def cut(self, size: cython.Py_ssize_t) -> object:
        """A view of the bytes: they stay where they are."""
        self.need(size)
        if self.whole is None:
            whole = memoryview(self.source)
            self.whole = whole if whole.format == "B" and whole.ndim == 1 else whole.cast("B")
        pos: cython.Py_ssize_t = self.pos
        self.pos = pos + size
        if cython.compiled:
            return view_within(self.whole, pos, size)
        else:
            return self.whole[pos : pos + size]


@cython.cclass
class Codec:
    """Reads one value. `min_size` is what its shortest encoding takes."""

    @cython.cfunc
    def read(self, r: Reader) -> object:
        raise NotImplementedError


@cython.final
@cython.cclass
class Bool(Codec):
    def __init__(self) -> None:
        self.min_size = 1

    @cython.cfunc
    def read(self, r: Reader) -> object:
        return r.int8() != 0


@cython.final
@cython.cclass
class Int(Codec):
    """Any of the integers; `min_size` tells how wide."""

    signed: cython.bint

    def __init__(self, size: cython.Py_ssize_t, low: cython.longlong, high: cython.longlong) -> None:
        self.min_size = size
        self.signed = low < 0

    @cython.cfunc
    def read(self, r: Reader) -> object:
        if self.min_size == 4:
            return r.int32() if self.signed else r.uint32()
        if self.min_size == 8:
            return r.int64()
        if self.min_size == 2:
            return r.int16() if self.signed else r.uint16()
        return r.int8()


@cython.final
@cython.cclass
class Float64(Codec):
    def __init__(self) -> None:
        self.min_size = 8

    @cython.cfunc
    def read(self, r: Reader) -> object:
        return _FLOAT64.unpack(r.copy(8))[0]


@cython.final
@cython.cclass
class Uuid(Codec):
    def __init__(self) -> None:
        self.min_size = 16

    @cython.cfunc
    def read(self, r: Reader) -> object:
        return r.copy(16)


@cython.cclass
class Sized(Codec):
    """What has a length before it: compact or not, and perhaps null."""

    def __init__(self, compact: cython.bint, nullable: cython.bint) -> None:
        self.compact = compact
        self.nullable = nullable
        self.min_size = 1 if compact else 4


@cython.final
@cython.cclass
class String(Sized):
    def __init__(self, compact: cython.bint, nullable: cython.bint) -> None:
        self.compact = compact
        self.nullable = nullable
        self.min_size = 1 if compact else 2

    @cython.cfunc
    def read(self, r: Reader) -> object:
        size: cython.Py_ssize_t = r.length(self.compact, self.nullable, True)
        if size < 0:
            return None
        if size > _MAX_STRING:
            raise MalformedError(f"a string of {size} bytes")
        r.need(size)
        pos: cython.Py_ssize_t = r.pos
        r.pos = pos + size
        if cython.compiled:
            return PyUnicode_DecodeUTF8(cython.cast(cython.p_char, r.data + pos), size, cython.NULL)
        else:
            return str(r.data[pos : pos + size], "utf-8")


@cython.final
@cython.cclass
class Bytes(Sized):
    @cython.cfunc
    def read(self, r: Reader) -> object:
        size: cython.Py_ssize_t = r.length(self.compact, self.nullable, False)
        return r.copy(size) if size >= 0 else None


@cython.final
@cython.cclass
class Records(Sized):
    """Bytes that stay where they are."""

    @cython.cfunc
    def read(self, r: Reader) -> object:
        size: cython.Py_ssize_t = r.length(self.compact, self.nullable, False)
        return r.cut(size) if size >= 0 else None


@cython.final
@cython.cclass
class Int32Array(Sized):
    """The array that metadata is full of."""

    @cython.cfunc
    def read(self, r: Reader) -> object:
        count: cython.Py_ssize_t = r.length(self.compact, self.nullable, False)
        if count < 0:
            return None
        if count > (r.end - r.pos) // 4:
            raise MalformedError(f"{count} elements in {r.end - r.pos} bytes")
        r.count(count)
        result: list = [None] * count
        i: cython.Py_ssize_t
        for i in range(count):
            result[i] = r.int32()
        return result


@cython.final
@cython.cclass
class Array(Sized):
    """Elements of one kind, structs among them."""

    def __init__(self, compact: cython.bint, nullable: cython.bint, element: Codec) -> None:
        self.compact = compact
        self.nullable = nullable
        self.min_size = 1 if compact else 4
        self.element = element
        # An element that takes no bytes could be claimed without end; none is declared, and none would be believed.
        self.element_size = max(element.min_size, 1)

    @cython.cfunc
    def begin(self, r: Reader) -> list:
        """The list with room for all elements, or None."""
        count: cython.Py_ssize_t = r.length(self.compact, self.nullable, False)
        if count < 0:
            return None
        if count > (r.end - r.pos) // self.element_size:
            raise MalformedError(f"{count} elements in {r.end - r.pos} bytes")
        r.count(count)
        return [None] * count

    @cython.cfunc
    def read(self, r: Reader) -> object:
        result: list = self.begin(r)
        if result is None:
            return None
        element: Codec = self.element
        i: cython.Py_ssize_t
        for i in range(len(result)):
            result[i] = element.read(r)
        return result
